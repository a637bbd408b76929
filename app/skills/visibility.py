"""Which version of a skill's name a principal's tasks are offered. Pure."""

from collections.abc import Collection
from typing import Literal, TypeAlias
from uuid import UUID

import msgspec

Reach: TypeAlias = Literal["owner", "trial", "all"]
"""The tasks that a skill is offered to: its owner's, all while no version of its name reaches all, or all."""


class SkillVersion(msgspec.Struct, frozen=True):
    """A version of a name: who wrote it, and whom it reaches."""

    skill_id: UUID
    version: int
    owner: str
    reach: Reach


def newest_visible(versions: Collection[SkillVersion], principal: str) -> UUID | None:
    """Of the versions of one name, the newest among those that reach a principal's tasks."""
    seen = [each for each in versions if each.reach == "all" or each.owner == principal]
    trials = [each for each in versions if each.reach == "trial"]
    if trials and not any(each.reach == "all" for each in versions):
        seen.append(min(trials, key=_version))
    return max(seen, key=_version).skill_id if seen else None


def _version(each: SkillVersion) -> int:
    return each.version

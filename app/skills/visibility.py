"""Which version of a skill's name a task is offered. Pure.

A skill is its principal's; one that a canary's task wrote, its principal's on that canary, while the trial lasts.
"""

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


def owner_of(principal: str, canary: UUID | None = None) -> str:
    return principal if canary is None else f"{canary}\0{principal}"


def owners_for(principal: str, release: UUID | None) -> Collection[str]:
    """Whose skills a task sees that a release serves."""
    return (principal,) if release is None else (principal, owner_of(principal, release))


def newest_visible(versions: Collection[SkillVersion], owners: Collection[str]) -> UUID | None:
    """Of the versions of one name, the newest among those that reach the tasks of these owners."""
    seen = [each for each in versions if each.reach == "all" or each.owner in owners]
    trials = [each for each in versions if each.reach == "trial"]
    if trials and not any(each.reach == "all" for each in versions):
        seen.append(min(trials, key=_version))
    return max(seen, key=_version).skill_id if seen else None


def _version(each: SkillVersion) -> int:
    return each.version

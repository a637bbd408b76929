"""Skills of other scenarios, offered in rollouts beside those that fit, as a grown library offers them.

A policy that meets only fitting skills learns to call whatever it is offered. Served from a grown library, that
does harm: with two unfitting skills beside the fitting one the gain of training was gone.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from random import Random
from uuid import UUID

import msgspec

from app.gateway.skill_manifest import SkillManifest
from app.records import Offer
from trainer.atomic_write import write_atomically

_MOST = 500  # skills to draw from, the newest


class CrowdSkill(msgspec.Struct, frozen=True):
    """A skill, and the scenario of the task that wrote it."""

    scenario: str | None
    offer: Offer
    manifest: SkillManifest | None = None  # None: it may call anything


class Crowd:
    """The skills to draw from: those of the project's library, then those that the run's own rollouts wrote."""

    def __init__(self, skills: Iterable[CrowdSkill] = ()) -> None:
        self._skills: dict[tuple[str | None, str], CrowdSkill] = {}  # by scenario and name, oldest first
        self.add(skills)

    def __len__(self) -> int:
        return len(self._skills)

    def add(self, skills: Iterable[CrowdSkill]) -> None:
        for skill in skills:
            key = skill.scenario, skill.offer.name
            self._skills.pop(key, None)
            self._skills[key] = skill
        for key in list(self._skills)[: max(0, len(self._skills) - _MOST)]:
            del self._skills[key]

    def draw(self, scenario: str, count: int, rng: Random) -> list[Offer]:
        """At most `count` skills of other scenarios, each with a name of its own, from none to all of them."""
        others = {name: skill.offer for (origin, name), skill in self._skills.items() if origin != scenario}
        wanted = min(rng.randint(0, count), len(others))
        return rng.sample(list(others.values()), wanted)

    @property
    def manifests(self) -> dict[UUID, SkillManifest]:
        """Of those that have one, by the skill's id."""
        skills = self._skills.values()
        return {each.offer.skill_id: each.manifest for each in skills if each.manifest is not None}

    def save(self, path: Path) -> None:
        write_atomically(msgspec.msgpack.encode(list(self._skills.values())), path)

    @classmethod
    def restore(cls, path: Path, skills: Iterable[CrowdSkill] = ()) -> "Crowd":
        """The one that was saved; else a new one with `skills`."""
        return cls(msgspec.msgpack.decode(path.read_bytes(), type=list[CrowdSkill]) if path.exists() else skills)


def crowded(found: Sequence[Offer], crowd: Sequence[Offer], limit: int, rng: Random) -> list[Offer]:
    """The skills found, and as much of the crowd as the limit leaves room for, at places drawn at random."""
    names = {offer.name for offer in found}
    offers = list(found)
    for each in [offer for offer in crowd if offer.name not in names][: max(0, limit - len(found))]:
        offers.insert(rng.randint(0, len(offers)), each)
    return offers

"""The place of a task determines its site, its instruction and its items; the id of its world encodes the
place.
"""

import re
from functools import lru_cache
from random import Random
from typing import Literal, cast
from uuid import NAMESPACE_URL, UUID, uuid5

import msgspec

from app.errors import NotFoundError
from trainer.worlds.generated.domains import people, projects
from trainer.worlds.generated.words import Pool
from trainer.worlds.office.apps import APPS, GROUPS, PEOPLE, THRESHOLDS
from trainer.worlds.office.free_wording import word_freely
from trainer.worlds.office.split import templates_of
from trainer.worlds.office.task_templates import TEMPLATES, Selector, Template

DEMO = "demo"
TASKS = 3  # of a scenario

Variety = Literal["", "-n", "-w", "-nw"]
"""What differs from the fixed office: names are drawn from wide pools, wording is free."""

_WORLD = re.compile(r"t(\d{1,3})-s(\d{1,10})-d(\d{1,7})(-n?w|-n)?-([0-2])(?:-x([0-9a-z]{1,16}))?")
_THRESHOLDS = range(15, 86)


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """One task of one scenario at one site. A nonce distinguishes the worlds of several rollouts."""

    template: int  # its position in TEMPLATES
    seed: int
    site: int
    index: int
    variety: Variety = ""

    @property
    def scenario(self) -> str:
        return f"t{self.template}-s{self.seed}-d{self.site}{self.variety}"

    @property
    def kind(self) -> Template:
        return TEMPLATES[self.template]

    @property
    def key(self) -> str:
        """What the world is drawn from: the same in every variety, so that these compare like with like."""
        return f"t{self.template}-s{self.seed}-d{self.site}-{self.index}"

    @property
    def people(self) -> tuple[str, ...]:
        return _people(self.seed, _pool(self.kind)) if "n" in self.variety else PEOPLE

    def labels(self, app: str) -> tuple[str, ...]:
        own = APPS[app].values
        return _labels(app, len(own), self.seed, _pool(self.kind)) if "n" in self.variety else own

    def values(self, selector: Selector) -> tuple[str, ...]:
        """The possible values of a selector."""
        if selector == "group":
            return GROUPS
        if selector == "over":
            return _thresholds(self.seed) if "n" in self.variety else THRESHOLDS
        return self.people if selector == "person" else self.labels(self.kind.app)

    @property
    def value(self) -> str:
        """The value of the task's selector, different for each task of the scenario."""
        values = self.values(self.kind.selector)
        return Random(f"values {self.template} {self.seed}").sample(values, TASKS)[self.index]

    @property
    def instruction(self) -> str:
        rng = Random(f"phrasing {self.key}")
        if "w" in self.variety:
            return word_freely(self.kind, self.value, _pool(self.kind), rng)
        return rng.choice(self.kind.phrasings).format(value=self.value)

    @property
    def task_id(self) -> UUID:
        return uuid5(NAMESPACE_URL, f"office:{self.world()}")

    def world(self, nonce: str = "") -> str:
        return f"{self.scenario}-{self.index}" + (f"-x{nonce}" if nonce else "")


def place_of(world: str) -> Place:
    """The place that a world's id encodes. Raises NotFoundError for an id that encodes none."""
    match = _WORLD.fullmatch(world)
    if match is None or int(match[1]) >= len(TEMPLATES):
        raise NotFoundError(f"no world {world[:60]}, ask /admin/scenarios for some")
    variety = cast(Variety, match[4] or "")
    return Place(
        template=int(match[1]), seed=int(match[2]), site=int(match[3]), index=int(match[5]), variety=variety
    )


@lru_cache(maxsize=512)
def _people(seed: int, pool: Pool) -> tuple[str, ...]:
    return tuple(people(pool, len(PEOPLE), Random(f"people {seed}")))


@lru_cache(maxsize=512)
def _labels(app: str, count: int, seed: int, pool: Pool) -> tuple[str, ...]:
    return tuple(projects(pool, count, Random(f"labels {app} {seed}")))


def _thresholds(seed: int) -> tuple[str, ...]:
    return tuple(map(str, Random(f"thresholds {seed}").sample(_THRESHOLDS, len(THRESHOLDS))))


@lru_cache
def _pool(kind: Template) -> Pool:
    pools: tuple[Pool, ...] = ("train", "validation", "test")
    return next(pool for pool in pools if kind in templates_of(pool))

"""The place of a task determines its site, its instruction and its items; the id of its world encodes the
place.
"""

import re
from random import Random
from uuid import NAMESPACE_URL, UUID, uuid5

import msgspec

from app.errors import NotFoundError
from trainer.environments.office.templates import TEMPLATES, Template

DEMO = "demo"
TASKS = 3  # of a scenario

_WORLD = re.compile(r"t(\d{1,3})-s(\d{1,10})-d(\d{1,7})-([0-2])(?:-x([0-9a-z]{1,16}))?")


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """One task of one scenario at one site. A nonce distinguishes the worlds of several rollouts."""

    template: int  # its position in TEMPLATES
    seed: int
    site: int
    index: int

    @property
    def scenario(self) -> str:
        return f"t{self.template}-s{self.seed}-d{self.site}"

    @property
    def kind(self) -> Template:
        return TEMPLATES[self.template]

    @property
    def value(self) -> str:
        """The value of the task's selector, different for each task of the scenario."""
        return Random(f"values {self.template} {self.seed}").sample(self.kind.values, TASKS)[self.index]

    @property
    def instruction(self) -> str:
        phrasing = Random(f"phrasing {self.world()}").choice(self.kind.phrasings)
        return phrasing.format(value=self.value)

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
    return Place(template=int(match[1]), seed=int(match[2]), site=int(match[3]), index=int(match[4]))

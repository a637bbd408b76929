"""A scenario in full, whatever its apps: its key, which determines all else, and the plan of its tasks."""

import re
from collections.abc import Sequence
from random import Random
from typing import Any, ClassVar, Protocol, Self, get_args
from uuid import NAMESPACE_URL, UUID, uuid5

import msgspec

from app.errors import NotFoundError
from app.records import Json
from trainer.environment import Split, Verdict
from trainer.worlds.generated.records import FACTS, Records, Values, verify_records
from trainer.worlds.generated.services import AppServices
from trainer.worlds.generated.words import Pool

TASKS = 3  # of a scenario


class Key(msgspec.Struct, frozen=True):
    """What a scenario is derived from. `axis` is what it holds out if its split is not train; everything else is
    as in training.
    """

    axes: ClassVar[tuple[str, ...]]
    world_prefix: ClassVar[str] = ""
    task_prefix: ClassVar[str] = ""
    random_prefix: ClassVar[str] = ""

    split: Split
    axis: str
    seed: int

    @classmethod
    def place_in(cls, world: str) -> tuple[Self, int]:
        """The scenario and the position of the task whose world has this id. Raises NotFoundError."""
        splits, axes = "|".join(get_args(Split)), "|".join(cls.axes)
        pattern = rf"{cls.world_prefix}({splits})-({axes})-(\d{{1,12}})-([0-{TASKS - 1}])(?:-x[0-9a-z]{{1,16}})?"
        match = re.fullmatch(pattern, world)
        if match is None:
            raise NotFoundError(f"no world {world[:60]}")
        split, axis, seed, index = match.groups()
        return msgspec.convert({"split": split, "axis": axis, "seed": int(seed)}, cls), int(index)

    @property
    def text(self) -> str:
        return f"{self.world_prefix}{self.split}-{self.axis}-{self.seed}"

    @property
    def is_lesson(self) -> bool:
        return self.split == "train"

    def pool(self, axis: str) -> Pool:
        return self.split if axis == self.axis else "train"

    def random(self, purpose: str) -> Random:
        return Random(f"{self.random_prefix}{self.text} {purpose}")


class NamedForm(Protocol):
    """All tasks of a scenario have the same form; their values differ."""

    @property
    def name(self) -> str: ...
    @property
    def is_answered(self) -> bool:
        """Whether tasks ask for an answer."""
        ...


class Plan(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """The apps, the form of the tasks, and the values of each."""

    facts: ClassVar[Sequence[str]] = FACTS  # that are compared of each record

    key: Any  # a Key
    form: Any  # a NamedForm
    main: Any  # an Api, that the tasks are about
    others: tuple[Any, ...]  # that no task needs
    values: tuple[Values, ...]  # by task

    @property
    def apis(self) -> tuple[Any, ...]:
        """In the order of their names, which tells nothing."""
        return tuple(sorted((self.main, *self.others), key=lambda api: api.name))

    @property
    def has_passwords(self) -> bool:
        """Whether there is a supervisor, who tells them."""
        return True

    def task_id(self, index: int) -> UUID:
        return uuid5(NAMESPACE_URL, f"{self.key.task_prefix}{self.key.text}-{index}")

    def world(self, index: int, nonce: str = "") -> str:
        return f"{self.key.text}-{index}" + (f"-x{nonce}" if nonce else "")

    def instruction(self, index: int) -> str:
        """The same for the same task. The tasks of a scenario may be worded differently."""
        raise NotImplementedError

    def initial_records(self, index: int) -> Records:
        """The records of every app, in the order in which lists show them."""
        raise NotImplementedError

    def wanted_records(self, index: int) -> Records:
        """Those at the end. A new one has the id 0."""
        raise NotImplementedError

    def expected_answer(self, index: int) -> str | int | None:
        """What the task asks for; None if it asks for nothing."""
        raise NotImplementedError

    def verify(self, index: int, found: Records, answer: Json, *, completed: bool) -> Verdict:
        return verify_records(
            self.initial_records(index),
            self.wanted_records(index),
            found,
            expected=self.expected_answer(index),
            answer=answer,
            completed=completed,
            facts=self.facts,
        )


class WorldState(AppServices):
    """The services of one task's world."""

    def __init__(self, plan: Plan, index: int) -> None:
        # the secret lacks the nonce: it is the same in all rollouts of a task
        ids = plan.key.random(f"new ids {index}")
        super().__init__(plan.apis, plan.initial_records(index), secret=plan.world(index), ids=ids)
        self.plan, self.index = plan, index

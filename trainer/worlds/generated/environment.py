"""Environments whose worlds are generated from seeds: what they have alike, whatever their apps and tasks.

A key determines a scenario; its plan has the apps, what the tasks ask, and their worlds.
"""

import re
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import lru_cache
from random import Random
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar, get_args
from uuid import NAMESPACE_URL, UUID, uuid5

import httpx
import msgspec

from app.apis.catalog import Catalog
from app.apis.documents.protocols import parse_document
from app.base.errors import NotFoundError
from app.base.values import Json, Stop, Task, Trajectory
from trainer.environment import Scenario, Split, Verdict
from trainer.worlds.generated.apis import Api
from trainer.worlds.generated.documents import SUPERVISOR, document_of, supervisor_document
from trainer.worlds.generated.words import Pool
from trainer.worlds.generated.worlds import FACTS, AppServices, LiveWorlds, Records, Values, verify_records

TASKS = 3  # of a scenario
_BASE = "http://worlds"  # served in this process
_NOW = datetime(2026, 6, 1, 9, tzinfo=UTC)


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


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked of which APIs: all of a task but its values. What it wants follows from any records."""

    form: NamedForm
    main: Api  # whose records are meant

    @property
    def apis(self) -> tuple[Api, ...]:
        """In the order in which a program reads them."""
        return (self.main,)

    def of(self, main: Api) -> Self:
        """The same of another API."""
        return msgspec.structs.replace(self, main=main)

    def answer(self, records: Records, values: Values) -> str | int | None:
        """What the task asks for; None if it asks for nothing."""
        raise NotImplementedError

    def carry_out(self, records: Records, values: Values) -> None:
        """Change the records as the task wants them. A new one has the id 0."""
        raise NotImplementedError

    def word(self, values: Values, pool: Pool, rng: Random) -> str:
        """The instruction, in words of a pool."""
        raise NotImplementedError


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The apps, what all tasks ask, and the values of each."""

    facts: ClassVar[Sequence[str]] = FACTS  # that are compared of each record

    key: Key
    ask: Ask
    others: tuple[Api, ...]  # that no task needs
    values: tuple[Values, ...]  # by task

    @property
    def apis(self) -> tuple[Any, ...]:
        """In the order of their names, which tells nothing."""
        return tuple(sorted((*self.ask.apis, *self.others), key=lambda api: api.name))

    @property
    def form(self) -> Any:
        return self.ask.form

    @property
    def main(self) -> Api:
        return self.ask.main

    @property
    def has_passwords(self) -> bool:
        """Whether there is a supervisor, who tells them."""
        return True

    def task_id(self, index: int) -> UUID:
        return uuid5(NAMESPACE_URL, f"{self.key.task_prefix}{self.key.text}-{index}")

    def world(self, index: int, nonce: str = "") -> str:
        return f"{self.key.text}-{index}" + (f"-x{nonce}" if nonce else "")

    def initial_records(self, index: int) -> Records:
        """The records of every app, in the order in which lists show them."""
        raise NotImplementedError

    def wanted_records(self, index: int) -> Records:
        """Those at the end."""
        records = self.initial_records(index)
        self.ask.carry_out(records, self.values[index])
        return records

    def expected_answer(self, index: int) -> str | int | None:
        return self.ask.answer(self.initial_records(index), self.values[index])

    def instruction(self, index: int) -> str:
        """The same for the same task. The tasks of a scenario may be worded differently."""
        return self.ask.word(self.values[index], self.key.pool("phrasings"), self.key.random(f"wording {index}"))

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


AnyPlan = TypeVar("AnyPlan", bound=Plan)


class WorldState(AppServices, Generic[AnyPlan]):
    """The services of one task's world. Their secrets are the same in all rollouts of the task."""

    def __init__(self, plan: AnyPlan, index: int) -> None:
        ids = plan.key.random(f"new ids {index}")
        super().__init__(plan.apis, plan.initial_records(index), secret=plan.world(index), ids=ids)
        self.plan, self.index = plan, index


class GeneratedWorld(Generic[AnyPlan]):
    """One task in a world of its own. Implements `World`."""

    def __init__(self, task: Task, plan: AnyPlan, environment: "GeneratedEnvironment[AnyPlan]") -> None:
        self.task = task
        self.plan = plan
        self.client = environment.client
        self.now = _NOW
        self._environment = environment

    @property
    def catalog(self) -> Catalog:
        return self._environment.catalog(self.plan)

    @property
    def state(self) -> WorldState[AnyPlan]:
        return self._environment.worlds.get(self.task.variables["world"])

    async def verify(self, trajectory: Trajectory) -> Verdict:
        state, completed = self.state, trajectory.stop is Stop.COMPLETED
        return self.plan.verify(state.index, state.records, trajectory.answer, completed=completed)


class GeneratedEnvironment(Generic[AnyPlan]):
    """Implements `Environment`. Scenarios of validation and test hold out one axis, or all by turns."""

    def __init__(self, name: str, keys: type[Key], plan_of: Callable[[Any], AnyPlan], held_out: str) -> None:
        self._name, self._keys, self._plan_of = name, keys, plan_of
        self._axes = keys.axes if held_out == "all" else (held_out,)
        self.worlds = LiveWorlds(lambda world: WorldState(*self.place(world)))
        services: Any = self.worlds
        self.client = httpx.AsyncClient(transport=httpx.ASGITransport(services), base_url=_BASE)

    def place(self, world: str) -> tuple[AnyPlan, int]:
        """The scenario and the position of the task whose world has this id. Raises NotFoundError."""
        key, index = self._keys.place_in(world)
        return self._plan_of(key), index

    def catalog(self, plan: AnyPlan) -> Catalog:
        """The apps of a scenario, parsed from the OpenAPI documents that its services stand for."""
        return _catalog_of(self._plan_of, plan.key)

    def scenarios(self, split: Split, count: int, seed: int) -> Sequence[Scenario]:
        """A larger count only appends."""
        rng = Random(f"{self._name} {split} {seed}")
        axes = [self._axes[at % len(self._axes)] for at in range(count)]
        return [_scenario(self._plan_of(self._keys(split, axis, rng.randrange(10**9)))) for axis in axes]

    @asynccontextmanager
    async def open(self, scenario: Scenario, task: Task) -> AsyncIterator[GeneratedWorld[AnyPlan]]:
        del scenario  # the task's world determines everything
        plan, index = self.place(task.variables["world"])
        world = plan.world(index, secrets.token_hex(4))
        try:
            yield GeneratedWorld(msgspec.structs.replace(task, variables={"world": world}), plan, self)
        finally:
            self.worlds.forget(world)


@lru_cache(maxsize=1024)
def _catalog_of(plan_of: Callable[[Any], Plan], key: Key) -> Catalog:
    plan = plan_of(key)
    documents = {api.name: document_of(api, _BASE) for api in plan.apis}
    if plan.has_passwords:
        documents[SUPERVISOR] = supervisor_document([api.name for api in plan.apis], _BASE)
    return Catalog({app: parse_document(app, each) for app, each in documents.items()})


def _scenario(plan: Plan) -> Scenario:
    key, tasks = plan.key, []
    for at in range(TASKS):
        variables = {"world": plan.world(at)}
        tasks.append(Task(plan.task_id(at), plan.instruction(at), scenario=key.text, variables=variables))
    held_out = "" if key.split == "train" else f"{key.axis}."
    return Scenario(key.text, f"{held_out}{plan.form.name}", key.seed, tuple(tasks))

"""Environments whose worlds are generated from seeds: what all of them do alike."""

import secrets
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from random import Random
from typing import Any, Generic, Protocol, TypeVar
from uuid import UUID

import httpx
import msgspec

from app.apis.catalog import Catalog
from app.records import Task, Trajectory
from trainer.environment import Scenario, Split, Verdict
from trainer.worlds.generated.world_services import LiveWorlds, WorldRequest, WorldResponse, WorldServices

BASE = "http://worlds"  # served in this process
TASKS = 3  # of a scenario
_NOW = datetime(2026, 6, 1, 9, tzinfo=UTC)


class WorldKey(Protocol):
    """What a scenario is derived from. `axis` is what it holds out if its split is not train."""

    @property
    def split(self) -> Split: ...
    @property
    def axis(self) -> str: ...
    @property
    def seed(self) -> int: ...
    @property
    def text(self) -> str: ...


class NamedForm(Protocol):
    @property
    def name(self) -> str: ...


class WorldPlan(Protocol):
    """A scenario in full."""

    @property
    def key(self) -> WorldKey: ...
    @property
    def form(self) -> NamedForm: ...
    def task_id(self, index: int) -> UUID: ...
    def world(self, index: int, nonce: str = "") -> str: ...


Axis = TypeVar("Axis", bound=str)
Plan = TypeVar("Plan", bound=WorldPlan)
State = TypeVar("State")


class GeneratedWorld(Generic[Plan, State]):
    """One task in a world of its own. Implements `World`."""

    def __init__(self, task: Task, plan: Plan, environment: "GeneratedEnvironment[Any, Plan, State]") -> None:
        self.task = task
        self.plan = plan
        self.client = environment.client
        self.now = _NOW
        self._environment = environment

    @property
    def catalog(self) -> Catalog:
        return self._environment.catalog(self.plan)

    @property
    def state(self) -> State:
        return self._environment.worlds.get(self.task.variables["world"])

    async def verify(self, trajectory: Trajectory) -> Verdict:
        return self._environment.verify(self.state, trajectory)


class GeneratedEnvironment(ABC, Generic[Axis, Plan, State]):
    """Implements `Environment`. Scenarios of validation and test hold out the `axes` by turns."""

    def __init__(
        self,
        name: str,
        axes: Sequence[Axis],
        create: Callable[[str], State],
        respond: Callable[[State, str, WorldRequest], WorldResponse],
    ) -> None:
        self._name = name
        self._axes = axes
        self.worlds = LiveWorlds(create)
        services: Any = WorldServices(self.worlds, respond)
        self.client = httpx.AsyncClient(transport=httpx.ASGITransport(services), base_url=BASE)

    @abstractmethod
    def plan(self, split: Split, axis: Axis, seed: int) -> Plan: ...

    @abstractmethod
    def place(self, world: str) -> tuple[Plan, int]:
        """The scenario and the position of the task whose world has this id. Raises NotFoundError."""

    @abstractmethod
    def instruction(self, plan: Plan, index: int) -> str: ...

    @abstractmethod
    def catalog(self, plan: Plan) -> Catalog: ...

    @abstractmethod
    def verify(self, state: State, trajectory: Trajectory) -> Verdict: ...

    def scenarios(self, split: Split, count: int, seed: int) -> Sequence[Scenario]:
        """A larger count only appends."""
        rng = Random(f"{self._name} {split} {seed}")
        axes = [self._axes[at % len(self._axes)] for at in range(count)]
        return [self._scenario(self.plan(split, axis, rng.randrange(10**9))) for axis in axes]

    @asynccontextmanager
    async def open(self, scenario: Scenario, task: Task) -> AsyncIterator[GeneratedWorld[Plan, State]]:
        del scenario  # the task's world determines everything
        plan, index = self.place(task.variables["world"])
        world = plan.world(index, secrets.token_hex(4))
        try:
            yield GeneratedWorld(msgspec.structs.replace(task, variables={"world": world}), plan, self)
        finally:
            self.worlds.forget(world)

    def _scenario(self, plan: Plan) -> Scenario:
        key, tasks = plan.key, []
        for at in range(TASKS):
            variables = {"world": plan.world(at)}
            tasks.append(
                Task(plan.task_id(at), self.instruction(plan, at), scenario=key.text, variables=variables)
            )
        held_out = "" if key.split == "train" else f"{key.axis}."
        return Scenario(key.text, f"{held_out}{plan.form.name}", key.seed, tuple(tasks))

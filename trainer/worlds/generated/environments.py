"""The environments whose worlds are generated from seeds: apps that no policy knows, tasks in plain English."""

import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import lru_cache
from random import Random
from typing import Any, Generic, Literal, TypeAlias, TypeVar

import httpx
import msgspec

from app.apis.api_documents import parse_document
from app.apis.catalog import Catalog
from app.records import Stop, Task, Trajectory
from trainer.environment import Scenario, Split, Verdict
from trainer.worlds.generated import crud_tasks, gym_tasks
from trainer.worlds.generated.crud_tasks import CrudKey, CrudPlan
from trainer.worlds.generated.documents import SUPERVISOR, document_of, supervisor_document
from trainer.worlds.generated.gym_tasks import GymKey, GymPlan
from trainer.worlds.generated.plans import TASKS, Key, Plan, WorldState
from trainer.worlds.generated.services import LiveWorlds, WorldServices

_BASE = "http://worlds"  # served in this process
_NOW = datetime(2026, 6, 1, 9, tzinfo=UTC)

HeldOut: TypeAlias = Literal["all", "domains", "shapes", "compositions", "phrasings"]
HeldOutAxis: TypeAlias = Literal["all", "domains", "shapes", "phrasings"]
AnyPlan = TypeVar("AnyPlan", bound=Plan)


def load_gym(*, held_out: HeldOut = "all") -> "GymEnvironment":
    """The plug-in `gym`. Options as in `GymEnvironment`."""
    return GymEnvironment(held_out)


def load_crud(*, held_out: HeldOutAxis = "all") -> "CrudEnvironment":
    """The plug-in `crud`. Options as in `CrudEnvironment`."""
    return CrudEnvironment(held_out)


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
    def state(self) -> WorldState:
        return self._environment.worlds.get(self.task.variables["world"])

    async def verify(self, trajectory: Trajectory) -> Verdict:
        return self._environment.verify(self.state, trajectory)


class GeneratedEnvironment(Generic[AnyPlan]):
    """Implements `Environment`. Scenarios of validation and test hold out one axis, or all by turns."""

    def __init__(self, name: str, keys: type[Key], plan_of: Callable[[Any], AnyPlan], held_out: str) -> None:
        self._name, self._keys, self._plan_of = name, keys, plan_of
        self._axes = keys.axes if held_out == "all" else (held_out,)
        self.worlds = LiveWorlds(lambda world: WorldState(*self.place(world)))
        services: Any = WorldServices(self.worlds)
        self.client = httpx.AsyncClient(transport=httpx.ASGITransport(services), base_url=_BASE)

    def place(self, world: str) -> tuple[AnyPlan, int]:
        """The scenario and the position of the task whose world has this id. Raises NotFoundError."""
        key, index = self._keys.place_in(world)
        return self._plan_of(key), index

    def catalog(self, plan: AnyPlan) -> Catalog:
        """The apps of a scenario, parsed from the OpenAPI documents that its services stand for."""
        return _catalog_of(self._plan_of, plan.key)

    def verify(self, state: WorldState, trajectory: Trajectory) -> Verdict:
        completed = trajectory.stop is Stop.COMPLETED
        return state.plan.verify(state.index, state.records, trajectory.answer, completed=completed)

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


class GymEnvironment(GeneratedEnvironment[GymPlan]):
    """Scenarios of validation and test hold one thing out of training: the words (`domains`), how the APIs work
    (`shapes`), what is asked (`compositions`), or how it is worded (`phrasings`); `all` are these by turns.
    """

    def __init__(self, held_out: HeldOut = "all") -> None:
        super().__init__("gym", GymKey, gym_tasks.plan_of, held_out)


class CrudEnvironment(GeneratedEnvironment[CrudPlan]):
    """Tasks to create, read, change and delete records. Scenarios of validation and test hold one thing out of
    training: the words (`domains`), how the APIs work (`shapes`), or how tasks are worded (`phrasings`); `all` are
    these by turns.
    """

    def __init__(self, held_out: HeldOutAxis = "all") -> None:
        super().__init__("crud", CrudKey, crud_tasks.plan_of, held_out)


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

"""Apps that keep records as an environment: tasks to create, read, change and delete them, in plain English."""

import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import lru_cache
from random import Random
from typing import Any, Literal, TypeAlias

import httpx
import msgspec

from app.apis.api_documents import parse_document
from app.apis.catalog import Catalog
from app.records import Stop, Task, Trajectory
from trainer.environment import Scenario, Split, Verdict
from trainer.environments.crud.crud_documents import document_of
from trainer.environments.crud.crud_phrases import instruction_of
from trainer.environments.crud.crud_plans import CRUD_AXES, TASKS, CrudKey, CrudPlan, place_in, plan_of
from trainer.environments.crud.crud_records import verify_records
from trainer.environments.crud.crud_services import CrudServices, CrudWorlds
from trainer.environments.gym.gym_documents import SUPERVISOR, supervisor_document

HeldOutAxis: TypeAlias = Literal["all", "domains", "shapes", "phrasings"]

_BASE = "http://crud"
_NOW = datetime(2026, 6, 1, 9, tzinfo=UTC)


def load_environment(*, held_out: HeldOutAxis = "all") -> "CrudEnvironment":
    """The plug-in `crud`. Options as in `CrudEnvironment`."""
    return CrudEnvironment(held_out)


class CrudWorld:
    """One task in a world of its own. Implements `World`."""

    def __init__(self, task: Task, plan: CrudPlan, worlds: CrudWorlds, client: httpx.AsyncClient) -> None:
        self.task = task
        self.plan = plan
        self.client = client
        self.now = _NOW
        self._worlds = worlds

    @property
    def catalog(self) -> Catalog:
        return catalog_in(self.plan.key)

    async def verify(self, trajectory: Trajectory) -> Verdict:
        state = self._worlds.get(self.task.variables["world"])
        completed = trajectory.stop is Stop.COMPLETED
        return verify_records(self.plan, state.index, state.records, trajectory.answer, completed=completed)


class CrudEnvironment:
    """Implements `Environment`.

    Scenarios of validation and test hold one thing out of training: the words (`domains`), how the APIs work
    (`shapes`), or how tasks are worded (`phrasings`); `all` are these by turns.
    """

    def __init__(self, held_out: HeldOutAxis = "all") -> None:
        self._axes = CRUD_AXES if held_out == "all" else (held_out,)
        self._worlds = CrudWorlds()
        services: Any = CrudServices(self._worlds)
        self._client = httpx.AsyncClient(transport=httpx.ASGITransport(services), base_url=_BASE)

    def scenarios(self, split: Split, count: int, seed: int) -> Sequence[Scenario]:
        """A larger count only appends."""
        rng = Random(f"crud {split} {seed}")
        keys = [CrudKey(split, self._axes[at % len(self._axes)], rng.randrange(10**9)) for at in range(count)]
        return [scenario_of(key) for key in keys]

    @asynccontextmanager
    async def open(self, scenario: Scenario, task: Task) -> AsyncIterator[CrudWorld]:
        del scenario  # the task's world determines everything
        key, index = place_in(task.variables["world"])
        plan = plan_of(key)
        world = plan.world(index, secrets.token_hex(4))
        try:
            yield CrudWorld(
                msgspec.structs.replace(task, variables={"world": world}), plan, self._worlds, self._client
            )
        finally:
            self._worlds.forget(world)


def scenario_of(key: CrudKey) -> Scenario:
    plan = plan_of(key)
    tasks = [
        Task(plan.task_id(at), instruction_of(plan, at), scenario=key.text, variables={"world": plan.world(at)})
        for at in range(TASKS)
    ]
    held_out = "" if key.split == "train" else f"{key.axis}."
    return Scenario(key.text, f"{held_out}{plan.form.name}", key.seed, tuple(tasks))


@lru_cache(maxsize=512)
def catalog_in(key: CrudKey) -> Catalog:
    """The apps of a scenario, parsed from the OpenAPI documents that its services stand for."""
    plan = plan_of(key)
    documents = {api.name: document_of(api, _BASE) for api in plan.apis}
    if any(api.shape.auth == "key" for api in plan.apis):
        documents[SUPERVISOR] = supervisor_document([api.name for api in plan.apis], _BASE)
    return Catalog({app: parse_document(app, each) for app, each in documents.items()})

"""The API gym as an environment: generated worlds of apps that no policy knows, and tasks in plain English."""

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
from trainer.environments.gym.final_state import verify_state
from trainer.environments.gym.gym_documents import SUPERVISOR, document_of, supervisor_document
from trainer.environments.gym.gym_plans import AXES, TASKS, ScenarioKey, ScenarioPlan, place_in, plan_of
from trainer.environments.gym.gym_services import GymServices
from trainer.environments.gym.gym_worlds import GymState, GymWorlds
from trainer.environments.gym.instructions import instruction_of

HeldOut: TypeAlias = Literal["all", "domains", "shapes", "compositions", "phrasings"]

_BASE = "http://gym"
_NOW = datetime(2026, 6, 1, 9, tzinfo=UTC)


def load_environment(*, held_out: HeldOut = "all") -> "GymEnvironment":
    """The plug-in `gym`. Options as in `GymEnvironment`."""
    return GymEnvironment(held_out)


class GymWorld:
    """One task in a world of its own. Implements `World`."""

    def __init__(self, task: Task, plan: ScenarioPlan, worlds: GymWorlds, client: httpx.AsyncClient) -> None:
        self.task = task
        self.plan = plan
        self.client = client
        self.now = _NOW
        self._worlds = worlds

    @property
    def catalog(self) -> Catalog:
        return catalog_in(self.plan.key)

    @property
    def state(self) -> GymState:
        return self._worlds.get(self.task.variables["world"])

    async def verify(self, trajectory: Trajectory) -> Verdict:
        return verify_state(self.state, trajectory.answer, completed=trajectory.stop is Stop.COMPLETED)


class GymEnvironment:
    """Implements `Environment`.

    Scenarios of validation and test hold one thing out of training: the words (`domains`), how the APIs work
    (`shapes`), what is asked (`compositions`), or how it is worded (`phrasings`); `all` are these by turns.
    """

    def __init__(self, held_out: HeldOut = "all") -> None:
        self._axes = AXES if held_out == "all" else (held_out,)
        self._worlds = GymWorlds()
        services: Any = GymServices(self._worlds)
        self._client = httpx.AsyncClient(transport=httpx.ASGITransport(services), base_url=_BASE)

    def scenarios(self, split: Split, count: int, seed: int) -> Sequence[Scenario]:
        """A larger count only appends."""
        rng = Random(f"gym {split} {seed}")
        keys = [ScenarioKey(split, self._axes[at % len(self._axes)], rng.randrange(10**9)) for at in range(count)]
        return [scenario_of(key) for key in keys]

    @asynccontextmanager
    async def open(self, scenario: Scenario, task: Task) -> AsyncIterator[GymWorld]:
        del scenario  # the task's world determines everything
        key, index = place_in(task.variables["world"])
        plan = plan_of(key)
        world = plan.world(index, secrets.token_hex(4))
        fresh = msgspec.structs.replace(task, variables={"world": world})
        try:
            yield GymWorld(fresh, plan, self._worlds, self._client)
        finally:
            self._worlds.forget(world)


def scenario_of(key: ScenarioKey) -> Scenario:
    plan = plan_of(key)
    tasks = [
        Task(plan.task_id(at), instruction_of(plan, at), scenario=key.text, variables={"world": plan.world(at)})
        for at in range(TASKS)
    ]
    held_out = "" if key.split == "train" else f"{key.axis}."
    return Scenario(key.text, f"{held_out}{plan.form.name}", key.seed, tuple(tasks))


@lru_cache(maxsize=512)
def catalog_in(key: ScenarioKey) -> Catalog:
    """The apps of a scenario, parsed from the OpenAPI documents that its services stand for."""
    plan = plan_of(key)
    documents = {api.name: document_of(api, _BASE) for api in plan.apis}
    documents[SUPERVISOR] = supervisor_document([api.name for api in plan.apis], _BASE)
    return Catalog({app: parse_document(app, each) for app, each in documents.items()})

"""An environment without APIs: the policy is asked for a text with a multiple of N characters of one kind."""

import string
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import NAMESPACE_URL, uuid5

import httpx

from app.apis.catalog import Catalog
from app.base.values import Task, Trajectory
from trainer.environment import Scenario, Split, Verdict

CHARACTERS = {"train": string.ascii_lowercase, "validation": string.ascii_uppercase, "test": string.digits}


def load_environment(*, tasks: int = 3) -> "CountingEnvironment":
    return CountingEnvironment(tasks)


@dataclass(frozen=True)
class CountingWorld:
    task: Task
    client: httpx.AsyncClient
    catalog: Catalog = Catalog({})  # noqa: RUF009 - frozen
    now: datetime = datetime(2026, 3, 2, tzinfo=UTC)

    async def verify(self, trajectory: Trajectory) -> Verdict:
        divisor = int(self.task.variables["divisor"])
        found = [
            each for turn in trajectory.turns for each in turn.text if each in self.task.variables["characters"]
        ]
        return Verdict(int(len(found) % divisor == 0), 1)


@dataclass(frozen=True)
class CountingEnvironment:
    tasks: int

    def scenarios(self, split: Split, count: int, seed: int) -> Sequence[Scenario]:
        return [self._scenario(split, seed + number) for number in range(count)]

    def _scenario(self, split: Split, seed: int) -> Scenario:
        characters = CHARACTERS[split]
        tasks = []
        for divisor in map(str, range(2, self.tasks + 2)):
            text, variables = (
                f"write some of {characters} in groups of {divisor}",
                {"divisor": divisor, "characters": characters},
            )
            tasks.append(Task(uuid5(NAMESPACE_URL, f"{seed} {text}"), text, variables=variables))
        return Scenario(f"{split} {seed}", split, seed, tuple(tasks))

    @asynccontextmanager
    async def open(self, scenario: Scenario, task: Task) -> AsyncIterator[CountingWorld]:  # noqa: ARG002
        async with httpx.AsyncClient(timeout=300) as client:
            yield CountingWorld(task, client)

"""A world to practise in: it can set up a task from nothing, and it knows when the task is done."""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from typing import Literal, Protocol

import httpx
import msgspec

from app.apis.catalog import Catalog
from app.records import Task, Trajectory

Split = Literal["train", "validation", "test"]


class Verdict(msgspec.Struct, frozen=True):
    """How well a task was done, judged by the final state of the world and the answer alone."""

    passed: int
    total: int
    failures: tuple[str, ...] = ()  # what each failed check saw, for people

    @property
    def fraction(self) -> float:
        return self.passed / self.total

    @property
    def success(self) -> bool:
        return self.passed == self.total


class World(Protocol):
    """One task, set up afresh and thrown away afterwards. Never shared between two rollouts."""

    @property
    def task(self) -> Task: ...

    @property
    def catalog(self) -> Catalog: ...

    @property
    def client(self) -> httpx.AsyncClient:
        """Reaches this world's services: over ASGI in training, over a socket elsewhere."""
        ...

    @property
    def now(self) -> datetime: ...

    async def verify(self, trajectory: Trajectory) -> Verdict: ...


class Scenario(msgspec.Struct, frozen=True):
    """A family of tasks: one template in one seeded setting. Its tasks differ in their details only."""

    id: str
    template: str
    seed: int
    tasks: tuple[Task, ...]


class Environment(Protocol):
    def scenarios(self, split: Split, count: int, seed: int) -> Sequence[Scenario]:
        """Scenarios of one split, the same for the same seed; templates of different splits never mix."""
        ...

    def open(self, scenario: Scenario, task: Task) -> AbstractAsyncContextManager[World]: ...

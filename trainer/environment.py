"""Environments: where a policy is trained and evaluated. Each can set up a task from nothing and verify it.

An environment is a plug-in: a function `load_environment(*, option: type = default, ...) -> Environment`,
registered in the entry-point group `sage.environments` or named "module:attribute". Its keyword parameters are its
options. If it has an attribute `installed`, a function, workers report it while that is true.
"""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from typing import Literal, Protocol, runtime_checkable

import httpx
import msgspec

from app.apis.calls.gateway import Gateway
from app.apis.catalog import Catalog
from app.base import plugins
from app.base.plugins import PluginSpec, load_options
from app.base.values import Task, Trajectory

GROUP = "sage.environments"

Split = Literal["train", "validation", "test"]


class Verdict(msgspec.Struct, frozen=True):
    """How well a task was done, judged by the final state of the world and by the answer alone."""

    passed: int
    total: int
    failures: tuple[str, ...] = ()  # of each failed check: expected and found, for people
    known: bool = True  # False: nobody can tell, so it counts neither as success nor as failure
    needed: float = 1.0  # the fraction that is a success

    @property
    def fraction(self) -> float:
        return self.passed / self.total

    @property
    def success(self) -> bool:
        return self.fraction >= self.needed


class World(Protocol):
    """One task, set up for a single rollout and discarded after it."""

    @property
    def task(self) -> Task: ...

    @property
    def catalog(self) -> Catalog: ...

    @property
    def client(self) -> httpx.AsyncClient:
        """Sends requests to this world's services, over ASGI or a socket."""
        ...

    @property
    def now(self) -> datetime: ...

    async def verify(self, trajectory: Trajectory) -> Verdict: ...


@runtime_checkable
class OpensGateway(Protocol):
    """A world that does not simply send calls with its client."""

    def open_gateway(self, max_calls: int) -> Gateway: ...


class Scenario(msgspec.Struct, frozen=True):
    """A family of tasks: one template under one seed. Its tasks differ in details only."""

    id: str
    template: str
    seed: int
    tasks: tuple[Task, ...]
    kind: str = ""  # of its tasks, if other scenarios have such tasks, too

    @property
    def label(self) -> str:
        """Under which its skills are kept and found."""
        return self.kind or self.id


class Environment(Protocol):
    """A source of scenarios, and of a fresh world for each rollout of their tasks."""

    def scenarios(self, split: Split, count: int, seed: int) -> Sequence[Scenario]:
        """Scenarios of one split, the same for the same seed. No template belongs to two splits."""
        ...

    def open(self, scenario: Scenario, task: Task) -> AbstractAsyncContextManager[World]: ...


def open_environment(text: str) -> Environment:
    """The environment that a setting names, such as "name?site=0".

    Raises InvalidError for an unknown name, and for an option that is unknown, missing or does not fit.
    """
    spec = PluginSpec.parse(text)
    load = plugins.load(GROUP, spec.name)
    environment: Environment = load(**load_options(load, spec))
    return environment

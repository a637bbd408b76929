"""The sandbox that runs the agent's code: failing code is an observation, a failing sandbox is an error. And the
wall clock of a run, which stands still while a host call waits for a time that an API named.
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Protocol

import msgspec

from app.base.errors import HostError
from app.base.values import CallResponse, Json, SkillCall, Use


class RunStop(StrEnum):
    """The way one run of code ended."""

    OK = "ok"
    ERROR = "error"  # it raised; `error` has the traceback
    CPU = "cpu"
    WALL = "wall"
    MEMORY = "memory"
    CALLS = "calls"  # the call budget is spent
    CRASH = "crash"  # the process died


class SessionLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of one session."""

    cpu_seconds: float = 5.0  # per run: raises TimeoutError inside; twice that kills
    session_cpu_seconds: float = 600.0  # of all runs and what lies between them: kills
    wall_seconds: float = 60.0  # per run, host calls included, but not their waits for a `Retry-After`
    memory_bytes: int = 256 << 20
    calls: int = 500  # host calls per session
    frame_bytes: int = 4 << 20  # the largest message either way
    output_chars: int = 100_000  # kept of one run's output
    project: str = ""  # whose sessions share limits of memory and processes, where control groups allow


class Observation(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one run of code."""

    stdout: str
    error: str | None = None  # the traceback, framework frames removed
    stop: RunStop = RunStop.OK
    alive: bool = True  # False: the session is gone, open a new one
    calls: int = 0
    uses: tuple[Use, ...] = ()
    skill_calls: tuple[SkillCall, ...] = ()
    cpu_ms: float = 0.0


@dataclass(frozen=True)
class EnteredSkill:
    """A call of an offered skill in progress. The host entered it, so no code of the sandbox can forge one."""

    name: str
    arguments: dict[str, Json]  # by parameter, as JSON
    exact: bool = False  # they are no texts for other values
    calls: list[int] = field(default_factory=list)  # the `seq` of each call made in it, by a HostCall that records


@dataclass(frozen=True)
class Answer:
    """The whole answer to a call. Its value is JSON, or bytes."""

    value: Json
    status: int | None = None  # None if no HTTP response led to it
    headers: Mapping[str, str] = field(default_factory=dict)
    next_page: dict[str, Json] | str | None = None  # arguments that differ for it, or why it cannot be asked for
    remark: str = ""  # what the value does not show; the observation has it


class RefusalError(HostError):
    """An API answered with a status that is an error. The sandboxed code may look at the response.

    `challenge` is its header WWW-Authenticate, which is not for the sandbox.
    """

    def __init__(self, message: str, response: CallResponse, challenge: str = "") -> None:
        super().__init__("ApiError", message)
        self.response = response
        self.challenge = challenge

    @property
    def status(self) -> int:
        return self.response.status


class HostCall(Protocol):
    """The only way out of the sandbox. JSON and bytes only. Raises HostError for errors that the agent's code
    should see.
    """

    async def __call__(
        self, api: str, args: list[Json], kwargs: dict[str, Json], *, skill: EnteredSkill | None = None
    ) -> Json | Answer:
        """`skill` is the offered skill that makes the call; None if the agent's own code does."""
        ...


class Function(msgspec.Struct, frozen=True):
    """An offered function, as source, under its own label in tracebacks."""

    name: str
    source: str


class Session(Protocol):
    async def run(self, code: str) -> Observation:
        """Run code in the session's namespace. Raises SandboxError only if the sandbox itself is broken."""
        ...

    async def close(self) -> None: ...


class Sandbox(Protocol):
    async def open(
        self,
        apis: Mapping[str, Sequence[str]],
        call: HostCall,
        limits: SessionLimits,
        *,
        prelude: Sequence[Function] = (),
        seed: int | None = None,
        now: datetime | None = None,
    ) -> Session:
        """A new session. `apis` lists the operations of each app, and as "former=name" other names that code may
        call them by; `now` freezes the clock.

        Each function of the prelude runs in a process of its own, from its first call to the end of the session;
        its arguments and results are copied. In the session it can be called like any other.
        """
        ...

    async def load_error(self, function: Function, limits: SessionLimits) -> str | None:
        """Load a function in a process that is thrown away. The reason why it cannot be offered, or None."""
        ...


_running: ContextVar[asyncio.Timeout | None] = ContextVar("run_clock", default=None)


@contextmanager
def running(clock: asyncio.Timeout) -> Iterator[None]:
    """Let the host calls made within stop the clock."""
    token = _running.set(clock)
    try:
        yield
    finally:
        _running.reset(token)


@contextmanager
def stopped() -> Iterator[None]:
    """The run has as much time left afterwards as before. Does nothing outside a run."""
    clock = _running.get()
    end = None if clock is None or clock.expired() else clock.when()
    if clock is None or end is None:
        yield
        return
    loop = asyncio.get_running_loop()
    left = end - loop.time()
    clock.reschedule(None)
    try:
        yield
    finally:
        clock.reschedule(loop.time() + left)

"""Where the agent's code runs. Code that fails is an observation; a sandbox that fails is an error."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Protocol

import msgspec

from app.records import Json, Use


class RunStop(StrEnum):
    """How one run of code ended."""

    OK = "ok"
    ERROR = "error"  # it raised; the traceback is in `error`
    CPU = "cpu"
    WALL = "wall"
    MEMORY = "memory"
    CALLS = "calls"  # the call budget is spent
    CRASH = "crash"  # the process died of itself


class SessionLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What one session may spend."""

    cpu_seconds: float = 5.0  # per run: raises TimeoutError inside; twice that kills
    wall_seconds: float = 60.0  # per run, time spent in host calls included
    memory_bytes: int = 256 << 20
    calls: int = 500  # host calls per session
    frame_bytes: int = 4 << 20  # the largest message either way
    output_chars: int = 100_000  # kept of one run's output


class Observation(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one run of code."""

    stdout: str
    error: str | None = None  # the traceback, framework frames removed
    stop: RunStop = RunStop.OK
    alive: bool = True  # False: the session is gone, open a new one
    calls: int = 0
    uses: tuple[Use, ...] = ()
    cpu_ms: float = 0.0


class HostCall(Protocol):
    """The one way out of the sandbox. JSON only. Raises HostError for what the agent's code should see raised."""

    async def __call__(self, api: str, args: list[Json], kwargs: dict[str, Json]) -> Json: ...


class Function(msgspec.Struct, frozen=True):
    """A function the session starts with, as plain source under a label of its own in tracebacks."""

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
        """A new session. `apis` names the operations of each app; `now` freezes the clock the code sees."""
        ...

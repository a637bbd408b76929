"""The time of a task by phase, its spans, and the metrics that a process counts itself.

Phases nest, and a moment counts for the innermost one only: the seconds of all phases add up to the time
measured. Without a running task, phases and spans cost nothing and record nothing. No label of a metric names a
task, project, skill or caller.
"""

import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from enum import StrEnum
from functools import wraps
from typing import Any, ParamSpec, Protocol, TypeVar

from prometheus_client import Counter, Gauge, Histogram, start_http_server

from app.base.errors import SettingError

P = ParamSpec("P")
T = TypeVar("T")
_Function = Callable[P, Coroutine[Any, Any, T]]

Attributes = dict[str, str | int | float | bool | list[str]]
"""Attributes of a span: never a secret, nor the content of a task."""


class Phase(StrEnum):
    """What a task spends its time with."""

    QUEUE = "queue"  # until a runner claims it
    INTERRUPTED = "interrupted"  # earlier attempts, and the waits between attempts
    PROMPT = "prompt"  # reading the release and its APIs, finding skills, rendering the prompt
    ENGINE = "engine"  # generating, the wait for a model server included
    SANDBOX = "sandbox"  # running code
    CALLS = "calls"  # API calls
    JOURNAL = "journal"  # recording turns, calls and the result
    CHECK = "check"  # scoring
    SKILLS = "skills"  # turning functions into skills
    OTHER = "other"  # none of these


class Span(Protocol):
    """An operation under way, as others see it."""

    def set(self, attributes: Attributes) -> None: ...

    def fail(self, kind: str) -> None:
        """It failed with an error of this kind."""


class SpanSource(Protocol):
    """Opens spans as children of the one that is open."""

    def span(self, name: str, attributes: Attributes, *, client: bool = False) -> AbstractContextManager[Span]: ...


class PhaseClock:
    """The time of one task. `seconds` has each phase that was entered. Counts until it is forgotten."""

    def __init__(self, spans: SpanSource | None = None) -> None:
        self.seconds: dict[str, float] = {}
        self.notes: Attributes = {}  # of the task's own span
        self.spans = spans
        self._stack: list[Phase] = [Phase.OTHER]
        self._since = time.perf_counter()

    def enter(self, phase: Phase) -> None:
        self._count()
        self._stack.append(phase)

    def leave(self) -> None:
        self._count()
        self._stack.pop()

    def add(self, phase: Phase, seconds: float) -> None:
        """Time that passed before this clock started."""
        self.seconds[phase] = self.seconds.get(phase, 0.0) + max(seconds, 0.0)

    def read(self) -> dict[str, float]:
        """The seconds of each phase until now, to a tenth of a millisecond."""
        self._count()
        return {phase: round(self.seconds[phase], 4) for phase in Phase if phase in self.seconds}

    def _count(self) -> None:
        now = time.perf_counter()
        phase = self._stack[-1]
        self.seconds[phase] = self.seconds.get(phase, 0.0) + now - self._since
        self._since = now


_clock: ContextVar[PhaseClock | None] = ContextVar("phase_clock", default=None)


@contextmanager
def running(clock: PhaseClock) -> Iterator[None]:
    """Everything called within it is part of this clock's task."""
    token = _clock.set(clock)
    try:
        yield
    finally:
        _clock.reset(token)


@contextmanager
def phase(which: Phase) -> Iterator[None]:
    clock = _clock.get()
    if clock is None:
        yield
        return
    clock.enter(which)
    try:
        yield
    finally:
        clock.leave()


def timed(which: Phase) -> Callable[[_Function[P, T]], _Function[P, T]]:
    """The calls of a coroutine function are a phase."""

    def decorate(function: _Function[P, T]) -> _Function[P, T]:
        @wraps(function)
        async def call(*args: P.args, **kwargs: P.kwargs) -> T:
            with phase(which):
                return await function(*args, **kwargs)

        return call

    return decorate


def phase_seconds() -> dict[str, float]:
    """Of the running task, until now."""
    clock = _clock.get()
    return {} if clock is None else clock.read()


def note(attributes: Attributes) -> None:
    """Add attributes to the span of the running task."""
    clock = _clock.get()
    if clock is not None:
        clock.notes.update(attributes)


class _NoSpan:
    """Of a task that is not traced."""

    def set(self, attributes: Attributes) -> None:
        del attributes

    def fail(self, kind: str) -> None:
        del kind


_NO_SPAN = nullcontext[Span](_NoSpan())


def span(name: str, attributes: Attributes, *, client: bool = False) -> AbstractContextManager[Span]:
    """`client`: the operation is a request to another process."""
    clock = _clock.get()
    if clock is None or clock.spans is None:
        return _NO_SPAN
    return clock.spans.span(name, attributes, client=client)


_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_SCORES = (0.0, 0.25, 0.5, 0.75, 1.0)

TASK_OUTCOMES = Counter(
    "sage_task_outcomes_total", "Tasks that ended, by state and stop reason", ["state", "stop_reason"]
)
TASK_SECONDS = Histogram("sage_task_duration_seconds", "Time of tasks from submission to end", buckets=_SECONDS)
PHASE_SECONDS = Histogram(
    "sage_task_phase_seconds", "Time of a task that ended, by phase", ["phase"], buckets=_SECONDS
)
TASK_SCORES = Histogram(
    "sage_task_score", "Scores by checks and judges, by the state of the release", ["release"], buckets=_SCORES
)
TASK_ATTEMPTS = Counter("sage_task_attempts_total", "Tasks that this runner began to execute, by cause", ["cause"])
LEASES_LOST = Counter("sage_task_leases_lost_total", "Tasks that another runner claimed while this one had them")
TURNS = Counter("sage_turns_total", "Turns of tasks that ended")
TOKENS = Counter("sage_tokens_total", "Tokens of tasks that ended", ["type"])
API_CALLS = Counter("sage_api_calls_total", "API calls of tasks that ended", ["result"])
SKILL_OFFERS = Counter("sage_skill_offers_total", "Skills offered to tasks that ended, by use", ["use"])
SWAP_SECONDS = Histogram(
    "sage_adapter_swap_seconds", "Time to load and verify an adapter", ["result"], buckets=_SECONDS
)
SKILL_REPAIRS = Counter(
    "sage_skill_repairs_total", "Skills that an API change touched, by what came of them", ["outcome"]
)
RETENTION_DELETED = Counter(
    "sage_retention_deleted_total", "Rows deleted because their project keeps them no longer", ["kind"]
)
RETENTION_HELD = Gauge(
    "sage_retention_held", "Projects with rows that are due but still needed, by a run for example", ["kind"]
)
TASKS_ERASED = Counter("sage_tasks_erased_total", "Tasks erased by request")
ADAPTERS = Gauge("sage_adapters", "Adapters that this process knows to be loaded, or cannot load", ["state"])


@contextmanager
def metrics_server(host: str, port: int) -> Iterator[None]:
    """Serves the metrics of this process. 0 is no port. Raises SettingError if it cannot be listened on."""
    if not port:
        yield
        return
    try:
        server, thread = start_http_server(port, host)
    except OSError as error:
        raise SettingError(f"port {port} on {host} cannot be used ({error}): set SAGE_METRICS_PORT") from error
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()

"""Composes a runner process: it executes tasks and their shadows, and can be replaced at any time."""

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from functools import partial
from typing import NamedTuple

import httpx
import structlog
from uvicorn.loops.auto import auto_loop_factory

from app.agent.rollout import Agent, RolloutLimits
from app.apis.calls.network import Certificates, OwnServices, open_client
from app.apis.mcp.connection import MAX_SESSIONS, Changed, McpServers, read_commands
from app.base import plugins
from app.base.errors import AppError, SettingError
from app.base.judge import NamedJudge, load_judge
from app.base.loop import LivenessReporter
from app.base.processes import freeze_memory, lower_priority, new_owner
from app.base.settings import Settings
from app.base.telemetry import metrics_server
from app.db.disk_space import DiskSpace
from app.db.notify import NotificationListener
from app.engine.client import HttpEngine
from app.engine.protocol import Engine, RetryingEngine
from app.machine.parts import Parts, load_parts, open_listener, open_services
from app.projects.settings import Limits
from app.releases.hosted_models import HostedModels
from app.releases.refresh import mark_changed
from app.releases.swap import AdapterLoader
from app.sandbox.cgroup import SharedLimits
from app.sandbox.forked_sandbox import ForkedSandbox
from app.sandbox.protocol import Sandbox
from app.tasks.api_trials import ApiTrials
from app.tasks.execution import SpansOf, TaskExecutor
from app.tasks.journal import SentMarks
from app.tasks.repair import SkillRepairs
from app.tasks.runner import (
    CrashFile,
    DiskWatch,
    MemoryWatch,
    Runner,
    RunnerOptions,
    RunnerPresence,
    Watchdog,
    limit_memory,
)
from app.tasks.shadows import ShadowRunner

log = structlog.get_logger(__name__)

WATCHDOG_SECONDS = 10.0  # for which the event loop may compute or wait without a pause

_CONNECTIONS = 10  # to the database, kept open
_NICENESS = 5  # the API and the database go first
_PARTS_OF_TASKS = ("sage.api_protocols", "sage.skill_checks")


class RunnerFailedError(AppError):
    """The process must be replaced."""


def main() -> None:
    """Execute tasks until SIGINT or SIGTERM; those that do not end within the settings' time are handed back.

    Imports nothing later: an import during a task would hold up all tasks of the process. Raises SettingError and
    ModelError like the API; InvalidError for a part that cannot be imported; SandboxError if generated code cannot
    be confined here; and RunnerFailedError when the process has outgrown its memory.
    """
    for group in _PARTS_OF_TASKS:
        plugins.load_all(group)
    parts = load_parts()
    judge = load_judge(parts.settings.judge)
    settings = parts.settings
    lower_priority(_NICENESS)
    with (
        metrics_server(settings.host, settings.metrics_port),
        _open_spans(settings) as spans_of,
        asyncio.Runner(loop_factory=auto_loop_factory()) as loop,
    ):
        loop.run(_run(parts, judge, spans_of))


async def _run(parts: Parts, judge: NamedJudge | None, spans_of: SpansOf | None) -> None:
    stop = _StopSignals()
    life = LivenessReporter(parts.settings.notify_socket)
    watchdog = Watchdog(WATCHDOG_SECONDS)
    owner = new_owner()
    stuck_seconds = WATCHDOG_SECONDS / 2  # a sign before the watchdog bites
    crashes = CrashFile(parts.settings.data_dir / "runners", owner, stuck_seconds)
    async with crashes, watchdog, life, _open(parts, judge, spans_of, owner) as opened:
        memory, sessions = MemoryWatch(limit_memory(parts.settings), stop.at_once), opened.executor.sessions
        prompt = opened.executor.agent.prompt_hash
        presence = RunnerPresence(
            sessions, opened.runner, opened.sandbox, memory, opened.engine.occupancy, prompt, crashes
        )
        async with memory, presence:
            freeze_memory()
            log.info("a runner started", runner=opened.runner.owner, sandbox=opened.sandbox.describe())
            await stop.first.wait()
            await _drain(opened.runner, presence, parts.settings.drain_seconds, stop.second)
            if memory.excess:
                await opened.runner.abandon()
    if memory.excess:
        raise RunnerFailedError(memory.excess)


async def _drain(runner: Runner, presence: RunnerPresence, seconds: float, stop: asyncio.Event) -> None:
    """Let tasks end, until `stop` is set. The others learn at once that this runner claims nothing more."""
    runner.draining = True
    presence.wake()
    if runner.running:
        log.info("a runner drains", runner=runner.owner, tasks=runner.running, seconds=seconds)
    waiting = [asyncio.create_task(runner.drain(seconds)), asyncio.create_task(stop.wait())]
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    for each in waiting:
        each.cancel()


@asynccontextmanager
async def open_mcp_servers(settings: Settings, changed: Changed | None = None) -> AsyncIterator[McpServers]:
    """With a client of its own: the event streams of idle sessions take no connections from other calls."""
    commands = read_commands(settings.mcp_commands)
    async with (
        _api_client(settings, more=2 * MAX_SESSIONS) as client,  # a stream each, and a request that ends it
        McpServers(client, commands, changed) as servers,
    ):
        yield servers


class _Opened(NamedTuple):
    executor: TaskExecutor
    runner: Runner
    sandbox: ForkedSandbox
    engine: HttpEngine


@asynccontextmanager
async def _open(
    parts: Parts, judge: NamedJudge | None, spans_of: SpansOf | None, owner: str
) -> AsyncIterator[_Opened]:
    """Closed in reverse order, so the runner goes first and hands back its unfinished tasks."""
    settings = parts.settings
    async with AsyncExitStack() as stack:
        shared = SharedLimits(memory_bytes=settings.sandbox_project_memory_mb << 20)
        sandbox = await stack.enter_async_context(ForkedSandbox(shared=shared))  # first: it may miss what it needs
        services = await stack.enter_async_context(open_services(parts, connections=_CONNECTIONS))
        sessions = services.database.sessions
        loader = AdapterLoader(services.engine, sessions, services.adapters)  # loads what a task needs, not ahead
        client = await stack.enter_async_context(_api_client(settings))
        agent = _agent(parts, RetryingEngine(loader), sandbox, services.engine)
        mcp = await stack.enter_async_context(open_mcp_servers(settings, mark_changed(sessions)))
        hosted = partial(HostedModels.of(settings).open, sessions)
        marks = SentMarks.open(settings.data_dir / "runners" / "sent")
        executor = TaskExecutor(
            sessions, agent, services.library, client, settings, judge, spans_of, mcp, marks, hosted
        )
        listener = await stack.enter_async_context(open_listener(settings))
        runner = await _start_runner(stack, executor, listener, services.engine, owner)
        yield _Opened(executor, runner, sandbox, services.engine)


def _open_spans(settings: Settings) -> AbstractContextManager[SpansOf | None]:
    if not settings.otel_exporter_otlp_endpoint:
        return nullcontext()
    try:
        from app.base.otlp import otlp_spans  # noqa: PLC0415  only the extra has what it imports
    except ImportError as error:
        raise SettingError(
            "OTEL_EXPORTER_OTLP_ENDPOINT needs the extra otel: pip install 'sage-server[otel]'"
        ) from error
    return otlp_spans(settings.otel_exporter_otlp_endpoint)


def _agent(parts: Parts, engine: Engine, sandbox: Sandbox, servers: HttpEngine) -> Agent:
    limits, temperature = RolloutLimits.of(parts.settings), parts.settings.temperature
    return Agent(engine, parts.tokenizer, parts.profile, sandbox, limits, temperature, lambda: servers.max_length)


async def _start_runner(
    stack: AsyncExitStack, executor: TaskExecutor, listener: NotificationListener, engine: HttpEngine, owner: str
) -> Runner:
    """The runner of tasks and, while there is room, of their shadows and of the trials of APIs."""
    settings = executor.settings
    options = RunnerOptions(
        concurrency=settings.max_tasks_in_flight,
        lease_seconds=settings.lease_seconds,
        prompt=executor.agent.prompt_hash,
        limits=Limits.defaults(settings),
    )
    runner = Runner(executor.sessions, executor.execute, options, owner)
    runner.answers = lambda: engine.answers
    await stack.enter_async_context(DiskWatch(runner, DiskSpace(executor.sessions, settings)))
    await stack.enter_async_context(runner)
    listener.on_task(runner.wake)
    shadows = ShadowRunner(executor.sessions, executor, lambda: runner.has_room, owner=runner.owner)
    trials = ApiTrials(executor.sessions, executor, owner=runner.owner, may=lambda: runner.has_room)
    runner.is_shared = lambda: shadows.replaying or trials.running
    listener.on_release((await stack.enter_async_context(shadows)).wake)
    repairs = SkillRepairs(executor.sessions, executor, owner=runner.owner, may=lambda: not runner.draining)
    await stack.enter_async_context(repairs)
    await stack.enter_async_context(trials)
    return runner


def _api_client(settings: Settings, more: int = 0) -> httpx.AsyncClient:
    """With `more` connections than calls need."""
    tasks = settings.max_tasks_in_flight
    return open_client(
        allow_private_hosts=settings.allow_private_hosts,
        connections=8 * tasks + more,
        kept=2 * tasks,
        certificates=Certificates.of(settings),
        own=OwnServices.of(settings),
    )


class _StopSignals:
    """Set by the first and the second SIGINT or SIGTERM. Further ones are ignored."""

    def __init__(self) -> None:
        self.first, self.second = asyncio.Event(), asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, self._next)

    def at_once(self) -> None:
        self.first.set()
        self.second.set()

    def _next(self) -> None:
        (self.second if self.first.is_set() else self.first).set()

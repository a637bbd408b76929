"""Claims tasks from the queue and executes several at once, each under a lease that is renewed.

A task that is under way here is never claimed here again: after a stall, its claim is renewed if nobody else
has claimed it. If somebody has, its rollout is stopped, and the death of this runner that was counted is
withdrawn. A suspect, a task during which a runner died, is executed alone: it is claimed and held until the
tasks under way have ended, while no other is claimed.

The process reports itself to the others and frees the tasks of runners that died on this machine; it ends if it
is stuck, is replaced if it grows too large, claims nothing while a disk is nearly full, and leaves a trace of
how it ended.
"""

import asyncio
import faulthandler
import os
import resource
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from contextvars import copy_context
from pathlib import Path
from typing import Any, BinaryIO, Self
from uuid import UUID

import msgspec
import structlog
from sqlalchemy.ext.asyncio import AsyncSession

from app.agent.rollout import StopSignal
from app.base import telemetry
from app.base.errors import ConflictError, HostError, SandboxError, SettingError, first_line
from app.base.files import remove_old
from app.base.guarded_output import dropped_lines
from app.base.loop import UNRESPONSIVE, Loop, Looping, faults_by_part, running_loops
from app.base.processes import is_gone, new_owner, pid_space
from app.base.settings import Settings
from app.base.values import Json
from app.db import runners, tables
from app.db.database import TRANSIENT, Sessions, autocommit, direct
from app.db.disk_space import DiskSpace
from app.db.lease import new_claim
from app.db.runners import CLAIMS, DISK, ESSENTIAL, HOST, SANDBOX, RunnerReport
from app.engine.dispatch import Occupancy
from app.projects.settings import Limits
from app.releases import store as releases
from app.releases import trials_store
from app.sandbox.forked_sandbox import ForkedSandbox
from app.sandbox.protocol import SessionLimits
from app.tasks import queue
from app.tasks.execution import PostponedError, count_attempt
from app.tasks.journal import DatabaseContact

log = structlog.get_logger(__name__)

Execute = Callable[[tables.Task, str, StopSignal], Coroutine[None, None, None]]
"""Executes a task for a claim and writes how it ended. If cancelled, it leaves the task resumable."""

_STUCK_SECONDS = 30.0  # of one round: nothing is claimed any more
_CANCEL_SECONDS = 0.5  # between two checks for tasks to cancel
_PULSES = 4  # within the seconds after which the event loop counts as stuck
_PULSE_SECONDS = 0.25  # of the event loop: so often that threads on many processors compute little meanwhile
_LOOKS = 8  # of the watchdog, within the seconds after which it bites
_MEMORY_SECONDS = 0.5  # between two looks at the memory
_FULL = 0.9  # of the limit: the process is replaced before allocations fail
_REPORT_SECONDS = 1.0
_SANDBOX_SECONDS = 15.0  # between two checks that a session opens
_DISK_SECONDS = 1.0  # between two looks at the disks


class RunnerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Concurrency and intervals of a runner."""

    concurrency: int = 16
    lease_seconds: float = 30.0
    limits: Limits = Limits()  # of projects that have none of their own
    poll_seconds: float = 1.0  # between polls of an empty queue, unless woken
    grace_seconds: float = 5.0  # on leaving, for turns whose code is running
    prompt: str | None = None  # hash of the one that tasks are executed with
    postpone_seconds: float = 10.0  # until what failed a task, through no fault of its own, is tried again


class _Execution(msgspec.Struct, frozen=True):
    claim: str  # the owner of the task
    task: tables.Task
    suspect: bool
    stop_signal: StopSignal
    work: asyncio.Task[None]


class _Dropped(msgspec.Struct, frozen=True):
    owner: str  # the claim
    seconds: float  # until it may go on
    sandbox_failures: int = 0
    broken_answers: int = 0


class Runner:
    """Use it as an async context manager. Leaving hands unfinished tasks back, for other runners to resume."""

    def __init__(
        self,
        sessions: Sessions,
        execute: Execute,
        options: RunnerOptions = RunnerOptions(),  # noqa: B008  frozen
        owner: str = "",
    ) -> None:
        """`owner` is a name of `new_owner`, by default another one."""
        self.owner = owner or new_owner()
        self.faults: dict[str, str] = {}  # by part: while there is one, no task is claimed
        self.draining = False  # it claims nothing more
        self.is_shared: Callable[[], bool] = lambda: False  # this process does other work that might end it
        self._sessions = sessions
        self._execute = execute
        self._options = options
        self._executions: dict[UUID, _Execution] = {}
        self.answers: Callable[[], bool] = lambda: True  # a model server does; hosted models need none
        self._dropped: dict[UUID, _Dropped] = {}  # ended without a result, to be handed back
        self._taken_over: list[tables.Task] = []  # while this runner stalled: its death was counted
        self._held_off: dict[UUID, float] = {}  # projects, until when on the event loop's clock
        self._short_until = 0.0  # the host has run out of something, on the event loop's clock
        self._one_ended = asyncio.Event()
        self._extend_at = 0.0  # on the event loop's clock
        lease = options.lease_seconds
        self._contact = DatabaseContact(lease)
        poll = min(options.poll_seconds, lease / 6)  # often enough to keep up `_contact`
        guarded: dict[str, Any] = {"expected": TRANSIENT, "part": CLAIMS, "limit": _STUCK_SECONDS}
        self._claims = Loop("claim tasks", self._claim, poll, **guarded)
        self._leases = Loop("renew task leases", self._keep, min(_CANCEL_SECONDS, lease / 3), **guarded)

    @property
    def running(self) -> int:
        return len(self._executions)

    @property
    def capacity(self) -> int:
        return self._options.concurrency

    @property
    def has_room(self) -> bool:
        """It may execute one more task beside those under way, whatever its policy."""
        return self._is_free and self.answers()

    @property
    def _is_free(self) -> bool:
        suspected = any(execution.suspect for execution in self._executions.values())
        full = len(self._executions) >= self._options.concurrency
        return not (full or suspected or self.draining or self.faults)

    def wake(self) -> None:
        """Poll the queue now. A missed call costs a moment, never a task."""
        self._claims.wake()

    async def __aenter__(self) -> Self:
        await self._claims.__aenter__()
        await self._leases.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._claims.stop()  # claim nothing more, but keep the leases
        for execution in self._executions.values():
            execution.stop_signal.suspend()
        works = [execution.work for execution in self._executions.values()]
        if works:
            await asyncio.wait(works, timeout=self._options.grace_seconds)
            for work in works:
                work.cancel()
            await asyncio.wait(works)
        await self._leases.stop()
        try:
            async with self._sessions.begin() as session:
                await queue.hand_back(session, self.owner)
        except TRANSIENT as error:
            log.warning("tasks wait until their leases expire", cause=first_line(error))

    async def drain(self, seconds: float) -> None:
        """Claim nothing more, and wait until the tasks under way have ended, for so long at most."""
        self.draining = True
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._executions:
                    self._one_ended.clear()
                    await self._one_ended.wait()

    async def abandon(self) -> None:
        """Claim nothing more, and let other runners execute what this one has: some of it may have harmed this
        process, so it counts as a death.
        """
        await self._claims.stop()
        for execution in self._executions.values():
            execution.stop_signal.released = True
        async with self._sessions.begin() as session:
            await abandon_all(session, self.owner)
        for execution in self._executions.values():
            execution.work.cancel()

    async def _claim(self) -> float | None:
        """Return 0 while there may be more to claim; None at an empty queue, or when there is no room. While no
        model server answers, tasks of hosted policies are claimed alone.
        """
        if not self._is_free:
            return None
        claim, options, now = new_claim(self.owner), self._options, asyncio.get_running_loop().time()
        self._held_off = {project: until for project, until in self._held_off.items() if until > now}
        abandoned, ours = self._contact.is_proof, self._executions.keys() | self._dropped.keys()
        async with autocommit(self._sessions) as session:
            held_off = list(self._held_off)
            if not self.answers():
                held_off += await releases.local_projects(session)
            task = await queue.claim(
                session,
                claim,
                options.lease_seconds,
                options.limits,
                abandoned=abandoned,
                ours=ours,
                held_off=held_off,
                prompt=options.prompt,
            )
        self._contact.confirm()
        if task is None:
            return None
        self._start(task, claim)
        return 0

    def _start(self, task: tables.Task, claim: str) -> None:
        count_attempt(task)
        suspect, stop_signal = queue.is_suspect(task), StopSignal(cancelled=task.cancel_requested)
        execute = self._execute_alone if suspect else self._execute
        context = copy_context()  # in which its end is logged too: see `mask_logs`
        work = asyncio.create_task(execute(task, claim, stop_signal), name=f"task {task.id}", context=context)
        self._executions[task.id] = _Execution(claim, task, suspect, stop_signal, work)
        work.add_done_callback(lambda done: self._drop(task.id, done), context=context)

    async def _execute_alone(self, task: tables.Task, claim: str, stop_signal: StopSignal) -> None:
        log.warning("a runner died during this task, it is executed alone", task=str(task.id), deaths=task.deaths)
        while not stop_signal.cancelled and (len(self._executions) > 1 or self.is_shared()):
            self._one_ended.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._options.poll_seconds):
                    await self._one_ended.wait()
        if stop_signal.suspended:
            return
        try:
            async with self._sessions.begin() as session:
                await queue.mark_alone(session, task.id, claim)
        except ConflictError:
            stop_signal.lost = True
            return
        task.alone = True
        await self._execute(task, claim, stop_signal)

    def _drop(self, task_id: UUID, work: asyncio.Task[None]) -> None:
        execution = self._executions.pop(task_id)
        if execution.stop_signal.lost and not execution.stop_signal.released:
            telemetry.LEASES_LOST.inc()
            self._taken_over.append(execution.task)
        self._one_ended.set()
        self._claims.wake()
        if not work.cancelled() and (error := work.exception()) is not None:
            self._dropped[task_id] = self._why_dropped(task_id, execution, error)

    def _why_dropped(self, task_id: UUID, execution: _Execution, error: BaseException) -> _Dropped:
        if not isinstance(error, PostponedError):
            log.error("a task was dropped, it will be resumed", task=str(task_id), exc_info=error)
            return _Dropped(execution.claim, 0)
        seconds = self._options.postpone_seconds
        log.warning("a task is postponed", task=str(task_id), seconds=seconds, cause=str(error))
        if error.shortage is not None:
            self.faults[HOST] = error.shortage
            self._short_until = asyncio.get_running_loop().time() + seconds
        elif not error.sandbox:
            self._held_off[execution.task.project_id] = asyncio.get_running_loop().time() + seconds
        return _Dropped(execution.claim, seconds, int(error.sandbox), error.broken_answers)

    async def _keep(self) -> None:
        """Renew the leases when they are due, otherwise cancel tasks whose cancellation was requested."""
        now = asyncio.get_running_loop().time()
        if HOST in self.faults and now >= self._short_until:
            del self.faults[HOST]  # the next task shows whether it still lacks something
            self._claims.wake()
        for task_id, dropped in list(self._dropped.items()):
            async with self._sessions.begin() as session:
                await queue.put_back(session, task_id, **msgspec.structs.asdict(dropped))
            del self._dropped[task_id]
        for task in list(self._taken_over):
            async with self._sessions.begin() as session:
                await queue.withdraw_death(session, task.id, alone=task.alone)
            self._taken_over.remove(task)
        if not self._executions:
            return
        if now < self._extend_at:
            await self._cancel()
            return
        self._extend_at = 0.0  # a renewal that fails is due again in the next round
        await self._extend()
        self._extend_at = now + self._options.lease_seconds / 3

    async def _extend(self) -> None:
        before = dict(self._executions)
        claims = {task_id: execution.claim for task_id, execution in before.items()}
        async with self._sessions.begin() as session:
            cancellations = await queue.extend(session, claims, self._options.lease_seconds)
        self._contact.confirm()
        for task_id, execution in before.items():
            if execution.work.done():
                continue
            if cancellations.get(task_id):
                execution.stop_signal.cancel()
            elif task_id not in cancellations and not execution.stop_signal.released:
                log.warning("the task was claimed again, this rollout is stopped", task=str(task_id))
                execution.stop_signal.lost = True
                execution.work.cancel()

    async def _cancel(self) -> None:
        async with direct(self._sessions) as handle:
            cancelled = await queue.cancelled(handle, self.owner)
        self._contact.confirm()
        for task_id in cancelled & self._executions.keys():
            self._executions[task_id].stop_signal.cancel()


async def abandon_all(session: AsyncSession, process: str, *, killed: bool = False) -> Sequence[UUID]:
    """Let others have the tasks and the shadow of a process that died, `killed` from outside or by itself, or is
    about to. Returns the tasks' ids.
    """
    await trials_store.abandon(session, process)
    return await queue.abandon(session, process, killed=killed)


class CrashFile:
    """While entered, the file of this runner in `directory` is empty unless its event loop has not responded for
    `seconds`. A fatal signal of its own also leaves a trace, SIGKILL leaves none.

    Both are written by C code that needs no GIL. Without a file that can be written, ends look like kills.
    """

    def __init__(self, directory: Path, owner: str, seconds: float) -> None:
        self._directory, self._owner, self._seconds = directory, owner, seconds
        self._file: BinaryIO | None = None
        self._loop = Loop("keep the crash file empty", self._pulse, seconds / _PULSES)

    async def __aenter__(self) -> Self:
        with suppress(OSError):
            self._directory.mkdir(parents=True, exist_ok=True)
            remove_old(self._directory, "*.crash")  # of runners whose end nobody has noticed
            self._file = self._path(self._owner).open("ab", buffering=0)
            faulthandler.enable(self._file, all_threads=False)
            self._loop.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._loop.stop()
        faulthandler.cancel_dump_traceback_later()
        if self._file is not None:
            faulthandler.disable()
            self._file.close()
            self._path(self._owner).unlink(missing_ok=True)

    def ended_by_itself(self, owner: str) -> bool:
        """Whether another runner, which is dead, left a trace. Ask once: its file is deleted."""
        try:
            found = self._path(owner).stat().st_size > 0
            self._path(owner).unlink()
        except OSError:
            return False
        return found

    async def _pulse(self) -> None:
        assert self._file is not None
        os.ftruncate(self._file.fileno(), 0)
        faulthandler.dump_traceback_later(self._seconds, file=self._file)

    def _path(self, owner: str) -> Path:
        return self._directory / f"{owner}.crash"


class Watchdog:
    """While entered, ends the process by UNRESPONSIVE if the event loop computes or waits for `seconds` without
    a pause, and logs what it was executing.

    Time for which the host has no processor for it, or has stopped the process, does not count. A timer of the
    kernel measures what the process computes, which needs no GIL: also a regular expression cannot hold it up.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._busy = 0.0  # seconds since the last pulse, as the thread below has seen them
        self._left = threading.Event()
        self._loop = Loop("watchdog", self._pulse, _PULSE_SECONDS)

    async def __aenter__(self) -> Self:
        faulthandler.register(UNRESPONSIVE, chain=True)
        await self._pulse()
        self._loop.start()
        threading.Thread(
            target=self._watch, args=[threading.get_native_id()], name="watchdog", daemon=True
        ).start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._loop.stop()
        self._left.set()
        signal.setitimer(signal.ITIMER_PROF, 0)

    async def _pulse(self) -> None:
        self._busy = 0.0
        signal.setitimer(signal.ITIMER_PROF, self._seconds)  # sends UNRESPONSIVE

    def _watch(self, thread: int) -> None:
        """End the process if the thread of the event loop waits for too long. Counts what was waited here, not
        what a clock shows: the process may have been stopped.
        """
        pause = self._seconds / _LOOKS
        before, starved = time.monotonic(), starved_seconds(thread)
        while not self._left.wait(pause):
            now, starved_now = time.monotonic(), starved_seconds(thread)
            self._busy = max(0.0, self._busy + min(now - before, 2 * pause) - (starved_now - starved))
            before, starved = now, starved_now
            if self._busy >= self._seconds:
                signal.raise_signal(UNRESPONSIVE)


def starved_seconds(thread: int) -> float:
    """For which a thread was ready to run, and no processor was free; 0 where the system does not tell."""
    try:
        return int(Path(f"/proc/self/task/{thread}/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError):
        return 0.0


def limit_memory(settings: Settings) -> int:
    """Limit the data of this process, and of each that it starts from now on: allocations beyond it fail. Returns
    the bytes.

    Raises SettingError if the limit leaves no room for tasks.
    """
    limit, used = settings.runner_memory_mb << 20, resident_bytes()
    room = settings.sandbox_memory_mb << 20
    if limit < used + room:
        needed = (used + room >> 20) + 1
        raise SettingError(
            f"SAGE_RUNNER_MEMORY_MB={settings.runner_memory_mb} is too little: a runner takes {used >> 20} MB, "
            f"and SAGE_SANDBOX_MEMORY_MB is {settings.sandbox_memory_mb}: set at least {needed}"
        )
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    allowed = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (allowed, hard))
    return limit


class MemoryWatch(Looping):
    """While entered, calls `on_excess` once if the process takes nearly `limit` bytes."""

    def __init__(self, limit: int, on_excess: Callable[[], None]) -> None:
        self.limit = limit
        self.used = resident_bytes()
        self.excess = ""  # what is wrong, once it is
        self._on_excess = on_excess
        self._loop = Loop("memory", self._look, _MEMORY_SECONDS)

    async def _look(self) -> None:
        self.used = resident_bytes()
        if self.used > _FULL * self.limit and not self.excess:
            self.excess = (
                f"the runner takes {self.used >> 20} MB, near its limit of {self.limit >> 20} MB "
                "(SAGE_RUNNER_MEMORY_MB), and is replaced"
            )
            self._on_excess()


def resident_bytes() -> int:
    """Memory of this process, without the files it maps; on other systems than Linux its peak."""
    if sys.platform == "linux":
        _, resident, shared, *_ = map(int, Path("/proc/self/statm").read_text().split())
        return (resident - shared) * resource.getpagesize()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


class RunnerPresence:
    """While entered, keeps the row of this runner up to date; it is removed at the end."""

    def __init__(
        self,
        sessions: Sessions,
        runner: Runner,
        sandbox: ForkedSandbox,
        memory: MemoryWatch,
        occupancy: Callable[[], Occupancy],
        prompt: str | None = None,
        crashes: CrashFile | None = None,
    ) -> None:
        """`occupancy` is of the model servers, by this process; `prompt` the hash of what it serves with;
        `crashes` tells how others ended.
        """
        self._crashes = crashes
        self._sessions, self._runner, self._sandbox = sessions, runner, sandbox
        self._memory, self._occupancy = memory, occupancy
        self._prompt, self._pid_space = prompt, pid_space()
        self._reports = Loop("report the runner", self._report, _REPORT_SECONDS, expected=TRANSIENT)
        self._checks = Loop("check the sandbox", self._check_sandbox, _SANDBOX_SECONDS)

    async def __aenter__(self) -> Self:
        self._reports.start()
        self._checks.start()
        return self

    def wake(self) -> None:
        """Report now."""
        self._reports.wake()

    async def __aexit__(self, *_: object) -> None:
        await self._checks.stop()
        await self._reports.stop()
        try:
            async with self._sessions.begin() as session:
                await runners.remove(session, self._runner.owner)
        except TRANSIENT as error:
            log.warning("the runner is listed until others notice its end", cause=first_line(error))

    async def _report(self) -> None:
        busy, loops = self._occupancy(), running_loops()
        faults = faults_by_part() | self._runner.faults
        if not self._runner.answers():
            faults.setdefault(CLAIMS, "no model server answers")
        report = RunnerReport(
            id=self._runner.owner,
            host=socket.gethostname(),
            pid=os.getpid(),
            pid_space=self._pid_space,
            in_flight=self._runner.running,
            capacity=self._runner.capacity,
            memory_bytes=self._memory.used,
            generating=busy.in_flight,
            waiting=busy.waiting,
            sandbox=self._sandbox.describe(),
            prompt=self._prompt,
            draining=self._runner.draining,
            error="; ".join(faults[part] for part in ESSENTIAL if part in faults) or None,
            faults=faults,
            loop_failures=sum(each.failed for each in loops),
            loop_restarts=sum(each.restarts for each in loops),
            dropped_lines=dropped_lines(),
        )
        async with self._sessions.begin() as session:
            await runners.report(session, report)
            neighbours = await runners.others_in(session, self._pid_space, self._runner.owner)
        for each in neighbours:
            if self._pid_space and is_gone(each.pid):
                await self._bury(each)

    async def _bury(self, dead: tables.RunnerProcess) -> None:
        killed = self._crashes is None or not self._crashes.ended_by_itself(dead.id)
        async with self._sessions.begin() as session:
            freed = await abandon_all(session, dead.id, killed=killed)
            await runners.remove(session, dead.id)
        log.warning("a runner died", runner=dead.id, killed=killed, tasks=[str(task_id) for task_id in freed])

    async def _check_sandbox(self) -> float | None:
        """While it fails, the runner claims nothing. Return the seconds until the next check."""
        try:
            session = await self._sandbox.open({}, _no_calls, SessionLimits())
            await session.close()
        except SandboxError as error:
            self._runner.faults[SANDBOX] = str(error)
            return _REPORT_SECONDS
        self._runner.faults.pop(SANDBOX, None)
        return None


async def _no_calls(api: str, args: list[Json], kwargs: dict[str, Json], **_: object) -> Json:  # noqa: ARG001
    raise HostError("PermissionError", f"{api}: calls are not possible in a readiness check")


class DiskWatch(Looping):
    """While entered, the runner claims nothing while a disk lacks space. Enter it before the runner."""

    def __init__(self, runner: Runner, disk: DiskSpace) -> None:
        self._runner, self._disk = runner, disk
        self._loop = Loop("watch the disks", self._look, _DISK_SECONDS, part=DISK, limit=30)

    async def __aenter__(self) -> Self:
        await self._look()  # before the first claim
        return await super().__aenter__()

    async def _look(self) -> None:
        shortage = await self._disk.shortage()
        known = DISK in self._runner.faults
        if shortage:
            self._runner.faults[DISK] = shortage
        else:
            self._runner.faults.pop(DISK, None)
        if shortage and not known:
            log.error("no tasks are claimed: a disk is nearly full", cause=shortage)
        if known and not shortage:
            log.warning("tasks are claimed again: the disk has space")
            self._runner.wake()

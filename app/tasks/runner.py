"""Claims tasks from the queue and executes several at once, each under a lease that is renewed.

A task that is under way here is never claimed here again: after a stall, its claim is renewed if nobody else has
claimed it. If somebody has, its rollout is stopped, and the death of this runner that was counted is withdrawn.

A suspect, a task during which a runner died, is executed alone: it is claimed and held until the tasks under way
have ended, while no other is claimed.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from contextvars import copy_context
from typing import Self
from uuid import UUID

import msgspec
import structlog
from sqlalchemy.ext.asyncio import AsyncSession

from app.agent.stop_signal import StopSignal
from app.base import telemetry
from app.base.errors import ConflictError, first_line
from app.base.loop import Loop
from app.base.processes import new_owner
from app.db import suspects, tables, task_queue
from app.db.database import TRANSIENT, Sessions, autocommit, direct
from app.db.lease import new_claim
from app.db.runners import CLAIMS, HOST
from app.projects.settings import Limits
from app.releases import store as releases
from app.releases import trials_store
from app.runner.database_contact import DatabaseContact
from app.runner.measurement import count_attempt
from app.runner.postponed import PostponedError

log = structlog.get_logger(__name__)

Execute = Callable[[tables.Task, str, StopSignal], Coroutine[None, None, None]]
"""Executes a task for a claim and writes how it ended. If cancelled, it leaves the task resumable."""

_STUCK_SECONDS = 30.0  # of one round: nothing is claimed any more
_CANCEL_SECONDS = 0.5  # between two checks for tasks to cancel


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
    claim: str
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
        self._contact = DatabaseContact(options.lease_seconds)
        lease = options.lease_seconds
        poll = min(options.poll_seconds, lease / 6)  # often enough to keep up `_contact`
        self._claims = Loop(
            "claim tasks", self._claim, poll, expected=TRANSIENT, part=CLAIMS, limit=_STUCK_SECONDS
        )
        pace = min(_CANCEL_SECONDS, lease / 3)
        self._leases = Loop(
            "renew task leases", self._keep, pace, expected=TRANSIENT, part=CLAIMS, limit=_STUCK_SECONDS
        )

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
                await task_queue.hand_back(session, self.owner)
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
        claim, options = new_claim(self.owner), self._options
        abandoned, ours = self._contact.is_proof, self._executions.keys() | self._dropped.keys()
        async with autocommit(self._sessions) as session:
            held_off = self._projects_held_off()
            if not self.answers():
                held_off += await releases.local_projects(session)
            task = await task_queue.claim(
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

    def _projects_held_off(self) -> list[UUID]:
        now = asyncio.get_running_loop().time()
        self._held_off = {project: until for project, until in self._held_off.items() if until > now}
        return list(self._held_off)

    def _start(self, task: tables.Task, claim: str) -> None:
        count_attempt(task)
        suspect, stop_signal = suspects.is_suspect(task), StopSignal(cancelled=task.cancel_requested)
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
                await task_queue.mark_alone(session, task.id, claim)
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
        if self._dropped:
            await self._hand_back_dropped()
        for task in list(self._taken_over):
            async with self._sessions.begin() as session:
                await task_queue.withdraw_death(session, task.id, alone=task.alone)
            self._taken_over.remove(task)
        if not self._executions:
            return
        if now < self._extend_at:
            await self._cancel()
            return
        self._extend_at = 0.0  # a renewal that fails is due again in the next round
        await self._extend()
        self._extend_at = now + self._options.lease_seconds / 3

    async def _hand_back_dropped(self) -> None:
        for task_id, dropped in list(self._dropped.items()):
            async with self._sessions.begin() as session:
                await task_queue.put_back(
                    session,
                    task_id,
                    dropped.claim,
                    seconds=dropped.seconds,
                    sandbox_failures=dropped.sandbox_failures,
                    broken_answers=dropped.broken_answers,
                )
            del self._dropped[task_id]

    async def _extend(self) -> None:
        before = dict(self._executions)
        claims = {task_id: execution.claim for task_id, execution in before.items()}
        async with self._sessions.begin() as session:
            cancellations = await task_queue.extend(session, claims, self._options.lease_seconds)
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
            cancelled = await task_queue.cancelled(handle, self.owner)
        self._contact.confirm()
        for task_id in cancelled & self._executions.keys():
            self._executions[task_id].stop_signal.cancel()


async def abandon_all(session: AsyncSession, process: str, *, killed: bool = False) -> Sequence[UUID]:
    """Let others have the tasks and the shadow of a process that died, `killed` from outside or by itself, or is
    about to. Returns the tasks' ids.
    """
    await trials_store.abandon(session, process)
    return await task_queue.abandon(session, process, killed=killed)

"""Claims tasks from the queue and executes several at once, each under a lease that is renewed."""

import asyncio
import os
import socket
from collections.abc import Callable, Coroutine
from typing import Self
from uuid import UUID, uuid4

import msgspec
import structlog

from app.agent.stop_signal import StopSignal
from app.db import models, task_queue
from app.db.database import TRANSIENT, Sessions
from app.errors import first_line
from app.loop import Loop

log = structlog.get_logger(__name__)

Execute = Callable[[models.Task, str, StopSignal], Coroutine[None, None, None]]
"""Executes a claimed task for an owner and writes how it ended. If cancelled, it leaves the task resumable."""

_CANCEL_SECONDS = 0.5  # between two checks for tasks to cancel


class RunnerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Concurrency and intervals of a runner."""

    concurrency: int = 16
    lease_seconds: float = 30.0
    poll_seconds: float = 1.0  # between polls of an empty queue, unless woken
    grace_seconds: float = 5.0  # on leaving, for turns whose code is running


class _Execution(msgspec.Struct, frozen=True):
    stop_signal: StopSignal
    work: asyncio.Task[None]


class Runner:
    """Use it as an async context manager. Leaving hands unfinished tasks back, for other runners to resume."""

    def __init__(
        self,
        sessions: Sessions,
        execute: Execute,
        options: RunnerOptions = RunnerOptions(),  # noqa: B008  frozen
    ) -> None:
        self.owner = f"{socket.gethostname()}-{os.getpid()}-{uuid4().hex[:8]}"
        self._sessions = sessions
        self._execute = execute
        self._options = options
        self._executions: dict[UUID, _Execution] = {}
        self._extend_at = 0.0  # on the event loop's clock
        lease = options.lease_seconds
        self._claims = Loop("claim tasks", self._claim, options.poll_seconds, expected=TRANSIENT)
        self._leases = Loop("renew task leases", self._keep, min(_CANCEL_SECONDS, lease / 3), expected=TRANSIENT)

    @property
    def running(self) -> int:
        return len(self._executions)

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

    async def _claim(self) -> float | None:
        """Return 0 while there may be more to claim; None at an empty queue, or when all places are taken."""
        if len(self._executions) >= self._options.concurrency:
            return None
        async with self._sessions.begin() as session:
            task = await task_queue.claim(session, self.owner, self._options.lease_seconds)
        if task is None:
            return None
        stop_signal = StopSignal()
        work = asyncio.create_task(self._execute(task, self.owner, stop_signal), name=f"task {task.id}")
        self._executions[task.id] = _Execution(stop_signal, work)
        work.add_done_callback(lambda done: self._drop(task.id, done))
        return 0

    def _drop(self, task_id: UUID, work: asyncio.Task[None]) -> None:
        del self._executions[task_id]
        self._claims.wake()
        if not work.cancelled() and (error := work.exception()) is not None:
            log.error("a task was dropped, its lease will expire", task=str(task_id), exc_info=error)

    async def _keep(self) -> None:
        """Renew the leases when they are due, otherwise cancel tasks whose cancellation was requested."""
        now = asyncio.get_running_loop().time()
        if not self._executions:
            return
        if now < self._extend_at:
            await self._cancel()
            return
        self._extend_at = 0.0  # a renewal that fails is due again in the next round
        await self._extend()
        self._extend_at = now + self._options.lease_seconds / 3

    async def _extend(self) -> None:
        before = set(self._executions)
        async with self._sessions.begin() as session:
            cancellations = await task_queue.extend(session, self.owner, self._options.lease_seconds, before)
        for task_id in before & self._executions.keys():
            if task_id not in cancellations:
                log.warning("another runner claimed the task", task=str(task_id))
                self._executions[task_id].work.cancel()
            elif cancellations[task_id]:
                self._executions[task_id].stop_signal.cancel()

    async def _cancel(self) -> None:
        async with self._sessions() as session:
            cancelled = await task_queue.cancelled(session, self.owner)
        for task_id in cancelled & self._executions.keys():
            self._executions[task_id].stop_signal.cancel()

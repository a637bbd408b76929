"""Takes tasks from the queue and has them carried out, several at once, each under a lease that is kept alive."""

import asyncio
import os
import socket
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Self
from uuid import UUID, uuid4

import msgspec
import structlog

from app.agent.stop_signal import Halt
from app.db import models, task_queue
from app.db.database import AWAY, Sessions

log = structlog.get_logger(__name__)

CarryOut = Callable[[models.Task, str, Halt], Coroutine[None, None, None]]
"""Carries a claimed task out for an owner and writes how it ended. Cancelled, it leaves the task as it stands."""

_CANCEL_SECONDS = 0.5  # between two looks for tasks that are to be cancelled


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """How much at once, and how often to look."""

    at_once: int = 16
    lease_seconds: float = 30.0
    poll_seconds: float = 1.0  # between looks at an empty queue, unless woken
    grace_seconds: float = 5.0  # at the end, for turns whose code is running


class _Held(msgspec.Struct, frozen=True):
    halt: Halt
    work: asyncio.Task[None]


class Runner:
    """Use it as an async context manager. Leaving hands back what is not finished, for others to go on with."""

    def __init__(self, sessions: Sessions, carry_out: CarryOut, pace: Pace = Pace()) -> None:  # noqa: B008  frozen
        self.owner = f"{socket.gethostname()}-{os.getpid()}-{uuid4().hex[:8]}"
        self._sessions = sessions
        self._carry_out = carry_out
        self._pace = pace
        self._news = asyncio.Event()
        self._freed = asyncio.Event()
        self._held: dict[UUID, _Held] = {}
        self._loops: list[asyncio.Task[None]] = []

    @property
    def running(self) -> int:
        return len(self._held)

    def wake(self) -> None:
        """There may be work, or a task to cancel. Missing a call costs a moment, never a task."""
        self._news.set()

    async def __aenter__(self) -> Self:
        self._loops = [
            asyncio.create_task(self._claim_for_ever(), name="claim"),
            asyncio.create_task(self._watch_for_ever(), name="leases"),
        ]
        return self

    async def __aexit__(self, *_: object) -> None:
        await _end(self._loops[:1])  # claim nothing more, but keep the leases
        for held in self._held.values():
            held.halt.park()
        works = [held.work for held in self._held.values()]
        if works:
            await asyncio.wait(works, timeout=self._pace.grace_seconds)
        await _end(works)
        await _end(self._loops)
        try:
            async with self._sessions.begin() as session:
                await task_queue.hand_back(session, self.owner)
        except AWAY as error:
            log.warning("tasks wait until their leases run out", cause=_first_line(error))

    async def _claim_for_ever(self) -> None:
        while True:
            self._freed.clear()
            if len(self._held) >= self._pace.at_once:
                await self._freed.wait()
            elif not await self._claim():
                with suppress(TimeoutError):  # not wait_for: Python 3.11's forgets a cancellation that meets news
                    async with asyncio.timeout(self._pace.poll_seconds):
                        await self._news.wait()

    async def _claim(self) -> bool:
        self._news.clear()  # before looking: what comes meanwhile is news again
        try:
            async with self._sessions.begin() as session:
                task = await task_queue.claim(session, self.owner, self._pace.lease_seconds)
        except AWAY as error:
            log.warning("no task can be claimed", cause=_first_line(error))
            return False
        except Exception:  # the last resort: else no task would be claimed any more
            log.exception("no task can be claimed")
            return False
        if task is None:
            return False
        halt = Halt()
        work = asyncio.create_task(self._carry_out(task, self.owner, halt), name=f"task {task.id}")
        self._held[task.id] = _Held(halt, work)
        work.add_done_callback(lambda done: self._let_go(task.id, done))
        return True

    def _let_go(self, task_id: UUID, work: asyncio.Task[None]) -> None:
        del self._held[task_id]
        self._freed.set()
        if not work.cancelled() and (error := work.exception()) is not None:
            log.error("a task was dropped, its lease will run out", task=str(task_id), exc_info=error)

    async def _watch_for_ever(self) -> None:
        """Keep the leases, and see who is to be cancelled."""
        clock = asyncio.get_running_loop().time
        due = 0.0
        while True:
            if self._held:
                try:
                    if clock() >= due:
                        due = clock() + self._pace.lease_seconds / 3
                        await self._extend()
                    else:
                        await self._cancel()
                except AWAY as error:
                    due = 0.0
                    log.warning("leases cannot be kept", cause=_first_line(error))
                except Exception:  # the last resort: else no lease would be kept any more
                    due = 0.0
                    log.exception("leases cannot be kept")
            await asyncio.sleep(min(_CANCEL_SECONDS, self._pace.lease_seconds / 3))

    async def _extend(self) -> None:
        before = set(self._held)
        async with self._sessions.begin() as session:
            mine = await task_queue.extend(session, self.owner, self._pace.lease_seconds, before)
        for task_id in before & self._held.keys():
            if task_id not in mine:
                log.warning("another runner took the task up", task=str(task_id))
                self._held[task_id].work.cancel()
            elif mine[task_id]:
                self._held[task_id].halt.pull()

    async def _cancel(self) -> None:
        async with self._sessions() as session:
            flagged = await task_queue.cancelled(session, self.owner)
        for task_id in flagged & self._held.keys():
            self._held[task_id].halt.pull()


async def _end(works: list[asyncio.Task[None]]) -> None:
    for work in works:
        work.cancel()
    if works:
        await asyncio.wait(works)


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__

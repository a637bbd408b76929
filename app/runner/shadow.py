"""Shadows: what would a release do with tasks that were done before? Nothing it does there has an effect.

A shadow may read from the live APIs and nothing more, is offered what the task was offered, keeps no skill and
leaves no trace but its own row. One at a time in each process, and only while tasks do not need all the places.
"""

import asyncio
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Self
from uuid import uuid4

import structlog

from app.agent.loop import Origin, run_rollout
from app.db import models, shadows, tasks
from app.db.database import AWAY, UNAVAILABLE, Sessions
from app.db.shadows import ShadowOutcome
from app.errors import AppError, InvalidError, SandboxError
from app.records import Task
from app.runner.execute import Desk
from app.runner.task_journal import seed_of

log = structlog.get_logger(__name__)

_PAUSE = 5.0  # seconds between two looks at an empty queue, or while tasks need all places
_ATTEMPTS = 3  # of processes that died over a shadow, after which it is given up
_GRACE = 120.0  # seconds that a shadow may take beyond its rollout, such as for its check


class Shadows:
    """An async context manager: within it shadows are done. Leaving gives back the one that is not finished."""

    def __init__(
        self, sessions: Sessions, desk: Desk, spare: Callable[[], bool], *, pause: float = _PAUSE
    ) -> None:
        self.owner = f"{socket.gethostname()}-{os.getpid()}-{uuid4().hex[:8]}"
        self._sessions, self._desk, self._spare, self._pause = sessions, desk, spare, pause
        self._lease = desk.agent.limits.seconds + _GRACE
        self._news = asyncio.Event()
        self._working: asyncio.Task[None] | None = None

    def wake(self) -> None:
        """There may be shadows to do. Missing a call costs a moment."""
        self._news.set()

    async def __aenter__(self) -> Self:
        self._working = asyncio.create_task(self._work(), name="shadows")
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._working is not None:
            self._working.cancel()
            with suppress(asyncio.CancelledError):
                await self._working
        with suppress(*AWAY):  # its lease will run out
            async with self._sessions.begin() as session:
                await shadows.hand_back(session, self.owner)

    async def _work(self) -> None:
        while True:
            self._news.clear()  # before looking: what comes meanwhile is news again
            try:
                if self._spare() and await self._do_one():
                    continue
            except AWAY as error:
                log.warning("no shadow can be done", cause=str(error).partition("\n")[0])
            except Exception:  # the last resort: else no shadow would be done any more
                log.exception("no shadow can be done")
            with suppress(TimeoutError):
                async with asyncio.timeout(self._pause):
                    await self._news.wait()

    async def _do_one(self) -> bool:
        async with self._sessions.begin() as session:
            shadow = await shadows.claim(session, self.owner, self._lease)
        if shadow is None:
            return False
        outcome = await self._outcome(shadow)
        async with self._sessions.begin() as session:
            if not await shadows.finish(session, shadow, outcome):
                log.warning("another process has the shadow, this one is dropped", task=str(shadow.task_id))
        return True

    async def _outcome(self, shadow: models.Shadow) -> ShadowOutcome:
        try:
            if shadow.attempt > _ATTEMPTS:
                raise InvalidError(f"{_ATTEMPTS} processes died over this shadow, so it is given up")
            return await rehearse(self._desk, shadow)
        except AppError as error:
            log.warning("a shadow failed", task=str(shadow.task_id), cause=str(error))
            return ShadowOutcome(failure=str(error))
        except UNAVAILABLE:
            raise
        except Exception:  # the last resort: one bad shadow must not stop the others
            log.exception("a shadow broke", task=str(shadow.task_id))
            return ShadowOutcome(failure="internal error: the server's log has the details")


async def rehearse(desk: Desk, shadow: models.Shadow) -> ShadowOutcome:
    """The task once more, with the same seed, clock and skills, by the shadow's release, without side effects."""
    async with desk.sessions() as session:
        row = await tasks.get(session, shadow.task_id)
    setting = await desk.setting(row.project_id, shadow.release_id, serves=False)
    gateway = desk.gateway(row, setting, journal=None, read_only=True)
    offered = await desk.offering.again(row, apis=gateway.names())
    task = Task(row.id, row.instruction, setting.project, row.scenario, row.variables)
    origin = Origin(seed=seed_of(row), now=row.started_at)
    trajectory = await run_rollout(desk.agent, task, setting.policy, gateway, offered, origin)
    failure = f"it wanted to write: {gateway.would_write}" if gateway.would_write else None
    score: float | None = None
    if row.check_code:
        try:
            score = await desk.score(row, setting, trajectory)
        except (InvalidError, SandboxError) as error:
            failure = failure or str(error)
    return ShadowOutcome(
        stop=trajectory.stop,
        failure=failure,
        score=score,
        turns=len(trajectory.turns),
        generated_tokens=trajectory.generated_tokens,
    )

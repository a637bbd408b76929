"""Shadows: finished tasks done again by another release, without side effects.

A shadow only reads from the live APIs, gets the skills that the task was offered, keeps no skill and leaves no
trace but its own row; a recorded one sends no call at all. Each process runs one at a time, and only while it has
capacity that tasks do not need.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Self

import structlog

from app.agent.rollout_loop import ResumeState, run_rollout
from app.base.errors import AppError, EngineError, InvalidError, SandboxError
from app.base.log import mask_logs
from app.base.loop import Loop
from app.base.processes import new_owner
from app.base.secrets import SecretValues
from app.base.values import Trajectory
from app.db import tables, tasks
from app.db.database import TRANSIENT, UNAVAILABLE, Sessions
from app.db.lease import new_claim
from app.releases import trials_store
from app.releases.trials_store import ShadowOutcome
from app.runner.counted_calls import counted_calls
from app.runner.execute import TaskExecutor
from app.runner.postponed import is_passing
from app.runner.recorded_replay import replay_recorded
from app.runner.task_context import task_of

log = structlog.get_logger(__name__)

_PAUSE = 5.0  # seconds between polls of an empty queue, or while there is no spare capacity
_MAX_ATTEMPTS = 3
_GRACE = 120.0  # seconds beyond the rollout's limit, such as for its check


class ShadowRunner:
    """Runs shadows while it is entered. Leaving hands an unfinished one back."""

    def __init__(
        self,
        sessions: Sessions,
        executor: TaskExecutor,
        has_capacity: Callable[[], bool],
        *,
        owner: str | None = None,
        pause: float = _PAUSE,
    ) -> None:
        """`owner` is the process that claims shadows."""
        self.owner = owner or new_owner()
        self._sessions, self._executor, self._has_capacity = sessions, executor, has_capacity
        self._lease = executor.agent.limits.seconds + _GRACE
        self.replaying = False
        self._interrupted = False  # by an outage: its attempt does not count
        self._loop = Loop("run shadows", self._run_next, pause, expected=TRANSIENT)

    def wake(self) -> None:
        """Poll the queue now. A missed call costs a moment."""
        self._loop.wake()

    async def __aenter__(self) -> Self:
        await self._loop.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._loop.stop()
        with suppress(*TRANSIENT):  # its lease will expire
            async with self._sessions.begin() as session:
                await trials_store.hand_back(session, self.owner)

    async def _run_next(self) -> float | None:
        """Return 0 if there was a shadow to run."""
        if self._interrupted:
            async with self._sessions.begin() as session:
                await trials_store.hand_back(session, self.owner)
            self._interrupted = False
        if not self._has_capacity():
            return None
        async with self._sessions.begin() as session:
            shadow = await trials_store.claim(session, new_claim(self.owner), self._lease)
        if shadow is None:
            return None
        self.replaying = self._interrupted = True
        try:
            outcome, trajectory = await self._replay(shadow)
        except EngineError as error:
            log.warning("a shadow is postponed", task=str(shadow.task_id), cause=str(error))
            return None
        finally:
            self.replaying = False
        async with self._sessions.begin() as session:
            if not await trials_store.finish(session, shadow, outcome, trajectory):
                log.warning("the shadow was claimed again, this replay is dropped", task=str(shadow.task_id))
        self._interrupted = False
        return 0

    async def _replay(self, shadow: tables.Shadow) -> tuple[ShadowOutcome, Trajectory | None]:
        try:
            if shadow.attempt > _MAX_ATTEMPTS:
                raise InvalidError(f"{_MAX_ATTEMPTS} processes died during this shadow, so it is given up")
            if shadow.recorded:
                return await replay_recorded(self._executor, shadow)
            return await replay(self._executor, shadow), None
        except AppError as error:
            if is_passing(error):
                raise
            log.warning("a shadow failed", task=str(shadow.task_id), cause=str(error))
            return ShadowOutcome(failure=str(error)), None
        except UNAVAILABLE:
            raise
        except Exception:  # the last resort: one bad shadow must not stop the others
            log.exception("a shadow failed on an internal error", task=str(shadow.task_id))
            return ShadowOutcome(failure="internal error: the server's log has the details"), None


async def replay(executor: TaskExecutor, shadow: tables.Shadow) -> ShadowOutcome:
    """Repeat the task with the shadow's release: same seed, clock and skills, no side effects."""
    async with executor.sessions() as session:
        row = await tasks.get(session, shadow.task_id)
    context = await executor.context(row.project_id, shadow.release_id, serves=False)
    secrets = SecretValues()
    mask_logs(secrets)
    gateway = executor.gateway(row, context, secrets, read_only=True)
    offered = await executor.skill_selection.reuse(row)
    gateway.guard = await executor.skill_selection.guard(offered)
    task = task_of(row, context.project)
    resume = ResumeState(seed=row.seed, now=row.started_at)
    owner = shadow.owner or ""
    async with (
        counted_calls(executor.sessions, row.project_id, owner, gateway),
        executor.policy_agent(row, context.policy, owner) as agent,
    ):
        trajectory = await run_rollout(agent, task, context.policy, gateway, offered, resume)
    failure = f"it tried to write: {gateway.would_write}" if gateway.would_write else None
    score: float | None = None
    if row.check_code:
        try:
            score = await executor.score(row, context, trajectory, secrets, owner)
        except InvalidError as error:
            score, failure = 0.0, failure or str(error)
        except SandboxError as error:
            failure = failure or str(error)
    return ShadowOutcome(
        stop=trajectory.stop,
        failure=failure and secrets.mask(failure),
        score=score,
        turns=len(trajectory.turns),
        generated_tokens=trajectory.generated_tokens,
    )

"""Finished tasks done again by another release, without side effects.

A shadow only reads from the live APIs, gets the skills that the task was offered, keeps no skill and leaves no
trace but its own row; a recorded one is answered from the calls that the task made, and sends none at all. Only
tasks that read can be shadowed. Each process runs one at a time, and only while it has capacity that tasks do
not need.
"""

from collections.abc import Callable, Set
from contextlib import suppress
from uuid import UUID

import msgspec
import structlog
from sqlalchemy.ext.asyncio import AsyncSession

from app.agent.rollout import ResumeState, run_rollout
from app.apis import store as apis
from app.apis.calls.gateway import Gateway
from app.apis.calls.recorded_calls import RecordedCalls
from app.apis.documents.reader import DocumentReader
from app.base.errors import INTERNAL_ERROR, AppError, ConflictError, EngineError, InvalidError, SandboxError
from app.base.log import mask_logs
from app.base.loop import Loop, Looping
from app.base.processes import new_owner
from app.base.secrets import SecretValues
from app.base.values import Trajectory, TrajectoryCalls
from app.db import results, tables
from app.db.database import TRANSIENT, UNAVAILABLE, Sessions
from app.db.lease import new_claim
from app.projects import store as projects
from app.releases import tools, trials_store
from app.releases.tools import ProjectSecrets
from app.releases.trials_store import ShadowOutcome
from app.tasks import store as tasks
from app.tasks.context import TaskContext, task_of
from app.tasks.execution import TaskExecutor, counted_calls, is_passing, run_check
from app.tasks.masking import masked

log = structlog.get_logger(__name__)

_WINDOW = 1_000  # finished tasks, the newest
_PAUSE = 5.0  # seconds between polls of an empty queue, or while there is no spare capacity
_MAX_ATTEMPTS = 3
_GRACE = 120.0  # seconds beyond the rollout's limit, such as for its check


async def request_shadows(
    session: AsyncSession, reader: DocumentReader, release: tables.Release, count: int
) -> int:
    """Queue replays of the project's latest read-only tasks by the release. Returns their number.

    The transaction that was open has ended then. Raises ConflictError if there is no such task.
    """
    safe = await _safe_operations(session, reader, release)
    candidates: list[UUID] = []
    latest = trials_store.records(session, release.project_id, other_than=release.id, limit=_WINDOW)
    async for task_id, record in latest:
        if _only_calls(record, safe):
            candidates.append(task_id)
        if len(candidates) == count:
            break
    if not candidates:
        raise ConflictError(
            f"none of the last {_WINDOW:,} tasks that other releases finished is read-only: an operation is "
            "if it is a GET, HEAD or OPTIONS, or has `x-safe: true` in its document"
        )
    await trials_store.add(session, release.id, candidates)
    return len(candidates)


class ShadowRunner(Looping):
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

    async def __aexit__(self, *_: object) -> None:
        await super().__aexit__()
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
            outcome, trajectory = await self._try(shadow)
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

    async def _try(self, shadow: tables.Shadow) -> tuple[ShadowOutcome, Trajectory | None]:
        try:
            if shadow.attempt > _MAX_ATTEMPTS:
                raise InvalidError(f"{_MAX_ATTEMPTS} processes died during this shadow, so it is given up")
            if shadow.recorded:
                return await _replay_recorded(self._executor, shadow)
            return await _replay(self._executor, shadow), None
        except AppError as error:
            if is_passing(error):
                raise
            log.warning("a shadow failed", task=str(shadow.task_id), cause=str(error))
            return ShadowOutcome(failure=str(error)), None
        except UNAVAILABLE:
            raise
        except Exception:  # the last resort: one bad shadow must not stop the others
            log.exception("a shadow failed on an internal error", task=str(shadow.task_id))
            return ShadowOutcome(failure=INTERNAL_ERROR), None


async def _safe_operations(session: AsyncSession, reader: DocumentReader, release: tables.Release) -> set[str]:
    """Those that only read and wait for nobody's approval."""
    rules = projects.settings_of(await projects.by_id(session, release.project_id)).approvals
    safe: set[str] = set()
    for api in await tools.api_documents(session, release):
        content = await apis.document(session, api.id, api.digest)
        await session.commit()  # no transaction is held while a document is read
        for name, each in (await reader.traits(api.name, content, api.digest, api.presentation)).items():
            known, *former = (f"{api.name}.{one}" for one in (name, *each.former_names))
            if each.safe and not rules.wants(known, safe=True, risk=each.risk, former=former, own=each.approval):
                safe.add(known)
    return safe


def _only_calls(record: bytes, safe: Set[str]) -> bool:
    """An operation that no longer exists is not in `safe`: it cannot be called again."""
    turns = msgspec.msgpack.decode(record, type=TrajectoryCalls).turns
    return all(call.api in safe for turn in turns for call in turn.calls)


async def _replay(executor: TaskExecutor, shadow: tables.Shadow) -> ShadowOutcome:
    """On the live APIs, of which it only reads."""
    async with executor.sessions() as session:
        row = await tasks.get(session, shadow.task_id)
    context = await executor.context(row.project_id, shadow.release_id, serves=False)
    secrets, owner = SecretValues(), shadow.owner or ""
    mask_logs(secrets)
    gateway = executor.gateway(row, context, secrets, read_only=True)
    async with counted_calls(executor.sessions, row.project_id, owner, gateway):
        trajectory = await _do_again(executor, row, context, gateway, owner)
    failure = f"it tried to write: {gateway.would_write}" if gateway.would_write else None
    score: float | None = None
    if row.check_code:
        try:
            checking = executor.gateway(row, context, secrets, read_only=True)
            score = await executor.score(row, context, trajectory.answer, checking, owner)
        except InvalidError as error:
            score, failure = 0.0, failure or str(error)
        except SandboxError as error:
            failure = failure or str(error)
    return _outcome(trajectory, secrets, score, failure)


async def _replay_recorded(executor: TaskExecutor, shadow: tables.Shadow) -> tuple[ShadowOutcome, Trajectory]:
    """On the calls of the task. One that the record does not answer ends it.

    Raises NotFoundError if the task's trajectory was deleted.
    """
    async with executor.sessions() as session:
        row = await tasks.get(session, shadow.task_id)
        record = await results.of_task(session, row.id)
    context = await executor.context(row.project_id, shadow.release_id, serves=False)
    secrets = SecretValues()
    mask_logs(secrets)
    recording = RecordedCalls(record.calls, context.catalog.is_read)
    gateway = _recorded_gateway(executor, row, context, recording, secrets)
    trajectory = await _do_again(executor, row, context, gateway, shadow.owner or "")
    same, failure = recording.complete, trajectory.detail or None
    score: float | None = None
    if row.check_code and gateway.in_doubt is None:
        checking = _recorded_gateway(executor, row, context, recording, secrets, read_only=True)
        try:
            score, failure = (
                await run_check(row, trajectory.answer, context.project, executor.agent, checking),
                None,
            )
        except InvalidError as error:
            score, failure = 0.0, str(error)
        if checking.in_doubt is not None:
            score, failure = None, f"the check asked what the task had not: {checking.in_doubt}"
    return _outcome(trajectory, secrets, score, failure, same), masked(trajectory, secrets)


async def _do_again(
    executor: TaskExecutor, row: tables.Task, context: TaskContext, gateway: Gateway, owner: str
) -> Trajectory:
    """With the seed, the clock and the skills of the task."""
    offered = await executor.skill_selection.reuse(row)
    gateway.guard = await executor.skill_selection.guard(offered)
    task, resume = task_of(row, context.project), ResumeState(seed=row.seed, now=row.started_at)
    async with executor.policy_agent(row, context.policy, owner) as agent:
        return await run_rollout(agent, task, context.policy, gateway, offered, resume)


def _outcome(
    trajectory: Trajectory,
    secrets: SecretValues,
    score: float | None,
    failure: str | None,
    same: bool | None = None,
) -> ShadowOutcome:
    return ShadowOutcome(
        stop=trajectory.stop,
        failure=failure and secrets.mask(failure),
        score=score,
        turns=len(trajectory.turns),
        generated_tokens=trajectory.generated_tokens,
        same_changes=same,
    )


def _recorded_gateway(
    executor: TaskExecutor,
    row: tables.Task,
    context: TaskContext,
    recording: RecordedCalls,
    secrets: SecretValues,
    *,
    read_only: bool = False,
) -> Gateway:
    """No call needs an approval: none goes out."""
    return Gateway(
        context.catalog,
        executor.client,
        instruction=row.instruction,
        variables=row.variables,
        read_only=read_only,
        max_calls=executor.agent.limits.calls,
        secrets=secrets,
        store=ProjectSecrets(executor.sessions, row.project_id),
        recording=recording,
    )

"""Questions to verifiers: queued when a task ends, and asked by any process until there is an answer."""

from datetime import UTC, datetime
from uuid import UUID

import msgspec
from sqlalchemy import select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from app.base.errors import NotFoundError
from app.base.values import ScoreSource
from app.db import results, tables
from app.db.database import keys_of
from app.db.lease import DueQueue
from app.db.queries import from_now
from app.db.tables import VerificationState
from app.projects.settings import ProjectSettings, VerifierAnswer, question, signing_key

EVENT = "task.verify"

_row = tables.Verification
QUEUE = DueQueue(_row, _row.state == VerificationState.PENDING, "claim a task to verify")


class VerifierRequest(msgspec.Struct, frozen=True):
    """Where the verifier of a project is, the key that signs, and the body."""

    url: str
    key: bytes
    body: bytes


class FailedAttempt(msgspec.Struct, frozen=True):
    """Why a verifier gave no answer."""

    problem: str
    final: bool = False  # asking again is pointless


async def enqueue(session: AsyncSession, project_id: UUID, task_id: UUID) -> None:
    """Ask about a task once this transaction is committed."""
    await session.execute(insert(_row).values(project_id=project_id, task_id=task_id).on_conflict_do_nothing())


async def request(session: AsyncSession, row: tables.Verification) -> VerifierRequest | FailedAttempt:
    """What to send now. Raises SettingError if the secret cannot be decrypted here."""
    project = tables.Project
    query = select(project.name, project.settings, project.verifier_secret).where(project.id == row.project_id)
    found = (await session.execute(query)).one_or_none()
    verifier = msgspec.convert(found.settings, ProjectSettings).verifier if found else None
    if found is None or verifier is None or found.verifier_secret is None:
        return FailedAttempt("the project has no verifier any more", final=True)
    try:
        trajectory = await results.of_task(session, row.task_id)
    except NotFoundError:
        return FailedAttempt("the trajectory of the task was deleted", final=True)
    data = {"project": found.name, "task_id": str(row.task_id), **question(trajectory)}
    message = {"type": EVENT, "timestamp": datetime.now(UTC).isoformat(), "data": data}
    key = signing_key(keys_of(session).decrypt(found.verifier_secret))
    return VerifierRequest(verifier.url, key, msgspec.json.encode(message))


async def record(
    session: AsyncSession,
    row: tables.Verification,
    result: VerifierAnswer | FailedAttempt,
    retry_in: float | None,
) -> bool:
    """Record an attempt and give the task its score, if there is one. Returns whether it is the task's score now.

    A failed one is repeated in `retry_in` seconds, or with None given up. Nothing is written where the question
    was claimed again.
    """
    owner, which = row.owner or "", QUEUE.same(row)
    await session.scalar(select(tables.Task.id).where(tables.Task.id == row.task_id).with_for_update())
    if isinstance(result, VerifierAnswer):
        state = VerificationState.ABSTAINED if result.score is None else VerificationState.SCORED
        change = QUEUE.finish(owner, which, state=state, problem=None, reason=result.reason)
    elif result.final or retry_in is None:
        change = QUEUE.finish(owner, which, state=VerificationState.FAILED, problem=result.problem)
    else:
        change = QUEUE.hand_back(owner, which, next_at=from_now(retry_in), problem=result.problem)
    if await session.scalar(change.returning(_row.task_id)) is None or isinstance(result, FailedAttempt):
        return False
    if result.score is None:
        return False
    return await results.give(session, row.task_id, result.score, ScoreSource.VERIFIER)


async def of_task(session: AsyncSession, task_id: UUID) -> tables.Verification | None:
    return await session.get(_row, task_id, populate_existing=True)

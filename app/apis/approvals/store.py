"""Approvals in the database. While one waits, so does its task: it has no owner, and no runner claims it.

A task continues when a person has decided, or when nobody has in time.
"""

from collections.abc import Callable
from uuid import UUID

import msgspec
import structlog
from sqlalchemy import ColumnElement, Uuid, bindparam, func, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from app.apis.approvals.gate import ApprovalDecision, ApprovalRequest, ShownCall
from app.base.errors import ConflictError, NotFoundError, SettingError
from app.base.loop import Loop, Looping
from app.base.values import Json
from app.db import lease, results, tables
from app.db.database import TRANSIENT, Sessions, execute, keys_of
from app.db.queries import Page, from_now, read_page
from app.db.tables import ApprovalState, AuditAction
from app.projects import audit, webhooks

SERVER = "server"  # decides on those that nobody decided on in time
_DECIDED = (ApprovalState.APPROVED, ApprovalState.REFUSED, ApprovalState.EXPIRED)

_SECONDS = 1.0  # between two looks for those that have expired

_approval = tables.Approval
_ARGUMENTS = select(_approval.id, _approval.arguments).where(_approval.task_id == bindparam("task", type_=Uuid))
log = structlog.get_logger(__name__)


class ApprovalFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Filters of a listing; None matches everything."""

    project_id: UUID | None = None
    task_id: UUID | None = None
    state: ApprovalState | None = None


class CallBefore(msgspec.Struct, frozen=True, kw_only=True):
    """A call that the task made before the one that waits. `change`: it may have changed something."""

    api: str = msgspec.field(name="operation")
    arguments: dict[str, Json]
    error: str | None
    change: bool


async def request(
    session: AsyncSession, task: tables.Task, owner: str, wanted: ApprovalRequest, shown: ShownCall
) -> tables.Approval | None:
    """Suspend the task until somebody decides. None, and it goes on: its cancellation was requested. The arguments
    of `wanted` are masked, for those who cannot decide.

    Raises ConflictError if the task has another owner.
    """
    if not await lease.suspend(session, task.id, owner):
        return None
    call = msgspec.structs.asdict(wanted)
    expires_at = from_now(call.pop("timeout_seconds"))
    why = {"because": call.pop("because"), "changes": list(call.pop("changes"))}
    sealed = keys_of(session).encrypt(msgspec.json.encode(shown).decode())
    row = _approval(project_id=task.project_id, task_id=task.id, expires_at=expires_at, shown=sealed, **call)
    session.add(row)
    await session.flush()
    await session.refresh(row)
    until = row.expires_at.isoformat()
    data = {"status": "wanted", "id": str(row.id), "turn": row.turn, "seq": row.seq, "api": row.api}
    data |= {"arguments": row.arguments, "expires_at": until, **why}
    await results.append(session, task.id, "approval", data)
    asked = {"approval_id": str(row.id), "operation": row.api, "because": wanted.because, "expires_at": until}
    await webhooks.enqueue(session, task.project_id, task.id, "approval.wanted", asked)
    return row


async def decisions(session: AsyncSession, task_id: UUID) -> list[ApprovalDecision]:
    """The decisions about calls of a task, oldest first."""
    rows = await session.scalars(
        select(_approval)
        .where(_approval.task_id == task_id, _approval.state.in_(_DECIDED))
        .order_by(_approval.created_at, _approval.id)
        .execution_options(populate_existing=True)
    )
    return msgspec.convert(rows.all(), list[ApprovalDecision], from_attributes=True)


async def get(session: AsyncSession, approval_id: UUID, project_id: UUID | None = None) -> tables.Approval:
    """Raises NotFoundError also for one of another project than the one given."""
    row = await session.get(_approval, approval_id, populate_existing=True)
    if row is None or project_id not in (None, row.project_id):
        raise NotFoundError(f"no approval has the id {approval_id}; GET /v1/approvals lists them")
    return row


async def before(session: AsyncSession, row: tables.Approval) -> tuple[str, list[CallBefore]]:
    """Why a call waits, or waited, and what its task had called before; nothing once its events are deleted."""
    asked = await results.of_kind(session, row.task_id, "approval")
    why = next((each for each in asked if (each["id"], each["status"]) == (str(row.id), "wanted")), {})
    made = {call["seq"]: call for call in await results.of_kind(session, row.task_id, "call")}
    before = [made[seq] | {"change": seq in why.get("changes", ())} for seq in sorted(made) if seq < row.seq]
    calls = [CallBefore(**{name: call[name] for name in CallBefore.__struct_fields__}) for call in before]
    return why.get("because", ""), calls


def shown(session: AsyncSession, row: tables.Approval) -> ShownCall:
    """What a person decides by; once somebody has, and for one of an earlier version, the masked arguments. So for
    one that cannot be decrypted here, with a `failure`.
    """
    if row.shown is None:
        return ShownCall(row.arguments)
    try:
        sealed = keys_of(session).decrypt(row.shown)
    except SettingError as error:
        return ShownCall(row.arguments, failure=f"what it would send cannot be read: {error}. Or refuse it")
    return msgspec.json.decode(sealed, type=ShownCall)


async def waiting(session: AsyncSession, task_id: UUID) -> tables.Approval | None:
    """The approval that a task waits for."""
    query = select(_approval).where(_approval.task_id == task_id, _approval.state == ApprovalState.WAITING)
    return await session.scalar(query)


async def count_waiting(session: AsyncSession, project_id: UUID | None = None) -> int:
    """In all projects, unless one is given."""
    query = select(func.count()).where(_approval.state == ApprovalState.WAITING)
    if project_id is not None:
        query = query.where(_approval.project_id == project_id)
    return (await session.scalars(query)).one()


async def page(
    session: AsyncSession, only: ApprovalFilter, *, cursor: str | None = None, limit: int = 50
) -> Page[tables.Approval]:
    """Newest first. Raises InvalidError for an invalid cursor."""
    query = select(_approval)
    for name, value in msgspec.structs.asdict(only).items():
        if value is not None:
            query = query.where(getattr(_approval, name) == value)
    return await read_page(session, query, _approval, cursor, limit)


async def decide(
    session: AsyncSession, approval: tables.Approval, state: ApprovalState, actor: str, reason: str = ""
) -> tables.Approval:
    """Approve or refuse a call, and let its task continue. Raises ConflictError if it is decided or expired, and
    to approve one that cannot be read.
    """
    if state is ApprovalState.APPROVED and (failure := shown(session, approval).failure) is not None:
        raise ConflictError(f"approval {approval.id} cannot be given: {failure}")
    await session.execute(select(tables.Task.id).where(tables.Task.id == approval.task_id).with_for_update())
    in_time = _approval.expires_at > func.clock_timestamp()
    decided = await _settle(session, approval.id, state, actor, reason, in_time)
    if decided is None:
        await session.refresh(approval)
        late = "expired" if approval.state is ApprovalState.WAITING else str(approval.state)
        by = f" by {approval.decided_by}" if approval.decided_by else ""
        raise ConflictError(f"approval {approval.id} is already {late}{by}: the first decision counts")
    return decided


async def rewrite(
    session: AsyncSession, task_id: UUID, change: Callable[[dict[str, Json]], dict[str, Json]]
) -> None:
    """Replace the arguments shown by what `change` makes of them."""
    for row in (await execute(session, _ARGUMENTS, {"task": task_id})).all():
        if (changed := change(row.arguments)) != row.arguments:
            await session.execute(update(_approval).where(_approval.id == row.id).values(arguments=changed))


async def expire_next(session: AsyncSession) -> UUID | None:
    """Let the task of an approval that nobody decided on in time continue. None if there is none.

    Returns the approval's id. Any number of processes may call it: each takes another one.
    """
    due = (
        select(_approval.id)
        .join(tables.Task, tables.Task.id == _approval.task_id)
        .where(_approval.state == ApprovalState.WAITING, _approval.expires_at <= func.clock_timestamp())
        .order_by(_approval.expires_at)
        .limit(1)
        .with_for_update(of=tables.Task, skip_locked=True)
    )
    approval_id = await session.scalar(due)
    if approval_id is None or await _settle(session, approval_id, ApprovalState.EXPIRED, SERVER, "") is None:
        return None  # somebody decided while this waited for the task
    return approval_id


async def _settle(
    session: AsyncSession,
    approval_id: UUID,
    state: ApprovalState,
    actor: str,
    reason: str,
    *which: ColumnElement[bool],
) -> tables.Approval | None:
    row = await session.scalar(
        update(_approval)
        .where(_approval.id == approval_id, _approval.state == ApprovalState.WAITING, *which)
        .values(state=state, decided_at=func.clock_timestamp(), decided_by=actor, reason=reason, shown=None)
        .returning(_approval)
        .execution_options(populate_existing=True)
    )
    if row is None:
        return None
    await lease.wake(session, row.task_id)
    data = {"status": state.value, "id": str(row.id), "api": row.api, "decided_by": actor, "reason": reason}
    await results.append(session, row.task_id, "approval", data)
    decision = {"api": row.api, "decision": state.value, "reason": reason}
    detail = {"approval": str(row.id), "task": str(row.task_id), **decision}
    await audit.add(session, row.project_id, None, actor, AuditAction.APPROVAL_DECIDED, detail)
    return row


class ApprovalExpiry(Looping):
    """Expires approvals while it is entered. Any number of processes may."""

    def __init__(self, sessions: Sessions, *, pause: float = _SECONDS) -> None:
        self._sessions = sessions
        self._loop = Loop("expire approvals", self._expire, pause, expected=TRANSIENT)

    async def _expire(self) -> float | None:
        async with self._sessions.begin() as session:
            expired = await expire_next(session)
        if expired is None:
            return None
        log.info("nobody decided on an approval in time", approval=str(expired))
        return 0

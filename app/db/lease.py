"""Who may work on what: leases on the rows of queues, what only the claim that holds a task may do, and advisory
locks across processes, which end with their connection.

A process claims a row for some seconds, renews it, and writes only while it owns it. The owner is a claim,
not a process: one that claims a row again, after its lease has expired, is another owner, so that what it
still does under its first claim can write nothing. Methods of a queue build statements and execute none; the
caller adds what its table needs, and `RETURNING`. A write that must not happen once another runner has the
task begins with `hold`, or is part of a statement with `held`.
"""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any, Generic, TypeVar
from uuid import UUID, uuid4

from sqlalchemy import (
    CTE,
    BindParameter,
    Boolean,
    ColumnElement,
    ColumnExpressionArgument,
    Double,
    Text,
    Update,
    Uuid,
    and_,
    bindparam,
    cast,
    func,
    inspect,
    literal_column,
    or_,
    select,
    text,
    true,
    update,
)
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import aliased

from app.base.errors import ConflictError
from app.db import tables
from app.db.database import Sessions, unpooled
from app.db.notify import TASKS, notify
from app.db.queries import from_now
from app.db.tables import Due, Leased, TaskState

_SEPARATOR = "/"  # between the process and the claim

T = TypeVar("T", bound=Leased)


def new_claim(process: str) -> str:
    """The owner of one lease."""
    return f"{process}{_SEPARATOR}{uuid4().hex[:12]}"


def process_of(owner: str) -> str:
    """
    >>> process_of(new_claim("host-7"))
    'host-7'
    """
    return owner.partition(_SEPARATOR)[0]


class LeaseQueue(Generic[T]):
    """The rows of one table, oldest first. `unfinished` is the condition of the table's partial index."""

    def __init__(self, row: type[T], unfinished: ColumnElement[bool]) -> None:
        self._row = row
        self._unfinished = unfinished

    def held(self, owner: str | BindParameter[str], *which: ColumnExpressionArgument[bool]) -> ColumnElement[bool]:
        return and_(self._row.owner == owner, self._unfinished, *which)

    def held_by(self, process: str | BindParameter[str]) -> ColumnElement[bool]:
        """By any claim of the process."""
        return and_(self.process() == process, self._unfinished)

    def process(self) -> ColumnElement[str]:
        """The process that holds the row; NULL if none does."""
        return func.split_part(self._row.owner, _SEPARATOR, 1)

    def expired(self) -> ColumnElement[bool]:
        return and_(self._unfinished, self._row.lease_until < func.clock_timestamp())

    def claim(self, owner: str, seconds: float, *which: ColumnExpressionArgument[bool], **values: Any) -> Update:
        """Take the oldest unfinished row without a valid lease. Concurrent claims skip each other's rows."""
        row, keys = self._row, inspect(self._row).primary_key
        free = or_(row.lease_until.is_(None), row.lease_until < func.clock_timestamp())
        oldest = (
            select(*keys)
            .where(self._unfinished, free, *which)
            .order_by(inspect(row).columns.created_at, *keys)
            .with_for_update(skip_locked=True)
            .limit(1)
            .cte("oldest")
        )
        return self.take(owner, seconds, *(key == oldest.c[key.name] for key in keys), **values)

    def take(
        self,
        owner: str | BindParameter[str],
        seconds: float,
        *which: ColumnExpressionArgument[bool],
        **values: Any,
    ) -> Update:
        """Lease rows that the caller has found free, and locked."""
        lease = {"owner": owner, "lease_until": from_now(seconds), "attempt": self._row.attempt + 1}
        return update(self._row).where(*which).values(**lease, **values)

    def extend(self, owner: str, seconds: float, *which: ColumnExpressionArgument[bool]) -> Update:
        return update(self._row).where(self.held(owner, *which)).values(lease_until=from_now(seconds))

    def finish(self, owner: str, *which: ColumnExpressionArgument[bool], **values: Any) -> Update:
        return self.hand_back(owner, *which, finished_at=func.clock_timestamp(), **values)

    def hand_back(self, owner: str, *which: ColumnExpressionArgument[bool], **values: Any) -> Update:
        """Drop the lease: another process may claim the row at once."""
        return self._free(self.held(owner, *which), values)

    def hand_back_all(self, process: str, **values: Any) -> Update:
        """Drop all leases of a process."""
        return self._free(self.held_by(process), values)

    def requeue_expired(self, **values: Any) -> Update:
        return self._free(self.expired(), values)

    def _free(self, which: ColumnElement[bool], values: dict[str, Any]) -> Update:
        return update(self._row).where(which).values({"owner": None, "lease_until": None, **values})


def lost(kind: str, row_id: UUID, owner: str) -> ConflictError:
    return ConflictError(f"{kind} {row_id} is no longer held by {owner}: drop it")


D = TypeVar("D", bound=Due)


class DueQueue(LeaseQueue[D]):
    """The rows of one table, whose primary key is one column. `lock` names what concurrent claims wait for."""

    def __init__(self, row: type[D], pending: ColumnElement[bool], lock: str) -> None:
        super().__init__(row, pending)
        [self._key] = inspect(row).primary_key
        self._lock = select(func.pg_advisory_xact_lock(func.hashtextextended(lock, 0)))

    async def claim_due(
        self, session: AsyncSession, owner: str, lease_seconds: float, *, per_project: int
    ) -> D | None:
        """The message that is due longest, of a project with fewer than `per_project` under way; or None.

        `owner` is of this claim alone.

        Concurrent claims wait for each other: each sees how many are under way. Of each project only the first
        message is read, so that a receiver that is down does not make the claims of others slow.
        """
        await session.execute(self._lock)
        row, key = self._row, self._key
        now = select(func.clock_timestamp()).scalar_subquery()  # of which the index is used
        free = or_(row.lease_until.is_(None), row.lease_until < now)
        project, other = tables.Project, aliased(row)
        first = (
            select(key.label("key"), row.next_at)
            .where(row.project_id == project.id, self._unfinished, free, row.next_at <= now)
            .order_by(row.next_at)
            .limit(1)
            .lateral()
        )
        leased = (other.project_id == project.id, other.owner.is_not(None), other.lease_until > now)
        under_way = select(func.count()).select_from(other).where(*leased).scalar_subquery()
        found = select(first.c.key).select_from(project).join(first, true()).where(under_way < per_project)
        oldest = found.order_by(first.c.next_at).limit(1).scalar_subquery()
        claimed = self.take(owner, lease_seconds, key == oldest, self._unfinished, free).returning(row)
        taken: D | None = await session.scalar(claimed.execution_options(populate_existing=True))
        return taken

    async def is_claimed(self, session: AsyncSession, row: D) -> bool:
        """Whether the claim that returned `row` still holds: otherwise another sends the message, or soon will."""
        valid = self.held(row.owner or "", self.same(row), self._row.lease_until > func.clock_timestamp())
        return await session.scalar(select(self._key).where(valid)) is not None

    async def hand_back_unsent(self, session: AsyncSession, process: str) -> None:
        """Let others send the process's messages at once; the attempts do not count."""
        await session.execute(self.hand_back_all(process, attempt=self._row.attempt - 1))

    def same(self, row: D) -> ColumnElement[bool]:
        """SQL condition: this row."""
        [value] = inspect(row).identity or (None,)
        same: ColumnElement[bool] = self._key == value
        return same


_task = tables.Task
RUNNING = _task.state == literal_column("'running'")  # a literal: a parameter would match no partial index
QUEUE = LeaseQueue(_task, RUNNING)


async def hold(session: AsyncSession, task_id: UUID, owner: str) -> None:
    """Keep others from claiming the task until this transaction ends. Raises ConflictError if one has already."""
    held = select(_task.id).where(QUEUE.held(owner, _task.id == task_id)).with_for_update(read=True)
    if await session.scalar(held) is None:
        raise lost("task", task_id, owner)


async def hold_for(session: AsyncSession, task_id: UUID, owner: str, seconds: float) -> None:
    """Keep others from claiming the task for so many seconds from now, also if its lease has expired.

    Raises ConflictError if one has claimed it already.
    """
    held = select(_task.lease_until < from_now(seconds)).where(QUEUE.held(owner, _task.id == task_id))
    soon = await session.scalar(held.with_for_update(read=True))
    if soon is None:
        raise lost("task", task_id, owner)
    if soon:
        await session.execute(QUEUE.extend(owner, seconds, _task.id == task_id))


async def suspend(session: AsyncSession, task_id: UUID, owner: str) -> bool:
    """Let the task wait, without an owner, until `wake`; the attempt does not count.

    False, and nothing is written: its cancellation was requested. Raises ConflictError if it has another owner.
    """
    running = QUEUE.held(owner, _task.id == task_id, ~_task.cancel_requested)
    waiting = {
        "state": TaskState.WAITING,
        "owner": None,
        "lease_until": None,
        "attempt": _task.attempt - 1,
        "alone": False,
    }
    if await session.scalar(update(_task).where(running).values(**waiting).returning(_task.id)) is not None:
        return True
    await hold(session, task_id, owner)
    return False


async def wake(session: AsyncSession, task_id: UUID) -> None:
    """Let a runner resume a task that waits."""
    waits = (_task.id == task_id, _task.state == TaskState.WAITING)
    await session.execute(update(_task).where(*waits).values(state=TaskState.RUNNING))
    await notify(session, TASKS)


def held() -> CTE:
    """As `hold`, for a larger statement: the row of the task `:task` while it is of the owner `:claim`."""
    which = QUEUE.held(bindparam("claim", type_=Text), _task.id == bindparam("task", type_=Uuid))
    return select(_task.id).where(which).with_for_update(read=True).cte("held")


def extended(held: CTE) -> CTE:
    """Part of a larger statement: as `hold_for`, for `:hold_seconds`."""
    seconds = cast(bindparam("hold_seconds", type_=Double), Double)
    until = func.clock_timestamp() + func.make_interval(0, 0, 0, 0, 0, 0, seconds)
    soon = (_task.id == held.c.id, _task.lease_until < until)
    return update(_task).where(*soon).values(lease_until=until).cte("extended")


_CLASS_ID = "('x' || left(md5(CAST({} AS text)), 7))::bit(28)::int"  # a project's id as PostgreSQL's int
_PROJECT, _RELEASE_PROJECT = _CLASS_ID.format(":project"), _CLASS_ID.format("releases.project_id")
_HELD = (
    "FROM pg_locks WHERE locktype = 'advisory' AND granted AND objsubid = 2"
    " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
)
_LOCK_ADAPTER = text("SELECT pg_advisory_lock(hashtextextended(:adapter, 0))")
_LOCK_STAGING = text("SELECT pg_advisory_lock(hashtextextended(:service, 1))")
_TRY_LOCK = text("SELECT pg_try_advisory_lock(:key)")
_ANNOUNCE = text(f"SELECT pg_advisory_lock_shared({_PROJECT}, :number)")
_HOLDER = text(f"SELECT objid::int {_HELD} AND classid::int = {_PROJECT} LIMIT 1")
_IS_ANNOUNCED = f"({_RELEASE_PROJECT}, releases.number) IN (SELECT classid::int, objid::int {_HELD})"
_UNLOCK = text("SELECT pg_advisory_unlock_all()")


class SwapUnderWayError(ConflictError):
    """Another process activates a release of the project, or has just begun to."""


@asynccontextmanager
async def swap_lock(sessions: Sessions, project_id: UUID, number: int) -> AsyncIterator[None]:
    """Held while release `number` is activated, without an open transaction.

    Raises SwapUnderWayError with the release that is being activated already.
    """
    async with _locking(sessions) as connection:
        await _take(connection, project_id, number)
        yield


@asynccontextmanager
async def load_lock(sessions: Sessions, adapter: str) -> AsyncIterator[None]:
    """Held while model servers load and verify an adapter; other processes wait.

    A failed load is undone, which must not remove what another process has since verified.
    """
    async with _locking(sessions) as connection:
        await connection.execute(_LOCK_ADAPTER, {"adapter": adapter})
        yield


@asynccontextmanager
async def staging_lock(sessions: Sessions, services: Iterable[str]) -> AsyncIterator[None]:
    """Held during a trial that resets these services and changes them, by the runs of all projects; others wait.

    Raises an error at the end if the lock was lost meanwhile: another trial may have interfered.
    """
    async with _locking(sessions) as connection:
        for service in sorted(set(services)):  # in one order: those who share several never wait in a circle
            await connection.execute(_LOCK_STAGING, {"service": service})
        yield


@asynccontextmanager
async def _locking(sessions: Sessions) -> AsyncIterator[AsyncConnection]:
    async with unpooled(sessions)() as session:
        connection = await session.connection(execution_options={"isolation_level": "AUTOCOMMIT"})
        try:
            yield connection
        finally:
            if not connection.invalidated:  # as of one that stopped waiting: what it held ended with it
                await connection.execute(_UNLOCK)


def is_being_activated() -> ColumnElement[bool]:
    """SQL condition: a row of `Release` is being activated, by any process."""
    return literal_column(_IS_ANNOUNCED, Boolean)


async def _take(connection: AsyncConnection, project_id: UUID, number: int) -> None:
    """The first lock is exclusive; the second, a shared one, announces the release's number."""
    if await connection.scalar(_TRY_LOCK, {"key": int.from_bytes(project_id.bytes[8:], "big", signed=True)}):
        await connection.execute(_ANNOUNCE, {"project": project_id, "number": number})
        return
    other = await connection.scalar(_HOLDER, {"project": project_id})
    raise SwapUnderWayError(
        f"release {other or 'of this project'} is being activated: wait until it serves, then try again"
    )

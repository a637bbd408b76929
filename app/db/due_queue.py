"""Queues of messages to servers of projects: each is due at a time, and no project takes them all."""

from typing import TypeVar

from sqlalchemy import ColumnElement, func, inspect, or_, select, true
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import aliased

from app.db import tables
from app.db.lease import LeaseQueue
from app.db.tables import Due

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

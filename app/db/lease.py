"""Leases on queue rows: a process claims a row for some seconds, renews it, and writes only while it owns it.

The methods build statements and execute none; the caller adds what its table needs, and `RETURNING`.
"""

from typing import Any, Generic, TypeVar
from uuid import UUID

from sqlalchemy import ColumnElement, ColumnExpressionArgument, Update, and_, func, inspect, or_, select, update

from app.db.base import Leased
from app.db.clock import from_now
from app.errors import ConflictError

T = TypeVar("T", bound=Leased)


class LeaseQueue(Generic[T]):
    """The rows of one table, oldest first. `unfinished` is the condition of the table's partial index."""

    def __init__(self, row: type[T], unfinished: ColumnElement[bool]) -> None:
        self._row = row
        self._unfinished = unfinished

    def held(self, owner: str, *which: ColumnExpressionArgument[bool]) -> ColumnElement[bool]:
        return and_(self._row.owner == owner, self._unfinished, *which)

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

    def take(self, owner: str, seconds: float, *which: ColumnExpressionArgument[bool], **values: Any) -> Update:
        """Lease rows that the caller has found free, and locked."""
        lease = {"owner": owner, "lease_until": from_now(seconds), "attempt": self._row.attempt + 1}
        return update(self._row).where(*which).values(**lease, **values)

    def extend(self, owner: str, seconds: float, *which: ColumnExpressionArgument[bool]) -> Update:
        return update(self._row).where(self.held(owner, *which)).values(lease_until=from_now(seconds))

    def finish(self, owner: str, *which: ColumnExpressionArgument[bool], **values: Any) -> Update:
        return self.hand_back(owner, *which, finished_at=func.clock_timestamp(), **values)

    def hand_back(self, owner: str, *which: ColumnExpressionArgument[bool], **values: Any) -> Update:
        """Drop the lease: another process may claim the row at once."""
        return update(self._row).where(self.held(owner, *which)).values(owner=None, lease_until=None, **values)

    def requeue_expired(self, **values: Any) -> Update:
        return update(self._row).where(self.expired()).values(owner=None, lease_until=None, **values)


def lost(kind: str, row_id: UUID, owner: str) -> ConflictError:
    return ConflictError(f"{kind} {row_id} is no longer held by {owner}: drop it")

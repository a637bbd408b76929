"""Leases on queue rows: a process claims a row for some seconds, renews it, and writes only while it owns it.

The owner is a claim, not a process: one that claims a row again, after its lease has expired, is another owner, so
that what it still does under its first claim can write nothing.

The methods build statements and execute none; the caller adds what its table needs, and `RETURNING`.
"""

from typing import Any, Generic, TypeVar
from uuid import UUID, uuid4

from sqlalchemy import (
    BindParameter,
    ColumnElement,
    ColumnExpressionArgument,
    Update,
    and_,
    func,
    inspect,
    or_,
    select,
    update,
)

from app.db.clock import from_now
from app.db.tables import Leased
from app.errors import ConflictError

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

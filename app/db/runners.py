"""The runner processes, as they report themselves. Any number may report at once."""

from collections.abc import Sequence

import msgspec
from sqlalchemy import (
    BigInteger,
    ColumnElement,
    ScalarSelect,
    SQLColumnExpression,
    and_,
    delete,
    exists,
    func,
    literal_column,
    select,
    update,
)
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from app.db import tables
from app.db.queries import from_now

_LIVE_SECONDS = 10.0  # since the last report of a runner that counts as live
_FORGET_SECONDS = 600.0  # after which the row of one that stopped reporting is deleted

ESSENTIAL = CLAIMS, SANDBOX, DISK, HOST = "claims", "sandbox", "disk", "host"
"""Parts of a runner, in its `faults`, without which it claims no tasks."""

NONE_LIVE = "no runner has reported for some seconds"

_row = tables.RunnerProcess


class RunnerReport(msgspec.Struct, frozen=True, kw_only=True):
    """A runner's own account of its state."""

    id: str
    host: str
    pid: int
    pid_space: str
    in_flight: int
    capacity: int
    memory_bytes: int
    generating: int = 0
    waiting: int = 0
    sandbox: str
    prompt: str | None = None
    draining: bool = False
    error: str | None = None
    faults: dict[str, str] = {}
    loop_failures: int = 0
    loop_restarts: int = 0
    dropped_lines: int = 0


async def report(session: AsyncSession, new: RunnerReport) -> None:
    """Call it at the start and every second."""
    values = msgspec.structs.asdict(new)
    seen = update(_row).where(_row.id == new.id).values(**values, seen_at=func.clock_timestamp())
    if await session.scalar(seen.returning(_row.id)) is None:  # an upsert would take a number each time
        await session.execute(insert(_row).values(**values).on_conflict_do_nothing())
        await session.execute(delete(_row).where(_row.seen_at < from_now(-_FORGET_SECONDS)))


async def remove(session: AsyncSession, runner_id: str) -> None:
    """The runner ended."""
    await session.execute(delete(_row).where(_row.id == runner_id))


async def live(session: AsyncSession) -> Sequence[tables.RunnerProcess]:
    """Those that reported within seconds, oldest first."""
    return (await session.scalars(select(_row).where(_is_live()).order_by(_row.number))).all()


async def prompts(session: AsyncSession) -> set[str]:
    """The hashes of the prompts that claimed tasks are served with at present."""
    found = await session.scalars(select(_row.prompt).where(_claims(), _row.prompt.is_not(None)).distinct())
    return {each for each in found if each is not None}


def serve_with(prompt: SQLColumnExpression[str | None]) -> ColumnElement[bool]:
    """SQL condition: a runner with this prompt can claim tasks."""
    return exists(select(_row.id).where(_claims(), _row.prompt == prompt))


async def others_in(session: AsyncSession, pid_space: str, runner_id: str) -> Sequence[tables.RunnerProcess]:
    """The other runners whose pids mean something where `pid_space` is valid, live or not."""
    rows = select(_row).where(_row.pid_space == pid_space, _row.id != runner_id)
    return (await session.scalars(rows)).all()


async def starts(session: AsyncSession) -> int:
    """How many runners were ever started."""
    last = literal_column("pg_sequence_last_value(pg_get_serial_sequence('runners', 'number'))", BigInteger)
    return await session.scalar(select(func.coalesce(last, 0))) or 0


def count_of_live() -> ScalarSelect[int]:
    return select(func.count()).select_from(_row).where(_is_live()).scalar_subquery()


def _claims() -> ColumnElement[bool]:
    return and_(_is_live(), ~_row.draining, _row.error.is_(None))


def _is_live() -> ColumnElement[bool]:
    return _row.seen_at > from_now(-_LIVE_SECONDS)

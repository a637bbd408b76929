"""The environments that the workers report. Any number of workers may report at once."""

from collections.abc import Sequence

from sqlalchemy import delete, func, or_, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from app.base.plugin_options import EnvironmentInfo
from app.db import tables
from app.db.queries import from_now

REPORT_SECONDS = 60.0
_EXPIRY_SECONDS = 5 * REPORT_SECONDS  # rows not refreshed for this long are ignored
_FORGET_SECONDS = 24 * 3600.0  # and deleted after this

_row = tables.WorkerEnvironment


async def report(session: AsyncSession, worker: str, environments: Sequence[EnvironmentInfo]) -> None:
    """Replace what the worker reported before. Call it at its start, and every REPORT_SECONDS."""
    names = [each.name for each in environments]
    for each in sorted(environments, key=lambda each: each.name):  # one order: workers of one host never deadlock
        values = {"version": each.version, "options": each.options, "reported_at": func.clock_timestamp()}
        await session.execute(
            insert(_row)
            .values(worker=worker, name=each.name, **values)
            .on_conflict_do_update(index_elements=["worker", "name"], set_=values)
        )
    gone = (_row.worker == worker) & _row.name.not_in(names)
    await session.execute(delete(_row).where(or_(gone, _row.reported_at < from_now(-_FORGET_SECONDS))))


async def installed(session: AsyncSession) -> list[EnvironmentInfo]:
    """Those of all live workers, by name: an entry for each version with its options."""
    rows = await session.scalars(
        select(_row).where(_row.reported_at > from_now(-_EXPIRY_SECONDS)).order_by(_row.name, _row.version)
    )
    found: list[EnvironmentInfo] = []
    for row in rows:
        info = EnvironmentInfo(row.name, row.version, row.options)
        if info not in found:
            found.append(info)
    return found


async def workers(session: AsyncSession) -> list[str]:
    """The hosts of the live workers."""
    hosts = select(_row.worker).where(_row.reported_at > from_now(-_EXPIRY_SECONDS))
    return sorted(set(await session.scalars(hosts)))

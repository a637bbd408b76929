"""Route for statistics: how many tasks succeeded, and what they cost, over time."""

from datetime import UTC, datetime, timedelta
from typing import Annotated
from uuid import UUID

import msgspec
from litestar import Controller, get
from litestar.params import FromQuery, QueryParameter
from sqlalchemy.ext.asyncio import AsyncSession

from app.api.access import Caller, Db
from app.api.console_links import ConsoleLinks
from app.api.problem import problems
from app.api.project_access import find_project
from app.api.validation import TIME, ProjectName, in_utc
from app.db import clock, releases, skills, statistics
from app.db.statistics import Grouping, TaskStatistics, TimeBucket
from app.errors import InvalidError

_LENGTHS = {TimeBucket.HOUR: timedelta(hours=1), TimeBucket.DAY: timedelta(days=1), TimeBucket.WEEK: timedelta(7)}
_MOST_BUCKETS = 400
_DEFAULT_BUCKETS = 30

From = Annotated[
    str | None,
    QueryParameter(
        name="from", description="ended at this time or later; default: 30 buckets ago", schema_extra=TIME
    ),
]
To = Annotated[str | None, QueryParameter(name="to", description="ended before; default: now", schema_extra=TIME)]
Keys = Annotated[
    int, QueryParameter(ge=1, le=100, description="scenarios, releases or skills, those with most tasks")
]


class StatisticsRow(TaskStatistics, frozen=True, kw_only=True):
    """`name` is the scenario, the number of the release, or the name and version of the skill."""

    name: str | None


class StatisticsView(msgspec.Struct, frozen=True, kw_only=True):
    """Newest bucket first. Buckets without tasks are left out.

    At most the newest 1,000,000 tasks of the window are counted, by skill 100,000: `counted_from` is then the end
    of the oldest that is.
    """

    project: str
    by: Grouping | None
    bucket: TimeBucket
    since: datetime
    until: datetime
    counted_from: datetime | None
    rows: list[StatisticsRow]
    links: ConsoleLinks


class StatisticsController(Controller):
    path = "/stats"
    tags = ("Tasks",)
    opt = {"scope": "tasks"}  # noqa: RUF012

    @get(summary="Count tasks over time", responses=problems(400, 401, 403, 404))
    async def index(  # noqa: PLR0913 - each is a query parameter
        self,
        session: Db,
        access: Caller,
        project: ProjectName = None,
        by: FromQuery[Grouping | None] = None,
        bucket: FromQuery[TimeBucket] = TimeBucket.DAY,
        since: From = None,
        until: To = None,
        limit: Keys = 20,
    ) -> StatisticsView:
        """Tasks, success, and the means of turns, tokens and seconds: of all tasks, or by scenario, by release, or
        by the skills that were used.
        """
        owner = await find_project(session, access, project)
        end = in_utc(until) or (await clock.now(session)).astimezone(UTC)
        start = in_utc(since) or _before(end, bucket)
        if not timedelta() < end - start <= _MOST_BUCKETS * _LENGTHS[bucket]:
            raise InvalidError(
                f"`from` must lie before `to`, by at most {_MOST_BUCKETS} {bucket.value}s: choose a shorter time, "
                "or a longer `bucket`"
            )
        found = await statistics.of_project(session, owner.id, by, start, end, bucket, limit)
        names = await _names(session, owner.id, by, {row.key for row in found.rows if row.key is not None})
        rows = [
            StatisticsRow(name=names.get(row.key, row.key) if row.key else None, **msgspec.structs.asdict(row))
            for row in found.rows
        ]
        return StatisticsView(
            project=owner.name,
            by=by,
            bucket=bucket,
            since=start,
            until=end,
            counted_from=found.counted_from,
            rows=rows,
            links=ConsoleLinks.to("/console", owner.name),
        )


def _before(end: datetime, bucket: TimeBucket) -> datetime:
    try:
        return end - _DEFAULT_BUCKETS * _LENGTHS[bucket]
    except OverflowError as error:
        raise InvalidError("`to` is too early") from error


async def _names(session: AsyncSession, project_id: UUID, by: Grouping | None, keys: set[str]) -> dict[str, str]:
    if by is Grouping.RELEASE:
        return {str(row.id): str(row.number) for row in await releases.of_project(session, project_id)}
    if by is Grouping.SKILL:
        rows = await skills.of_ids(session, [UUID(key) for key in keys])
        return {str(row.id): f"{row.name} {row.version}" for row in rows}
    return {}

"""The first page: is it learning, what does it do now, what has it saved, and what needs a person?

Learning is success and costs of a project's tasks over time, with the releases that served them.
"""

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from statistics import fmean
from typing import Annotated, Any
from uuid import UUID

import msgspec
from litestar import Controller, Response, get
from litestar.params import QueryParameter
from sqlalchemy.ext.asyncio import AsyncSession

from app.apis import trials
from app.apis.approvals import store as approvals
from app.db import tables
from app.db.tables import ApprovalState, ReleaseState, SkillState
from app.projects import statistics, usage
from app.projects.statistics import FailingKind, OutcomeCounts, TaskStatistics, TimeBucket
from app.releases import store as releases
from app.skills import store as skills
from app.skills import value
from app.tasks import queue
from app.tasks import store as tasks
from app.tasks.feedback import WantedFeedback, wanted_feedback
from app.web.access import ANY_KEY, Db
from app.web.charts import (
    Axis,
    Column,
    ColumnChart,
    LineChart,
    Mark,
    Point,
    Series,
    column_chart,
    line_chart,
    number_axis,
    percent_axis,
    time_axis,
)
from app.web.formats import count, csv_file, percent
from app.web.pages import Visit, Visitor, page

_SHOWN = 5  # of a list
_LATEST = 8  # tasks
_TRIED = (ReleaseState.CANDIDATE, ReleaseState.PASSED, ReleaseState.CANARY)
_COLUMNS = ("start", "tasks", "failed", "scored", "succeeded", "success", "turns", "generated_tokens", "seconds")

Days = Annotated[int, QueryParameter(ge=1, le=365)]
_LEAST = 0.1  # of the scored tasks, on each side of a comparison
_OUTCOMES = ("solved", "unscored", "failed")


class Wanted(msgspec.Struct, frozen=True):
    """What needs a person: the first ones, and how many. Empty where the key lacks the scope to do it."""

    approvals: list[tables.Approval] = []
    all_approvals: int = 0
    candidates: list[tables.Release] = []
    quarantined: list[tables.Skill] = []
    all_quarantined: int = 0
    failing: list[FailingKind] = []
    unusable: list[str] = []  # the APIs that were tried, if the model that serves can use none of them
    feedback: list[WantedFeedback] = []


class HomePages(Controller):
    opt = {"scope": ANY_KEY}  # noqa: RUF012

    @get()
    async def show(self, visit: Visitor, session: Db, days: Days = 30) -> Response[str]:
        if visit.chosen is None or not visit.allows("tasks"):
            return page(visit, "home_empty.html")
        owner = visit.chosen.id
        return page(
            visit,
            "home.html",
            days=days,
            learning=await of_project(session, owner, visit.now, days),
            **await _now(session, owner),
            cost=sum(each.cost for each in await usage.of_days(session, owner, days)),
            savings=await value.by_scenario(session, owner, visit.now - timedelta(days=days)),
            total=value.total,
            wanted=await _wanted(session, visit),
        )

    @get("/now", opt={"scope": "tasks"})
    async def now(self, visit: Visitor, session: Db) -> Response[str]:
        """The part of the page that changes while somebody looks."""
        return page(visit, "home_now.html", **await _now(session, visit.project.id))

    @get("/learning.csv", opt={"scope": "tasks"})
    async def learning_file(self, visit: Visitor, session: Db, days: Days = 30) -> Response[str]:
        found = await of_project(session, visit.project.id, visit.now, days)
        rows = [[getattr(row, name) for name in _COLUMNS] for row in found.rows]
        return csv_file(f"{visit.project.name}-learning", _COLUMNS, rows)


async def _now(session: AsyncSession, project_id: UUID) -> dict[str, Any]:
    queued, running = await queue.in_progress(session, project_id)
    latest = await tasks.page(session, tasks.TaskFilter(project_id=project_id), limit=_LATEST)
    return {"queued": queued, "running": running, "latest": latest.items}


async def _wanted(session: AsyncSession, visit: Visit) -> Wanted:
    owner = visit.project.id
    waiting = approvals.ApprovalFilter(project_id=owner, state=ApprovalState.WAITING)
    held = skills.SkillFilter(project_id=owner, state=SkillState.QUARANTINED)
    found: dict[str, Any] = {
        "failing": await statistics.failing_kinds(session, owner, _SHOWN),
        "unusable": await trials.unusable(session, owner),
        "feedback": await wanted_feedback(session, owner, _SHOWN),
    }
    if visit.allows("approvals"):
        found["approvals"] = (await approvals.page(session, waiting, limit=_SHOWN)).items
        found["all_approvals"] = await approvals.count_waiting(session, owner)
    if visit.allows("skills"):
        found["quarantined"] = (await skills.page(session, held, limit=_SHOWN)).items
        found["all_quarantined"] = await skills.count(session, held)
    if visit.allows("admin"):
        known = await releases.of_project(session, owner)
        found["candidates"] = [row for row in known if row.state in _TRIED]
    return Wanted(**found)


class Learning(msgspec.Struct, frozen=True):
    """`rows` are the statistics of each bucket of time, oldest first. `verdict` says it in a sentence, and `ended`
    how all tasks ended.
    """

    rows: list[TaskStatistics]
    bucket: TimeBucket
    outcomes: ColumnChart
    counts: list[OutcomeCounts]
    success: LineChart
    tokens: LineChart
    verdict: str
    ended: str


async def of_project(session: AsyncSession, project_id: UUID, now: datetime, days: int) -> Learning:
    """Of the last days, or of the hours of one."""
    bucket = TimeBucket.HOUR if days == 1 else TimeBucket.DAY
    since = _floor(now - timedelta(days=days), bucket)
    found = await statistics.of_project(session, project_id, None, since, now, bucket, 1)
    rows = found.rows[::-1]
    axis = time_axis(since, now)
    marks = [_mark(row) for row in await releases.of_project(session, project_id) if row.activated_at]
    counts = await statistics.over_time(session, project_id, since, bucket)
    tokens = number_axis([row.generated_tokens for row in rows], count)

    def chart(label: str, value: Callable[[TaskStatistics], float | None], y: Axis) -> LineChart:
        points = [_point(row, value(row), bucket) for row in rows]
        return line_chart(label, [Series(label, points)], axis, y, marks)

    return Learning(
        rows=rows,
        bucket=bucket,
        outcomes=_outcomes(counts, since, now, bucket),
        counts=counts,
        success=chart(f"Success by {bucket.value}, with releases", lambda row: row.success, percent_axis()),
        tokens=chart(f"Tokens a task by {bucket.value}", lambda row: row.generated_tokens, tokens),
        verdict=_verdict(rows),
        ended=_ended(counts),
    )


def _floor(time: datetime, bucket: TimeBucket) -> datetime:
    start = time.replace(minute=0, second=0, microsecond=0)
    return start if bucket is TimeBucket.HOUR else start.replace(hour=0)


def _outcomes(counts: Sequence[OutcomeCounts], since: datetime, now: datetime, bucket: TimeBucket) -> ColumnChart:
    """A column for each bucket, also for those in which no task ended."""
    by_start = {each.start: each for each in counts}
    starts = [since]
    while starts[-1] + bucket.length <= now:
        starts.append(starts[-1] + bucket.length)
    found = [(start, by_start.get(start)) for start in starts]
    columns = [Column(_label(at, bucket), [getattr(each, name, 0) for name in _OUTCOMES]) for at, each in found]
    return column_chart(f"Solved, unscored and failed tasks by {bucket.value}", _OUTCOMES, columns, count)


def _label(start: datetime, bucket: TimeBucket) -> str:
    return f"{start:%H:%M}" if bucket is TimeBucket.HOUR else f"{start.day} {start:%b}"


def _ended(counts: Sequence[OutcomeCounts]) -> str:
    """
    >>> start = datetime(2026, 1, 1)
    >>> _ended([OutcomeCounts(start=start, solved=5, unscored=0, failed=1)])
    'Of 6 tasks that ended, 5 were solved, 0 have no score and 1 failed.'
    >>> _ended([])
    'No task of this time has ended.'
    """
    solved, unscored, failed = (sum(getattr(each, name) for each in counts) for name in _OUTCOMES)
    if not (total := solved + unscored + failed):
        return "No task of this time has ended."
    return (
        f"Of {count(total)} tasks that ended, {count(solved)} were solved, {count(unscored)} have no score and "
        f"{count(failed)} failed."
    )


def _point(row: TaskStatistics, value: float | None, bucket: TimeBucket) -> Point:
    title = (
        f"{_label(row.start, bucket)}: {percent(row.success)} of {row.scored} scored, {row.tasks} tasks, "
        f"{count(row.generated_tokens)} tokens and {count(row.turns)} turns each"
    )
    return Point((row.start + bucket.length / 2).timestamp(), value, title)


def _mark(row: tables.Release) -> Mark:
    assert row.activated_at is not None
    title = f"Release {row.number} began to serve, {row.activated_at:%Y-%m-%d %H:%M} UTC"
    return Mark(row.activated_at.timestamp(), f"r{row.number}", title)


def _verdict(rows: Sequence[TaskStatistics]) -> str:
    """The later half of the scored tasks beside the earlier one, unless nearly all of them are of one half.

    >>> def day(scored: int, good: int) -> TaskStatistics:
    ...     return TaskStatistics(key=None, start=datetime(2026, 1, 1), tasks=scored, failed=0, scored=scored,
    ...         succeeded=good, success=good / scored, turns=2, generated_tokens=100, seconds=1)
    >>> _verdict([day(10, 4), day(10, 9)])
    '90 % of the latest 10 scored tasks succeeded, 40 % of the 10 before.'
    >>> _verdict([day(4, 4)])
    '100 % of 4 scored tasks succeeded.'
    >>> _verdict([day(1, 0), day(19, 19)]), _verdict([day(60, 30), day(1, 1)])
    ('95 % of 20 scored tasks succeeded.', '50.8 % of 61 scored tasks succeeded.')
    """
    scored = [row for row in rows if row.scored]
    if not scored:
        return "No task of this time has a score."
    half, early = sum(row.scored for row in scored) / 2, list[TaskStatistics]()
    while len(early) < len(scored) and sum(row.scored for row in [*early, scored[len(early)]]) <= half:
        early.append(scored[len(early)])
    late = scored[len(early) :]
    number, before = sum(row.scored for row in late), sum(row.scored for row in early)
    if min(number, before) < _LEAST * (number + before):
        return f"{percent(_success(scored))} of {count(number + before)} scored tasks succeeded."
    return (
        f"{percent(_success(late))} of the latest {count(number)} scored tasks succeeded, "
        f"{percent(_success(early))} of the {count(before)} before."
    )


def _success(rows: Sequence[TaskStatistics]) -> float:
    return fmean((row.success or 0.0 for row in rows), weights=[row.scored for row in rows])

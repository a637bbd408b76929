"""The releases of a project: a line of what served when, and a row for each."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec
from litestar import Controller, Response, get
from litestar.params import FromQuery
from sqlalchemy.ext.asyncio import AsyncSession

from app.console.release_evidence import Evidence, read_evidence
from app.console.release_figures import ReleaseVerdict, verdict
from app.db import releases, tables
from app.db.tables import AuditAction
from app.projects import audit
from app.release.activation import rolls_back
from app.release.served import Period, periods
from app.web.access import Db
from app.web.charts import Axis, LineChart, Point, Series, line_chart, time_axis
from app.web.formats import csv_file
from app.web.pages import Visitor, page

_SERVING = (AuditAction.ACTIVATED, AuditAction.CANARY_BEGAN, AuditAction.CANARY_ENDED)
_CSV = ("release", "as", "since", "until")


class ReleaseRow(msgspec.Struct, frozen=True, kw_only=True):
    """A release in the list. `served` are the seconds it was active in all."""

    release: tables.Release
    evidence: Evidence
    verdict: ReleaseVerdict | None
    origin: str
    served: float
    since: datetime | None  # it last began to be active


class ReleasePages(Controller):
    path = "/releases"
    opt = {"scope": "tasks"}  # noqa: RUF012

    @get()
    async def index(self, visit: Visitor, session: Db, file: FromQuery[str] = "") -> Response[Any]:
        rows = await releases.of_project(session, visit.project.id)
        served = await read_periods(session, rows)
        numbers = {each.id: each.number for each in rows}
        if file == "csv":
            return csv_file("releases", _CSV, [_numbers(numbers, each) for each in served])
        return page(
            visit,
            "releases.html",
            rows=[_row(each, served, visit.now) for each in rows],
            active=next((each for each in rows if each.state is tables.ReleaseState.ACTIVE), None),
            before=before_active(served, rows),
            label=activation_label,
            chart=_chart(served, numbers, visit.now),
            periods=[(numbers[each.release_id], each) for each in reversed(served)],
        )


def activation_label(release: tables.Release, active: tables.Release | None) -> str:
    """How a button that activates it is named."""
    if active is not None and rolls_back(release, active):
        return f"Roll back to release {release.number}"
    return f"Activate release {release.number}{' again' if release.activated_at is not None else ''}"


async def read_periods(session: AsyncSession, rows: Sequence[tables.Release]) -> list[Period]:
    """When each of all releases of a project served, oldest first."""
    if not rows:
        return []
    first = rows[-1]
    moments = await audit.release_moments(session, first.project_id, _SERVING)
    return periods(first.id, first.created_at, moments)


def before_active(served: Sequence[Period], rows: Sequence[tables.Release]) -> tables.Release | None:
    """The release that was active before the present one, unless it was rejected since."""
    active = [each.release_id for each in served if not each.canary]
    known = {each.id: each for each in rows if each.state is not tables.ReleaseState.REJECTED}
    return next((known[each] for each in reversed(active[:-1]) if each in known and each != active[-1]), None)


def origin_of(release: tables.Release, evidence: Evidence) -> str:
    """Why it was made."""
    if release.training_run_id is not None and evidence.exam is None and not evidence.verdict and evidence.reason:
        return evidence.reason
    if release.training_run_id is not None:
        return "a training run made it"
    return evidence.reason or ("the project began with it" if release.number == 1 else "somebody added it")


def _row(release: tables.Release, served: Sequence[Period], now: datetime) -> ReleaseRow:
    evidence = read_evidence(release.evidence)
    own = [each for each in served if each.release_id == release.id and not each.canary]
    return ReleaseRow(
        release=release,
        evidence=evidence,
        verdict=verdict(evidence),
        origin=origin_of(release, evidence),
        served=sum(((each.until or now) - each.since).total_seconds() for each in own),
        since=own[-1].since if own else None,
    )


def _chart(served: Sequence[Period], numbers: Mapping[UUID, int], now: datetime) -> LineChart | None:
    """A step up for each promotion, a step down for each roll-back. None without any."""
    if not served:
        return None
    highest = max(numbers.values())
    step = max(1, -(-highest // 6))
    y = Axis(0.0, float(highest + 1), tuple((float(n), str(n)) for n in range(step, highest + 1, step)))
    line = [point for each in served if not each.canary for point in _points(each, numbers, now)]
    trials = [
        point
        for each in served
        if each.canary
        for point in (*_points(each, numbers, now), Point(each.since.timestamp(), None, ""))
    ]
    series = [Series("active", line), Series("canary", trials)] if trials else [Series("active", line)]
    label = "Which release was active, and which one a canary, over time"
    return line_chart(label, series, time_axis(served[0].since, now), y)


def _points(period: Period, numbers: Mapping[UUID, int], now: datetime) -> tuple[Point, Point]:
    number = numbers.get(period.release_id, 0)
    until = period.until or now
    kind = "as a canary" if period.canary else "active"
    title = f"release {number} {kind}, {period.since:%Y-%m-%d %H:%M} to {until:%Y-%m-%d %H:%M}"
    return Point(period.since.timestamp(), number, title), Point(until.timestamp(), number, title)


def _numbers(numbers: Mapping[UUID, int], period: Period) -> list[object]:
    kind = "canary" if period.canary else "active"
    return [numbers.get(period.release_id), kind, period.since, period.until]

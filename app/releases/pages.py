"""One release: why it was made, what it changed, how it compares, and what became of it."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec
from litestar import Controller, Response, get
from litestar.params import FromPath, FromQuery
from sqlalchemy.ext.asyncio import AsyncSession

from app.base.errors import NotFoundError
from app.console.figure_files import figures_file
from app.console.release_evidence import Evidence, read_evidence
from app.console.release_figures import (
    FigureRow,
    ReleaseVerdict,
    canary_rows,
    canary_verdict,
    exam_rows,
    uncounted,
    verdict,
    watch_rows,
)
from app.console.releases import activation_label, origin_of, read_periods
from app.db import evaluations, releases, tables
from app.db.tables import ReleaseState
from app.projects import audit
from app.projects.pages import gist
from app.release import canary_trial, watch
from app.release.canary_trial import CanaryStatus, RaceMoment
from app.release.confidence_sequence import Interval
from app.release.diff import diff
from app.release.served import Period
from app.release.watch import WatchStatus
from app.web.access import Db
from app.web.charts import LineChart, Point, Series, line_chart, number_axis, time_axis
from app.web.formats import csv_file, signed
from app.web.pages import Visit, Visitor, page, visit_project

_ENTRIES = 30
_RACE = ("until", "reward", "reward_low", "reward_high", "errors", "errors_low", "errors_high")


class ReleaseComparison(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of this release beside those of another one, with what was decided."""

    against: int
    rows: list[FigureRow]
    action: str
    reason: str
    not_counted: dict[str, list[str]]  # kinds of tasks by the reason
    status: CanaryStatus | WatchStatus | None = None  # while it goes on


class ReleasePage(Controller):
    path = "/releases/{release_id:uuid}"
    opt = {"scope": "tasks"}  # noqa: RUF012

    @get()
    async def show(
        self, release_id: FromPath[UUID], visit: Visitor, session: Db, file: FromQuery[str] = ""
    ) -> Response[Any]:
        release = await releases.get(session, release_id, visit.access.project_id)
        visit = await visit_project(visit, session, release.project_id)
        race: Sequence[RaceMoment] = ()
        trial: CanaryStatus | None = None
        rows = await releases.of_project(session, release.project_id)
        served = await read_periods(session, rows)
        evidence = read_evidence(release.evidence)
        if release.state is ReleaseState.CANARY:
            trial, race = await canary_trial.evaluate_over_time(session, release)
        elif evidence.canary is not None and (ended := _canary_ended(release, served)) is not None:
            race = await canary_trial.past_race(session, release, evidence.canary, ended)
        if file == "race":
            return csv_file(f"release-{release.number}-canary", _RACE, map(_race_numbers, race))
        watched = await watch.evaluate(session, release) if release.watched_against is not None else None
        canary, watching = _canary(evidence, trial), _watch(evidence, watched)
        if file:
            return _figures_file(release, file, evidence, {"canary": canary, "watch": watching})
        before = _before(release, served, rows)
        return page(
            visit,
            "release.html",
            release=release,
            evidence=evidence,
            origin=origin_of(release, evidence),
            verdict=_verdict(evidence, trial),
            before=before,
            after=_after(release, served, rows),
            served=[each for each in served if each.release_id == release.id],
            diff=None if before is None else await diff(session, None, before, release),
            exams=sorted(await evaluations.exams_of_release(session, release.id)),
            exam=evidence.exam and exam_rows(evidence.exam),
            canary=canary,
            race=race,
            race_charts=_race_charts(race),
            watch=watching,
            label=activation_label,
            active=next((each for each in rows if each.state is ReleaseState.ACTIVE), None),
            there=next((each for each in rows if each.state is ReleaseState.CANARY), None),
            entries=await _entries(session, visit, release),
            gist=gist,
        )


def _figures_file(
    release: tables.Release, kind: str, evidence: Evidence, compared: Mapping[str, ReleaseComparison | None]
) -> Response[str]:
    """Raises NotFoundError."""
    name, found = f"release-{release.number}-{kind}", compared.get(kind)
    if kind == "exam" and evidence.exam is not None:
        return figures_file(name, evidence.exam.compared_with.number, release.number, exam_rows(evidence.exam))
    if found is None:
        raise NotFoundError(f"release {release.number} has no figures of the kind {kind[:50]!r}")
    return figures_file(f"{name}-figures", found.against, release.number, found.rows)


def _canary_ended(release: tables.Release, served: Sequence[Period]) -> datetime | None:
    """When its last time as a canary did."""
    return next((each.until for each in reversed(served) if each.canary and each.release_id == release.id), None)


def _verdict(evidence: Evidence, trial: CanaryStatus | None) -> ReleaseVerdict | None:
    """A trial that goes on outweighs the exam as soon as it says something."""
    if trial is not None and (found := canary_verdict(trial.decision, trial.baseline.number)).word != "undecided":
        return found
    return verdict(evidence)


def _before(
    release: tables.Release, served: Sequence[Period], rows: Sequence[tables.Release]
) -> tables.Release | None:
    """The release that was active before it first was, or the active one if it never was."""
    known = {each.id: each for each in rows}
    active = [each.release_id for each in served if not each.canary and each.release_id in known]
    if release.id in active:
        place = active.index(release.id)
        return known[active[place - 1]] if place else None
    return known[active[-1]] if active else None


def _after(
    release: tables.Release, served: Sequence[Period], rows: Sequence[tables.Release]
) -> tables.Release | None:
    """The release that replaced it the last time."""
    known = {each.id: each for each in rows}
    active = [each.release_id for each in served if not each.canary and each.release_id in known]
    places = [place for place, each in enumerate(active[:-1]) if each == release.id]
    return known[active[places[-1] + 1]] if places else None


def _canary(evidence: Evidence, trial: CanaryStatus | None) -> ReleaseComparison | None:
    """The one that goes on, else the last one."""
    status = trial or evidence.canary
    if status is None:
        return None
    found = status.decision
    return ReleaseComparison(
        against=status.baseline.number,
        rows=canary_rows(found),
        action=found.action,
        reason=found.reason,
        not_counted=uncounted(found.not_counted),
        status=trial,
    )


def _watch(evidence: Evidence, watched: WatchStatus | None) -> ReleaseComparison | None:
    if watched is not None:
        found = watched.decision
        return ReleaseComparison(
            against=watched.baseline.number,
            rows=watch_rows(found),
            action=found.action,
            reason=found.reason,
            not_counted=uncounted(found.not_counted),
            status=watched,
        )
    past = evidence.watch
    if past is None or past.baseline is None:
        return None
    return ReleaseComparison(
        against=past.baseline.number,
        rows=watch_rows(past.decision) if past.decision else [],
        action=past.state,
        reason=past.reason,
        not_counted=uncounted(past.decision.not_counted) if past.decision else {},
    )


def _race_charts(race: Sequence[RaceMoment]) -> list[tuple[str, LineChart]]:
    """A chart for each metric: the mean difference with its bounds, around zero."""
    if not any(each.reward or each.errors for each in race):  # its tasks may have been deleted
        return []
    x = time_axis(race[0].at - (race[-1].at - race[0].at) / max(1, len(race) - 1), race[-1].at)
    found = []
    for name, values in (
        ("Score: canary minus baseline", [(each.at, each.reward) for each in race]),
        ("Share of errors: canary minus baseline", [(each.at, each.errors) for each in race]),
    ):
        points = [_race_point(at.timestamp(), f"{at:%Y-%m-%d %H:%M}", each) for at, each in values]
        ends = [end for _, each in values if each is not None for end in (each.low, each.high)]
        y = number_axis([0.0, *ends], signed)
        found.append((name, line_chart(name, [Series("difference", points)], x, y)))
    return found


def _race_point(at: float, when: str, found: Interval | None) -> Point:
    if found is None:
        return Point(at, None, "")
    title = f"{when}: {signed(found.mean)} [{signed(found.low)}, {signed(found.high)}]"
    return Point(at, found.mean, title, found.low, found.high)


def _race_numbers(moment: RaceMoment) -> list[object]:
    ends: list[object] = [moment.at]
    for each in (moment.reward, moment.errors):
        ends += [None, None, None] if each is None else [each.mean, each.low, each.high]
    return ends


async def _entries(session: AsyncSession, visit: Visit, release: tables.Release) -> list[tables.AuditEntry]:
    """Those of the audit log, for a key that may read it."""
    if not visit.allows("admin"):
        return []
    return (await audit.page(session, release.project_id, release_id=release.id, limit=_ENTRIES)).items

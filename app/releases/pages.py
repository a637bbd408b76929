"""The pages of releases: what served when, one release, what a person changes, and any two side by side.

Each change says exactly what it will do before it does it.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from itertools import pairwise
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias
from uuid import UUID

import msgspec
from litestar import Controller, Response, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath, FromQuery, QueryParameter
from litestar.response import Redirect
from sqlalchemy.ext.asyncio import AsyncSession

from app.apis.documents.reader import DocumentReader
from app.base.errors import AppError, InvalidError, NotFoundError
from app.db import results, tables
from app.db.database import Sessions
from app.db.tables import AuditAction, ReleaseState
from app.projects import audit
from app.projects import store as projects
from app.releases import canary, trials_store, watch
from app.releases import store as releases
from app.releases.canary import CanaryStatus, RaceMoment
from app.releases.exams import store as exams
from app.releases.figure_pages import (
    Evidence,
    FigureRow,
    ReleaseVerdict,
    canary_rows,
    canary_verdict,
    end_names,
    ends,
    exam_rows,
    figures_file,
    live_rows,
    read_evidence,
    uncounted,
    verdict,
    watch_rows,
)
from app.releases.manifest import SkillChanges, SkillsMode, diff
from app.releases.manifest_store import SkillName
from app.releases.promotion import Promoter, changes_of, rolls_back
from app.releases.routes import CanaryRequest
from app.releases.statistics import Interval
from app.releases.watch import WatchStatus
from app.skills import store as skills
from app.skills.pages import source_diff
from app.web.access import Db
from app.web.charts import Axis, LineChart, Point, Series, line_chart, number_axis, time_axis
from app.web.formats import csv_file, signed
from app.web.forms import Form, read_form
from app.web.pages import Visit, Visitor, after_change, page, visit_project
from app.web.problem import AnyRequest

Moment: TypeAlias = tuple[datetime, UUID, AuditAction]
"""When something happened to a release."""
From = Annotated[int | None, QueryParameter(name="from")]
To = Annotated[int | None, QueryParameter(name="to")]

_SERVING = (AuditAction.ACTIVATED, AuditAction.CANARY_BEGAN, AuditAction.CANARY_ENDED)
_CSV = ("release", "as", "since", "until")
_ENTRIES = 30  # of the audit log
_MOST_SOURCES = 30  # changed skills whose source is shown
_OPPOSITE = {"better": "worse", "worse": "better"}


class Period(NamedTuple):
    """A time in which a release served, as the active one or as a canary. It still does where `until` is None."""

    release_id: UUID
    since: datetime
    until: datetime | None
    canary: bool = False


def periods(first: UUID, began: datetime, moments: Iterable[Moment]) -> list[Period]:
    """Oldest first. `first` is the release that served from the beginning, before anything was logged.

    >>> one, two = UUID(int=1), UUID(int=2)
    >>> at = [datetime(2026, 1, day) for day in range(1, 5)]
    >>> log = [(at[1], two, AuditAction.CANARY_BEGAN), (at[2], two, AuditAction.ACTIVATED)]
    >>> [(each.release_id.int, each.since.day, each.canary) for each in periods(one, at[0], log)]
    [(1, 1, False), (2, 2, True), (2, 3, False)]
    """
    in_order = sorted(moments)
    active = _active([(began, first), *((at, who) for at, who, what in in_order if what is AuditAction.ACTIVATED)])
    return sorted([*active, *_canaries(in_order)], key=lambda each: each.since)


def _active(starts: Sequence[tuple[datetime, UUID]]) -> list[Period]:
    """A release that is activated again while it is active goes on."""
    found: list[Period] = []
    for at, release_id in starts:
        if found and found[-1].release_id == release_id:
            continue
        if found:
            found[-1] = found[-1]._replace(until=at)
        found.append(Period(release_id, at, None))
    return found


def _canaries(moments: Sequence[Moment]) -> list[Period]:
    """One at a time: it ends when it is ended or promoted, or when the next one begins."""
    found: list[Period] = []
    for at, release_id, action in moments:
        running = bool(found) and found[-1].until is None
        ends = action is AuditAction.CANARY_BEGAN or (
            action in (AuditAction.CANARY_ENDED, AuditAction.ACTIVATED)
            and running
            and found[-1].release_id == release_id
        )
        if running and ends:
            found[-1] = found[-1]._replace(until=at)
        if action is AuditAction.CANARY_BEGAN:
            found.append(Period(release_id, at, None, canary=True))
    return found


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
            roles = {False: "active", True: "canary"}
            content = [[numbers.get(who), roles[tried], since, until] for who, since, until, tried in served]
            return csv_file("releases", _CSV, content)
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
            trial, race = await canary.evaluate_over_time(session, release)
        elif evidence.canary is not None:
            trials = [each for each in served if each.canary and each.release_id == release.id]
            if trials and (ended := trials[-1].until) is not None:
                race = await canary.past_race(session, release, evidence.canary, ended)
        if file == "race":
            header = ["until", *end_names("reward", "errors")]
            content = ([each.at, *ends(each.reward), *ends(each.errors)] for each in race)
            return csv_file(f"release-{release.number}-canary", header, content)
        watched = await watch.evaluate(session, release) if release.watched_against is not None else None
        compared: dict[str, Any] = {"canary": _canary(evidence, trial), "watch": _watch(evidence, watched)}
        if file:
            return _figures_file(release, file, evidence, compared)
        before, after = _neighbors(release, served, rows)
        return page(
            visit,
            "release.html",
            release=release,
            evidence=evidence,
            origin=origin_of(release, evidence),
            verdict=_verdict(evidence, trial),
            before=before,
            after=after,
            served=[each for each in served if each.release_id == release.id],
            diff=None if before is None else await diff(session, None, before, release),
            exams=sorted(await exams.exams_of_release(session, release.id)),
            exam=evidence.exam and exam_rows(evidence.exam),
            race=race,
            race_charts=_race_charts(race),
            label=activation_label,
            active=next((each for each in rows if each.state is ReleaseState.ACTIVE), None),
            there=next((each for each in rows if each.state is ReleaseState.CANARY), None),
            entries=await _entries(session, visit, release),
            gist=audit.gist,
            **compared,
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


def _verdict(evidence: Evidence, trial: CanaryStatus | None) -> ReleaseVerdict | None:
    """A trial that goes on outweighs the exam as soon as it says something."""
    if trial is not None and (found := canary_verdict(trial.decision, trial.baseline.number)).word != "undecided":
        return found
    return verdict(evidence)


def _neighbors(
    release: tables.Release, served: Sequence[Period], rows: Sequence[tables.Release]
) -> tuple[tables.Release | None, tables.Release | None]:
    """The release that was active before it first was, or the active one if it never was; and the one that
    replaced it the last time.
    """
    known = {each.id: each for each in rows}
    active = [known[each.release_id] for each in served if not each.canary and each.release_id in known]
    if release not in active:
        return (active[-1] if active else None), None
    first = active.index(release)
    followed = [after for each, after in pairwise(active) if each == release]
    return (active[first - 1] if first else None), (followed[-1] if followed else None)


def _canary(evidence: Evidence, trial: CanaryStatus | None) -> ReleaseComparison | None:
    """The one that goes on, else the last one."""
    status = trial or evidence.canary
    return None if status is None else _decided(status, canary_rows(status.decision), trial)


def _watch(evidence: Evidence, watched: WatchStatus | None) -> ReleaseComparison | None:
    if watched is not None:
        return _decided(watched, watch_rows(watched.decision), watched)
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


def _decided(
    by: CanaryStatus | WatchStatus, rows: list[FigureRow], status: CanaryStatus | WatchStatus | None
) -> ReleaseComparison:
    found = by.decision
    return ReleaseComparison(
        against=by.baseline.number,
        rows=rows,
        action=found.action,
        reason=found.reason,
        not_counted=uncounted(found.not_counted),
        status=status,
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
        bounds = [bound for _, each in values if each is not None for bound in (each.low, each.high)]
        y = number_axis([0.0, *bounds], signed)
        found.append((name, line_chart(name, [Series("difference", points)], x, y)))
    return found


def _race_point(at: float, when: str, found: Interval | None) -> Point:
    if found is None:
        return Point(at, None, "")
    title = f"{when}: {signed(found.mean)} [{signed(found.low)}, {signed(found.high)}]"
    return Point(at, found.mean, title, found.low, found.high)


async def _entries(session: AsyncSession, visit: Visit, release: tables.Release) -> list[tables.AuditEntry]:
    """Those of the audit log, for a key that may read it."""
    if not visit.allows("admin"):
        return []
    return (await audit.page(session, release.project_id, release_id=release.id, limit=_ENTRIES)).items


class ActivationFields(msgspec.Struct, frozen=True):
    skills: SkillsMode = "restore"
    allow_rejected: Literal["", "true"] = ""


class CanaryFields(CanaryRequest, frozen=True):
    allow_rejected: Literal["", "true"] = ""


class ReleaseChangePages(Controller):
    path = "/releases/{release_id:uuid}"
    opt = {"scope": "admin"}  # noqa: RUF012

    @get("/activate")
    async def ask_activate(self, release_id: FromPath[UUID], visit: Visitor, session: Db) -> Response[Any]:
        return await _activation(visit, session, release_id, Form())

    @post("/activate")
    async def activate(
        self,
        release_id: FromPath[UUID],
        request: AnyRequest,
        visit: Visitor,
        session: Db,
        promoter: NamedDependency[Promoter],
    ) -> Response[Any]:
        form = await read_form(request, ActivationFields)
        if form.value is None:
            return await _activation(visit, session, release_id, form)
        release = await releases.get(session, release_id, visit.access.project_id)
        await session.commit()  # no transaction is held while weights are loaded
        allowed = form.value.allow_rejected == "true"
        try:
            await promoter.activate(
                release_id, visit.access.actor, allow_rejected=allowed, skills=form.value.skills
            )
        except AppError as error:
            return await _activation(visit, session, release_id, form.refused(error))
        notice = f"release {release.number} serves all new tasks"
        return after_change(visit.url(f"/console/releases/{release_id}"), notice)

    @get("/canary/start")
    async def ask_canary(self, release_id: FromPath[UUID], visit: Visitor, session: Db) -> Response[Any]:
        return await _canary_form(visit, session, release_id, Form(values={"percent": "10"}))

    @post("/canary/start")
    async def start_canary(
        self,
        release_id: FromPath[UUID],
        request: AnyRequest,
        visit: Visitor,
        session: Db,
        sessions: NamedDependency[Sessions],
        promoter: NamedDependency[Promoter],
    ) -> Response[Any]:
        form = await read_form(request, CanaryFields)
        if form.value is None:
            return await _canary_form(visit, session, release_id, form)
        release = await releases.get(session, release_id, visit.access.project_id)
        await session.commit()  # no transaction is held while weights are loaded
        percent, allowed = form.value.percent, form.value.allow_rejected == "true"
        try:
            await canary.begin(promoter, sessions, release_id, percent, visit.access.actor, allow_rejected=allowed)
        except AppError as error:
            return await _canary_form(visit, session, release_id, form.refused(error))
        notice = f"release {release.number} serves {percent:g} % of the new tasks as a canary"
        return after_change(visit.url(f"/console/releases/{release_id}"), notice)

    @get("/canary/end")
    async def ask_end(self, release_id: FromPath[UUID], visit: Visitor, session: Db) -> Response[Any]:
        release = await releases.get(session, release_id, visit.access.project_id)
        visit = await visit_project(visit, session, release.project_id)
        trials_store.check_is_canary(release)
        active = await releases.active(session, release.project_id)
        return page(visit, "canary_end.html", release=release, active=active)

    @post("/canary/end")
    async def end_canary(
        self, release_id: FromPath[UUID], visit: Visitor, session: Db, sessions: NamedDependency[Sessions]
    ) -> Redirect:
        release = await releases.get(session, release_id, visit.access.project_id)
        await session.commit()
        await canary.end(sessions, release_id, visit.access.actor)
        notice = f"release {release.number} is no canary any more, but a candidate"
        return after_change(visit.url(f"/console/releases/{release_id}"), notice)


async def _activation(
    visit: Visit, session: AsyncSession, release_id: UUID, form: Form[ActivationFields]
) -> Response[Any]:
    """Raises InvalidError for the active release."""
    release = await releases.get(session, release_id, visit.access.project_id)
    visit = await visit_project(visit, session, release.project_id)
    active = await releases.find_active(session, release.project_id)
    if active is None or active.id == release.id:
        raise InvalidError(f"release {release.number} is active already")
    return page(
        visit,
        "release_activate.html",
        release=release,
        active=active,
        form=form,
        label=activation_label(release, active),
        changes=await changes_of(session, release, active),
        rejected=await _rejection(session, release),
        status=form.status,
    )


async def _canary_form(
    visit: Visit, session: AsyncSession, release_id: UUID, form: Form[CanaryFields]
) -> Response[Any]:
    release = await releases.get(session, release_id, visit.access.project_id)
    visit = await visit_project(visit, session, release.project_id)
    return page(
        visit,
        "canary_start.html",
        release=release,
        active=await releases.active(session, release.project_id),
        there=await projects.canary_of(session, release.project_id),
        rejected=await _rejection(session, release),
        form=form,
        status=form.status,
    )


async def _rejection(session: AsyncSession, release: tables.Release) -> tables.Release | None:
    """The release that was rejected with these weights, which a person may overrule."""
    return await releases.check_can_serve(session, release, allow_rejected=True)


class ChangedSkill(msgspec.Struct, frozen=True):
    """A skill that the two releases have in two versions."""

    name: str
    before: int
    after: int
    diff: str


class SharedExam(msgspec.Struct, frozen=True):
    """An exam on which one run examined both releases: scenarios solved, in percent."""

    environment: str
    before: Interval
    after: Interval


class ReleaseComparePages(Controller):
    path = "/releases/compare"
    opt = {"scope": "tasks"}  # noqa: RUF012

    @get()
    async def show(
        self,
        visit: Visitor,
        session: Db,
        document_reader: NamedDependency[DocumentReader],
        earlier: From = None,
        later: To = None,
        file: FromQuery[str] = "",
    ) -> Response[Any]:
        rows = await releases.of_project(session, visit.project.id)
        one, other = await _choose(session, rows, earlier, later)
        lives = [await results.of_release(session, each.id) for each in (one, other)]
        if file == "served":
            name = f"releases-{one.number}-{other.number}-served"
            return figures_file(name, one.number, other.number, live_rows(*lives))
        found = await diff(session, document_reader, one, other)
        return page(
            visit,
            "release_compare.html",
            releases=rows,
            one=one,
            other=other,
            verdict=_verdict_between(one, other),
            diff=found,
            sources=await _sources(session, found.skills) if visit.allows("skills") else [],
            exams=await _shared_exams(session, one, other) if visit.allows("admin") else [],
            live=live_rows(*lives),
            served=all(sums.score.number for sums in lives),
        )


async def _choose(
    session: AsyncSession, rows: Sequence[tables.Release], earlier: int | None, later: int | None
) -> tuple[tables.Release, tables.Release]:
    """Those of the numbers; else the active release, and the one before it. Raises NotFoundError."""
    active = next((each for each in rows if each.state is ReleaseState.ACTIVE), rows[0])
    before = before_active(await read_periods(session, rows), rows) or rows[-1]
    return (
        before if earlier is None else _numbered(rows, earlier),
        active if later is None else _numbered(rows, later),
    )


def _numbered(rows: Sequence[tables.Release], number: int) -> tables.Release:
    for each in rows:
        if each.number == number:
            return each
    raise NotFoundError(f"the project has no release {number}")


def _verdict_between(one: tables.Release, other: tables.Release) -> ReleaseVerdict | None:
    """What the evidence of either of them says about the second one."""
    found = verdict(read_evidence(other.evidence))
    if found is not None and found.against == one.number:
        return found
    found = verdict(read_evidence(one.evidence))
    if found is None or found.against != other.number:
        return None
    because = f"about release {one.number}: {found.because}" if found.because else ""
    word: Any = _OPPOSITE.get(found.word, found.word)
    return ReleaseVerdict(word=word, against=one.number, because=because, by=found.by)


async def _sources(session: AsyncSession, changes: SkillChanges) -> list[ChangedSkill]:
    """Of the skills of which each release has another version, the newest ones."""
    before, after = _newest(changes.removed), _newest(changes.added)
    both = sorted(before.keys() & after.keys())[:_MOST_SOURCES]
    known = {
        row.id: row
        for row in await skills.of_ids(session, [side[name].id for name in both for side in (before, after)])
    }
    return [
        ChangedSkill(
            name,
            before[name].version,
            after[name].version,
            source_diff(known[before[name].id], known[after[name].id]),
        )
        for name in both
        if before[name].id in known and after[name].id in known
    ]


def _newest(names: Iterable[SkillName]) -> dict[str, SkillName]:
    return {each.name: each for each in sorted(names, key=lambda each: each.version)}


async def _shared_exams(session: AsyncSession, one: tables.Release, other: tables.Release) -> list[SharedExam]:
    """Of each environment the latest run that examined both, on the same scenarios."""
    first = {(row.environment, row.run_id): row for row in await exams.of_release(session, one.id)}
    found = {
        row.environment: (first[row.environment, row.run_id], row)
        for row in await exams.of_release(session, other.id)
        if (row.environment, row.run_id) in first
    }
    return [
        SharedExam(name, *(msgspec.convert(row.figures["sgc"], Interval) for row in rows))
        for name, rows in sorted(found.items())
    ]

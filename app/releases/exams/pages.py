"""The exams of a project: the list, and one exam with its versions, tasks and results over releases."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import msgspec
from litestar import Controller, Response, get, post
from litestar.params import FromPath, FromQuery
from litestar.response import Redirect
from sqlalchemy.ext.asyncio import AsyncSession

from app.releases import store as releases
from app.releases.exams import store as exams
from app.releases.exams.routes import ExamResult, ExamView, Version, delete_exam, exam_results
from app.releases.figure_pages import ExamFigures, end_names, ends, exam_figures
from app.web.access import Db
from app.web.charts import Axis, LineChart, Point, Series, line_chart
from app.web.formats import csv_file
from app.web.pages import Visitor, after_change, page

_SHARES = Axis(0.0, 100.0, ((0.0, "0"), (50.0, "50"), (100.0, "100 %")))
_SHOWN = 200  # tasks
_ABOUT = (
    "release", "model", "run", "at", "version", "digest", "on", "coverage", "scenarios_left_out", "tasks_left_out",
)  # fmt: skip
_CSV = (*_ABOUT, "scenarios", "tasks")  # those that were tried
_MEASURES = ("sgc", "tgc", "turns", "tokens")


class ReleaseResult(msgspec.Struct, frozen=True, kw_only=True):
    """A result, with its figures if they are whole."""

    result: ExamResult
    figures: ExamFigures | None


class ExamPages(Controller):
    path = "/exams"
    opt = {"scope": "admin"}  # noqa: RUF012

    @get()
    async def index(self, visit: Visitor, session: Db) -> Response[str]:
        rows = await exams.newest(session, visit.project.id)
        sizes = await exams.of(session, [row.id for row in rows])
        views = [ExamView.of(row, visit.project.name, sizes[row.id]) for row in rows]
        latest = {row.name: (await _results(session, visit.project.id, row.name))[-1:] for row in rows}
        return page(visit, "exams.html", exams=views, latest=latest)

    @get("/{name:str}")
    async def show(
        self, name: FromPath[str], visit: Visitor, session: Db, version: Version = None, file: FromQuery[str] = ""
    ) -> Response[Any]:
        row = await exams.get(session, visit.project.id, name, version)
        found = await _results(session, visit.project.id, name)
        if file == "csv":
            return csv_file(f"exam-{name}", [*_CSV, *end_names(*_MEASURES)], map(_numbers, found))
        versions = await exams.versions(session, visit.project.id, name)
        sizes = await exams.of(session, [each.id for each in versions])
        views = [ExamView.of(each, visit.project.name, sizes[each.id]) for each in versions]
        tasks = await exams.tasks_of(session, row.id)
        numbered = await releases.of_project(session, visit.project.id)
        return page(
            visit,
            "exam.html",
            exam=next(each for each in views if each.version == row.version),
            versions=views,
            tasks=tasks[:_SHOWN],
            results=found[::-1],
            chart=results_chart(found),
            release_ids={each.number: each.id for each in numbered},
        )

    @post("/{name:str}/delete")
    async def delete_exam(self, name: FromPath[str], visit: Visitor, session: Db) -> Redirect:
        await delete_exam(session, visit.access, visit.project, name)
        return after_change(visit.url("/console/exams"), f"deleted the exam {name}")


async def _results(session: AsyncSession, project_id: UUID, name: str) -> list[ReleaseResult]:
    """Oldest first."""
    found = await exam_results(session, project_id, name)
    return [ReleaseResult(result=each, figures=exam_figures(each.figures)) for each in found]


def results_chart(found: Sequence[ReleaseResult]) -> LineChart | None:
    """The latest result of each release, joined where they can be compared. None for fewer than two."""
    latest = {each.result.release: each for each in found if each.figures and each.result.release}
    if len(latest) < 2:
        return None
    numbers = sorted(number for number in latest if number is not None)
    step = max(1, -(-(numbers[-1] - numbers[0]) // 8))
    ticks = tuple((float(number), str(number)) for number in range(numbers[0], numbers[-1] + 1, step))
    points = list[Point]()
    for before, each in zip([None, *numbers], numbers, strict=False):
        if before is not None and _ground(latest[before]) != _ground(latest[each]):
            points.append(Point(float(each), None, ""))
        points.append(_point(latest[each]))
    x = Axis(float(numbers[0]), float(numbers[-1]), ticks)
    return line_chart("Scenarios solved, by release, with 95 % intervals", [Series("solved", points)], x, _SHARES)


def _ground(each: ReleaseResult) -> tuple[object, ...]:
    """Results are compared on the same scenarios, tried in the same way: runs may draw others from one version, of
    which tasks may have been erased.
    """
    found, tried = each.result, each.figures
    if tried is not None and tried.scenarios == found.scenarios:
        return found.digest, found.version, found.on, tried.scenarios, tried.tasks
    return found.digest, found.version, found.on, found.run


def _point(each: ReleaseResult) -> Point:
    assert each.figures is not None
    solved, result = each.figures.sgc, each.result
    share = f"{solved.mean:.1f} % [{solved.low:.1f}, {solved.high:.1f}]"
    title = f"release {result.release}, version {result.version}, {result.on}: {share}"
    return Point(float(result.release or 0), solved.mean, title, solved.low, solved.high)


def _numbers(each: ReleaseResult) -> list[object]:
    result, figures = each.result, each.figures
    about: list[object] = [getattr(result, name) for name in _ABOUT]
    if figures is None:
        return about
    measures = [end for name in _MEASURES for end in ends(getattr(figures, name))]
    return [*about, figures.scenarios, figures.tasks, *measures]

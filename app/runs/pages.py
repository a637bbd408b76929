"""The pages of training runs: the list, one run with its steps as charts, a new one, and the schedule."""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple
from uuid import UUID

import msgspec
from litestar import Controller, Response, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath, FromQuery
from litestar.response import Redirect
from litestar.response.sse import ServerSentEventMessage
from markupsafe import Markup
from sqlalchemy.ext.asyncio import AsyncSession

from app.base import plugins
from app.base.errors import AppError, NotFoundError
from app.base.run_settings import PRACTICE, RunKind, RunSettings, read_settings
from app.base.values import Json
from app.db import tables
from app.db.database import Sessions
from app.db.notify import NotificationListener
from app.db.tables import OPEN_RUNS
from app.runs import datasets, schedule
from app.runs import store as runs
from app.runs.broker import NotifyWorkers
from app.runs.datasets import DataRules
from app.runs.practice import estimate
from app.runs.routes import RunUpdate, cancel_run, put_schedule, remove_schedule, retry_run, start_run
from app.runs.schedule import Serving
from app.web import formats, manual
from app.web.access import Db
from app.web.charts import Axis, LineChart, Point, Series, line_chart, number_axis
from app.web.formats import csv_file
from app.web.forms import Form, SettingField, entered_values, parse_form, read_form, setting_groups
from app.web.pages import Visit, Visitor, after_change, page, render, visit_project
from app.web.problem import AnyRequest
from app.web.sse import EventBatch, event_stream

_COMMON = (
    "kind", "environment", "hours", "releases", "steps", "data", "start", "reward", "canary_percent", "promote",
)  # fmt: skip
_MOST_DATASETS = 50
_CHARTS: tuple[tuple[str, Mapping[str, str], Callable[[float], str]], ...] = (
    ("Score", {"outcome": "score"}, formats.score),
    ("Reward by position in the chain", {f"reward_{at}": f"task {at}" for at in range(1, 5)}, formats.score),
    ("Success", {"success": "success"}, formats.percent),
    ("Accuracy", {"accuracy": "accuracy"}, formats.percent),
    ("Turns of a task", {"turns": "turns"}, formats.count),
    ("Generated tokens of a task", {"generated_tokens": "tokens"}, formats.count),
    ("Length of a trajectory, tokens", {"length": "tokens"}, formats.count),
    ("Entropy of a token, nats", {"entropy": "entropy"}, formats.score),
    ("Share of clipped tokens", {"clip_fraction": "clipped"}, formats.percent),
    (
        "Divergence, nats",
        {"kl_to_engine": "from the engine", "kl_to_start": "from the start", "kl_of_step": "by the step"},
        formats.score,
    ),
    ("Learned from", {"trained_fraction": "of the rollouts"}, formats.percent),
    ("Functions", {"write_rate": "written", "skill_usage": "used"}, formats.percent),
    ("Loss", {"loss": "loss"}, formats.score),
    ("Norm of the gradient", {"grad_norm": "norm"}, formats.score),
)
_HEAD = "| reason | meaning | what to do |"
_RUNS = 30


class FieldGroup(NamedTuple):
    """`common`: shown at once."""

    title: str
    fields: tuple[SettingField, ...]
    common: bool


@cache
def groups() -> tuple[FieldGroup, ...]:
    """
    >>> [group.title for group in groups()][:3]
    ['Common', 'The run', 'Experience']
    """
    fields = setting_groups(RunSettings)[0].fields
    by_name = {field.name: field for field in fields}
    others = [field for field in fields if field.name not in _COMMON]
    sections = dict.fromkeys(field.section for field in others)
    return (
        FieldGroup("Common", tuple(by_name[name] for name in _COMMON), common=True),
        *(
            FieldGroup(name, tuple(each for each in others if each.section == name), common=False)
            for name in sections
        ),
    )


async def choices(session: AsyncSession, project: tables.Project) -> dict[str, list[tuple[str, str]]]:
    """What may be entered into fields that take a name, with a description."""
    installed = await runs.installed(session)
    rows = (await datasets.page(session, project.id, cursor=None, limit=_MOST_DATASETS)).items
    return {
        "environment": [(each.name, "") for each in installed],
        "retrieval": [(name, "") for name in plugins.names("sage.retrieval")],
        "reward": [(name, "") for name in plugins.names("sage.rewards")],
        "data": [(str(row.id), row.name) for row in rows],
    }


class RunChart(msgspec.Struct, frozen=True):
    """`rows` are its numbers, by step."""

    title: str
    drawn: LineChart
    columns: list[str]
    rows: list[list[str]]


def run_charts(steps: Sequence[tables.RunStep]) -> list[RunChart]:
    """Those of which there are numbers."""
    metrics = [(step.index, with_length(step.metrics)) for step in steps]
    found = [_chart(title, names, text, metrics) for title, names, text in _CHARTS]
    return [each for each in found if each is not None]


def with_length(metrics: dict[str, Json]) -> dict[str, Json]:
    """The mean length of the trajectories that were read, besides what the step reported."""
    if not metrics.get("samples") or "read_tokens" not in metrics:
        return metrics
    return {**metrics, "length": metrics["read_tokens"] / metrics["samples"]}


def _chart(
    title: str, names: Mapping[str, str], text: Callable[[float], str], steps: Sequence[tuple[int, dict[str, Any]]]
) -> RunChart | None:
    columns = {word: [_number(step.get(name)) for _, step in steps] for name, word in names.items()}
    columns = {word: found for word, found in columns.items() if any(each is not None for each in found)}
    if not columns:
        return None
    indices = [index for index, _ in steps]
    series = [
        Series(word, [_point(index, each, text) for index, each in zip(indices, found, strict=True)])
        for word, found in columns.items()
    ]
    values = [each for found in columns.values() for each in found if each is not None]
    last = indices[-1]
    middle = sorted({1, (1 + last) // 2, last})
    x = Axis(1.0, float(max(2, last)), tuple((float(at), f"{at}") for at in middle))
    drawn = line_chart(title, series, x, number_axis(values, text, zero=text is not formats.count))
    shown = [["-" if each is None else text(each) for each in found] for found in columns.values()]
    rows = [[f"{index}", *row] for index, *row in zip(indices, *shown, strict=True)]
    return RunChart(title, drawn, ["Step#", *(f"{word.capitalize()}#" for word in columns)], rows)


def _point(index: int, value: float | None, text: Callable[[float], str]) -> Point:
    return Point(float(index), value, "" if value is None else f"step {index}: {text(value)}")


def _number(value: Json) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


class Advice(NamedTuple):
    meaning: Markup
    advice: Markup


@cache
def drop_advice() -> dict[str, Advice]:
    """By reason.

    >>> "POST /v1/feedback" in drop_advice()["unscored"].advice
    True
    """
    text = (manual.DIRECTORY / "learning.md").read_text(encoding="utf-8")
    lines = text.partition(f"{_HEAD}\n")[2].splitlines()[1:]
    found = {}
    for line in lines:
        if not line.startswith("|"):
            break
        reasons, meaning, advice = (cell.strip() for cell in line.strip("|").split("|"))
        for reason in re.findall(r"`(\w+)`", reasons):
            found[reason] = Advice(_inline(meaning), _inline(advice))
    return found


def _inline(text: str) -> Markup:
    html, _ = manual.render(text, manual.served_at)
    return Markup(html.strip().removeprefix("<p>").removesuffix("</p>"))  # of the manual, which is ours


class RunPages(Controller):
    path = "/runs"
    opt = {"scope": "admin"}  # noqa: RUF012

    @get()
    async def index(
        self,
        visit: Visitor,
        session: Db,
        serving: NamedDependency[Serving],
        cursor: FromQuery[str | None] = None,
    ) -> Response[str]:
        found = await runs.page(session, visit.project.id, cursor=cursor, limit=_RUNS)
        row = await schedule.find(session, visit.project.id)
        due = await schedule.progress(session, row) if row is not None else None
        outlook = await schedule.outlook(session, row, serving) if row is not None else None
        return page(visit, "runs.html", found=found, schedule=row, due=due, outlook=outlook)

    @get("/new")
    async def ask(
        self,
        visit: Visitor,
        session: Db,
        like: FromQuery[UUID | None] = None,
        exam: FromQuery[str] = "",
        ground: FromQuery[str] = "",
        practice: FromQuery[str] = "",
    ) -> Response[str]:
        """With the settings of another run, or to examine releases on an exam, or to practise on an API."""
        settings = RunSettings()
        if exam:
            on = f"&on={ground}" if ground else ""
            settings = RunSettings(kind=RunKind.EXAM, environment=f"exam?name={exam}{on}")
        if practice:
            settings = RunSettings(kind=RunKind.PRACTICE, environment=f"{PRACTICE}?api={practice}")
        if like is not None:
            settings = read_settings((await runs.get(session, like, visit.access.project_id)).settings)
        return await _form(visit, session, Form(values=entered_values(settings)))

    @post("/new")
    async def start(
        self,
        request: AnyRequest,
        visit: Visitor,
        session: Db,
        notify_workers: NamedDependency[NotifyWorkers],
        data_rules: NamedDependency[DataRules],
        judged: NamedDependency[bool],
    ) -> Response[Any]:
        form = await read_form(request, RunSettings)
        if form.value is None:
            return await _form(visit, session, form)
        try:
            run = await start_run(
                session, visit.access, visit.project, form.value, notify_workers, data_rules, judged=judged
            )
        except AppError as error:
            return await _form(visit, session, form.refused(error))
        return after_change(visit.url(f"/console/runs/{run.id}"), "the run waits for a worker")


async def _form(visit: Visit, session: AsyncSession, form: Form[RunSettings]) -> Response[str]:
    options = await choices(session, visit.project)
    return page(visit, "run_new.html", form=form, groups=groups(), options=options, status=form.status)


class RunDetailPage(Controller):
    path = "/runs/{run_id:uuid}"
    opt = {"scope": "admin"}  # noqa: RUF012

    @get()
    async def show(
        self,
        run_id: FromPath[UUID],
        visit: Visitor,
        session: Db,
        serving: NamedDependency[Serving],
        file: FromQuery[str] = "",
    ) -> Response[Any]:
        run, visit = await _find(session, visit, run_id)
        steps = await runs.steps(session, run.id)
        if file == "csv":
            return _file(run, [with_length({"step": each.index, **each.metrics}) for each in steps])
        return page(
            visit,
            "run.html",
            **_values(run, steps),
            settings=_in_order(run.settings),
            advice=drop_advice(),
            estimate=await estimate(session, run, serving),
            log=await runs.read(session, run.id),
        )

    @get("/live", media_type="text/event-stream")
    async def live(
        self,
        run_id: FromPath[UUID],
        visit: Visitor,
        session: Db,
        sessions: NamedDependency[Sessions],
        listener: NamedDependency[NotificationListener],
    ) -> Response[Any]:
        """The part of the page that changes, whenever it does, then `end`."""
        run, visit = await _find(session, visit, run_id)
        reader = _PartReader(sessions, visit, run.id)
        return await event_stream(listener, run.id, visit.access, reader.read)

    @post("/cancel")
    async def cancel(self, run_id: FromPath[UUID], visit: Visitor, session: Db) -> Redirect:
        run, visit = await _find(session, visit, run_id)
        await cancel_run(session, visit.access, run.id)
        return after_change(visit.url(f"/console/runs/{run.id}"), "the run is being cancelled")

    @post("/retry")
    async def retry(
        self, run_id: FromPath[UUID], visit: Visitor, session: Db, notify_workers: NamedDependency[NotifyWorkers]
    ) -> Redirect:
        run, visit = await _find(session, visit, run_id)
        await retry_run(session, visit.access, run.id, notify_workers)
        return after_change(
            visit.url(f"/console/runs/{run.id}"), "the run is queued again, from its last checkpoint"
        )


async def _find(session: AsyncSession, visit: Visit, run_id: UUID) -> tuple[tables.TrainingRun, Visit]:
    run = await runs.get(session, run_id, visit.access.project_id)
    return run, await visit_project(visit, session, run.project_id)


def _values(run: tables.TrainingRun, steps: Any) -> dict[str, Any]:
    """What the live part of the page shows."""
    warnings = [(each.index, text) for each in steps for text in each.metrics.get("warnings", [])]
    return {
        "run": run,
        "update": RunUpdate.of(run),
        "open": run.state in OPEN_RUNS,
        "last": steps[-1] if steps else None,
        "charts": run_charts(steps),
        "warnings": warnings,
    }


def _in_order(settings: dict[str, Any]) -> dict[str, Any]:
    """As the type has them, and after them what it no longer has."""
    known = [name for name in RunSettings.__struct_fields__ if name in settings]
    return {name: settings[name] for name in dict.fromkeys([*known, *settings])}


def _file(run: tables.TrainingRun, rows: list[dict[str, Any]]) -> Response[str]:
    names = list(
        dict.fromkeys(name for row in rows for name, value in row.items() if isinstance(value, int | float))
    )
    return csv_file(f"run-{run.id}", names, [[row.get(name) for name in names] for row in rows])


class _PartReader:
    """Sends the whole part again whenever it has changed: so nothing is lost with a connection."""

    def __init__(self, sessions: Sessions, visit: Visit, run_id: UUID) -> None:
        self._sessions, self._visit, self._run_id = sessions, visit, run_id
        self._sent: Any = None

    async def read(self) -> EventBatch:
        try:
            async with self._sessions() as session:
                run = await runs.get(session, self._run_id)
                state = (run.state, run.attempt, run.step, run.part, run.cancel_requested)
                if state == self._sent:
                    return EventBatch([])
                steps = await runs.steps(session, self._run_id)
        except NotFoundError:  # it was deleted
            return EventBatch([], ended=True)
        self._sent, ended = state, run.state not in OPEN_RUNS
        html = render("run_live.html", visit=self._visit, **_values(run, steps))
        messages = [ServerSentEventMessage(data=html)]
        if ended:
            messages.append(ServerSentEventMessage(data="", event="end"))
        return EventBatch(messages, ended=ended)


class ScheduleFields(msgspec.Struct, frozen=True):
    every_hours: float | None = None
    every_scored_tasks: int | None = None
    enabled: bool = True


class SchedulePages(Controller):
    path = "/runs/schedule"
    opt = {"scope": "admin"}  # noqa: RUF012

    @get()
    async def show(self, visit: Visitor, session: Db, serving: NamedDependency[Serving]) -> Response[str]:
        row = await schedule.find(session, visit.project.id)
        settings = read_settings(row.settings) if row else RunSettings()
        own = ScheduleFields(row.every_hours, row.every_scored_tasks, row.enabled) if row else ScheduleFields()
        shown = entered_values(settings) | entered_values(own)
        return await _schedule_form(visit, session, serving, Form(values=shown))

    @post()
    async def store(
        self,
        request: AnyRequest,
        visit: Visitor,
        session: Db,
        data_rules: NamedDependency[DataRules],
        serving: NamedDependency[Serving],
    ) -> Response[Any]:
        values = {name: value for name, value in (await request.form()).items() if isinstance(value, str)}
        own, settings = parse_form(values, ScheduleFields), parse_form(values, RunSettings)
        form: Form[Any] = msgspec.structs.replace(
            settings,
            values={**settings.values, **own.values},
            errors={**settings.errors, **own.errors},
            status=max(own.status, settings.status),
        )
        if own.value is None or settings.value is None:
            return await _schedule_form(visit, session, serving, form)
        new = schedule.ScheduleRequest(**msgspec.structs.asdict(own.value), settings=settings.value)
        try:
            await put_schedule(session, visit.access, visit.project, new, data_rules)
        except AppError as error:
            return await _schedule_form(visit, session, serving, form.refused(error))
        return after_change(visit.url("/console/runs"), "stored the schedule")

    @post("/delete")
    async def delete(self, visit: Visitor, session: Db) -> Redirect:
        await remove_schedule(session, visit.access, visit.project)
        return after_change(visit.url("/console/runs"), "deleted the schedule; runs that it has queued remain")


async def _schedule_form(visit: Visit, session: AsyncSession, serving: Serving, form: Form[Any]) -> Response[str]:
    row = await schedule.find(session, visit.project.id)
    return page(
        visit,
        "schedule.html",
        form=form,
        groups=groups(),
        options=await choices(session, visit.project),
        row=row,
        outlook=await schedule.outlook(session, row, serving) if row is not None else None,
        status=form.status,
    )

"""One training run: its steps as charts, live; what it learned from; its result."""

from typing import Any
from uuid import UUID

from litestar import Controller, Response, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath, FromQuery
from litestar.response import Redirect
from litestar.response.sse import ServerSentEventMessage
from sqlalchemy.ext.asyncio import AsyncSession

from app.api.practice_estimate import estimate
from app.api.run_view import RunUpdate
from app.api.runs import cancel_run, retry_run
from app.base.errors import NotFoundError
from app.console.drop_advice import drop_advice
from app.console.run_charts import run_charts, with_length
from app.db import run_logs, runs, tables
from app.db.database import Sessions
from app.db.learning_outlook import Serving
from app.db.notify import NotificationListener
from app.db.tables import RunState
from app.run_settings import RunSettings
from app.web.access import Db
from app.web.formats import csv_file
from app.web.pages import Visit, Visitor, after_change, page, render, visit_project
from app.web.routes import NotifyWorkers
from app.web.sse import EventBatch, event_stream

_OPEN = (RunState.QUEUED, RunState.RUNNING)


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
            log=await run_logs.read(session, run.id),
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
        "open": run.state in _OPEN,
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
        self._sent, ended = state, run.state not in _OPEN
        html = render("run_live.html", visit=self._visit, **_values(run, steps))
        messages = [ServerSentEventMessage(data=html)]
        if ended:
            messages.append(ServerSentEventMessage(data="", event="end"))
        return EventBatch(messages, ended=ended)

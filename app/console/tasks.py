"""Tasks: finding them, and sending one."""

from collections.abc import Mapping
from datetime import UTC, date, datetime, time, timedelta
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
from litestar import Controller, Request, Response, get, post
from litestar.di import NamedDependency
from sqlalchemy.ext.asyncio import AsyncSession

from app.api.submission import Check, Principal, Priority, Submission, submit_all
from app.api.tasks import search
from app.apis.documents.reader import DocumentReader
from app.apis.pages import read_callable
from app.base.errors import AppError, InvalidError, NotFoundError
from app.base.values import Stop
from app.db import tables, tasks
from app.db.tables import TaskState
from app.projects import statistics
from app.projects.settings import Limits
from app.projects.statistics import Grouping, TimeBucket
from app.releases import store as releases
from app.skills import store as skills
from app.web.access import Db
from app.web.fields import Scenario
from app.web.forms import Form, parse_form, read_form
from app.web.pages import Visit, Visitor, after_change, page

_PAGE = 50
_SCENARIOS = 100  # that are suggested
_SUCCESS = 0.5
_BELOW = 0.4999999
_Any = Request[Any, Any, Any]


class TaskQuery(msgspec.Struct, frozen=True, kw_only=True):
    """The filters of the page, as its form sends them."""

    q: Annotated[str, msgspec.Meta(max_length=500, pattern=r"^[^\x00]*$")] | None = None
    state: TaskState | None = None
    stop: Stop | None = None
    score: Literal["good", "bad"] | None = None
    scenario: Scenario | None = None
    skill: Annotated[str, msgspec.Meta(max_length=200, pattern=r"^[^\x00]*$")] | None = None
    release: Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)] | None = None
    since: date | None = None
    until: date | None = None


class NewTaskFields(msgspec.Struct, frozen=True, kw_only=True):
    """The form of a new task."""

    instruction: Annotated[str, msgspec.Meta(max_length=20_000, pattern=r"^[^\x00]*$")]
    scenario: Scenario | None = None
    check: Check | None = None
    principal: Principal = ""
    priority: Priority = 0
    variables: Annotated[str, msgspec.Meta(max_length=100_000, pattern=r"^[^\x00]*$")] = ""
    without_skills: bool = False
    without_exploring: bool = False


class TaskPages(Controller):
    path = "/tasks"
    opt = {"scope": "tasks"}  # noqa: RUF012

    @get()
    async def index(self, visit: Visitor, session: Db) -> Response[str]:
        form: Form[TaskQuery] = parse_form(visit.query, TaskQuery)
        found, cursor = list[tables.Task](), None
        if form.value is not None:
            try:
                result = await search(
                    session, await _filter(session, visit, form.value), visit.query.get("cursor"), _PAGE
                )
                found, cursor = result.items, result.cursor
            except AppError as error:
                form = form.refused(error)
        return page(
            visit,
            "tasks.html",
            status=200 if form.value else 400,
            form=form,
            tasks=found,
            cursor=cursor,
            numbers=await release_numbers(session, visit.project.id),
            states=[state.value for state in TaskState],
            stops=[stop.value for stop in Stop],
            scenarios=await _scenarios(session, visit),
        )

    @get("/new")
    async def ask(
        self, visit: Visitor, session: Db, document_reader: NamedDependency[DocumentReader]
    ) -> Response[str]:
        return await _new_page(visit, session, document_reader, Form[NewTaskFields]())

    @post()
    async def submit(
        self,
        request: _Any,
        visit: Visitor,
        session: Db,
        limits: NamedDependency[Limits],
        document_reader: NamedDependency[DocumentReader],
    ) -> Response[Any]:
        form = await read_form(request, NewTaskFields)
        if form.value is None:
            return await _new_page(visit, session, document_reader, form)
        try:
            submission = _submission(form.value, visit.project.name)
            [row] = await submit_all(session, visit.access, submission, None, limits)
        except AppError as error:
            return await _new_page(visit, session, document_reader, form.refused(error))
        await session.commit()
        return after_change(
            f"/console/tasks/{row.id}", "The task is queued. What it does shows here as it happens."
        )


async def release_numbers(session: AsyncSession, project_id: UUID) -> Mapping[UUID, int]:
    return {row.id: row.number for row in await releases.of_project(session, project_id)}


async def _filter(session: AsyncSession, visit: Visit, query: TaskQuery) -> tasks.TaskFilter:
    """Raises InvalidError, NotFoundError."""
    owner = visit.project.id
    return tasks.TaskFilter(
        project_id=owner,
        words=query.q,
        state=query.state,
        stop=query.stop,
        scenario=query.scenario,
        skill_ids=await _skill_ids(session, owner, query.skill) if query.skill else None,
        release_id=await _release_id(session, owner, query.release) if query.release else None,
        min_score=_SUCCESS if query.score == "good" else None,
        max_score=_BELOW if query.score == "bad" else None,
        created_after=_midnight(query.since),
        created_before=_midnight(query.until and query.until + timedelta(days=1)),
    )


async def _skill_ids(session: AsyncSession, project_id: UUID, text: str) -> list[UUID]:
    """Of an id, or of all versions of a name."""
    try:
        return [(await skills.get(session, UUID(text), project_id)).id]
    except ValueError:
        versions = await skills.versions(session, project_id, text.strip())
    except NotFoundError as error:
        raise InvalidError(f"skill: {error}") from error
    if not versions:
        raise InvalidError(f"skill: none is named {text}")
    return [each.id for each in versions]


async def _release_id(session: AsyncSession, project_id: UUID, number: int) -> UUID:
    try:
        return (await releases.numbered(session, project_id, number)).id
    except NotFoundError as error:
        raise InvalidError(f"release: {error}") from error


def _midnight(day: date | None) -> datetime | None:
    return datetime.combine(day, time(), UTC) if day else None


async def _scenarios(session: AsyncSession, visit: Visit) -> list[str]:
    """Those of the last month, the most frequent first."""
    since = visit.now - timedelta(days=30)
    found = await statistics.of_project(
        session, visit.project.id, Grouping.SCENARIO, since, visit.now, TimeBucket.WEEK, _SCENARIOS
    )
    return list(dict.fromkeys(row.key for row in found.rows if row.key is not None))


async def _new_page(
    visit: Visit, session: AsyncSession, reader: DocumentReader, form: Form[NewTaskFields]
) -> Response[str]:
    return page(
        visit,
        "task_new.html",
        status=400 if form.errors or form.error else 200,
        form=form,
        apis=await read_callable(session, visit.project, reader),
        scenarios=await _scenarios(session, visit),
    )


def _submission(fields: NewTaskFields, project: str) -> Submission:
    return Submission(
        instruction=fields.instruction,
        project=project,
        scenario=fields.scenario,
        check=fields.check,
        principal=fields.principal,
        priority=fields.priority,
        variables=_variables(fields.variables),
        use_skills=not fields.without_skills,
        explore=not fields.without_exploring,
    )


def _variables(text: str) -> dict[str, str]:
    """
    >>> _variables("world = 7\\n\\ntenant=a=b")
    {'world': '7', 'tenant': 'a=b'}
    """
    lines = [line.partition("=") for line in text.splitlines() if line.strip()]
    for name, equals, _ in lines:
        if not equals or not name.strip():
            raise InvalidError("variables: write one on each line, as name = value")
    return {name.strip(): value.strip() for name, _, value in lines}

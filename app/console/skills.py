"""The library of skills: found, compared, and chosen for a change of many at once."""

from typing import Annotated, Any

from litestar import Controller, Response, get
from litestar.params import FromQuery, QueryParameter
from sqlalchemy.ext.asyncio import AsyncSession

from app.base.errors import InvalidError
from app.console.lineage import COLUMNS, draw
from app.console.skill_library import LibraryRow, Order, read_library
from app.console.skill_lineages import read_lineages
from app.db import skills
from app.db.skill_records import MOST_TASKS
from app.db.tables import SkillState
from app.web.access import Db
from app.web.charts import draw_intervals
from app.web.formats import csv_file
from app.web.pages import Visit, Visitor, page

IN_USE, ALL = "in use", "all"  # beside the states of skills
_STATES = (IN_USE, *SkillState, ALL)
_PICTURED = 6  # skills
_CSV = (
    "id", "name", "version", "state", "scenario", "value", "value_low", "value_high", "saved_tokens", "saved_low",
    "saved_high", "tasks_with", "tasks_without", "offers", "uses", "successes", "last_used_at",
)  # fmt: skip


class SkillPages(Controller):
    path = "/skills"
    opt = {"scope": "skills"}  # noqa: RUF012

    @get()
    async def index(  # noqa: PLR0913 - each is a query parameter
        self,
        visit: Visitor,
        session: Db,
        q: FromQuery[str] = "",
        in_state: Annotated[str, QueryParameter(name="state")] = IN_USE,
        scenario: FromQuery[str] = "",
        api: FromQuery[str] = "",
        sort: FromQuery[str] = "",
        number: FromQuery[int] = 1,
        file: FromQuery[str] = "",
    ) -> Response[Any]:
        state = in_state or IN_USE
        only = _filter(visit, q, state, scenario, api)
        order = _order(sort or Order.SAVED)
        found = await read_library(session, only, order, number)
        if file == "csv":
            return csv_file("skills", _CSV, map(_numbers, found.rows))
        return page(
            visit,
            "skills.html",
            found=found,
            values=draw_intervals([row.value for row in found.rows]),
            savings=draw_intervals([row.saved for row in found.rows]),
            order=order,
            states=_STATES,
            state=state,
            filtered=bool(q or scenario or api or state != IN_USE),
            scenarios=await skills.scenarios(session, visit.project.id),
            waiting=await _waiting(session, visit),
            most_tasks=MOST_TASKS,
        )

    @get("/lineage")
    async def lineage(
        self, visit: Visitor, session: Db, sort: FromQuery[str] = Order.SAVED, file: FromQuery[str] = ""
    ) -> Response[Any]:
        """Of the first skills of the library."""
        only, order = _filter(visit, "", IN_USE, "", ""), _order(sort)
        found = await read_library(session, only, order, 1)
        names = list(dict.fromkeys(row.skill.name for row in found.rows))[:_PICTURED]
        pictured = await read_lineages(session, visit.project.id, names)
        if file == "csv":
            return csv_file("lineage", COLUMNS, (row for skill in pictured for row in skill.rows()))
        drawn = draw(pictured, versions=3, scenarios=3)
        return page(visit, "skill_lineage.html", drawn=drawn, names=names, order=order, orders=Order)


def _filter(visit: Visit, words: str, state: str, scenario: str, api: str) -> skills.SkillFilter:
    """Raises InvalidError for an unknown state."""
    if state not in _STATES:
        raise InvalidError(f"state: {state[:50]!r} is none of {', '.join(_STATES)}")
    return skills.SkillFilter(
        project_id=visit.project.id,
        state=None if state in (IN_USE, ALL) else SkillState(state),
        live=state == IN_USE,
        words=words,
        scenario=scenario or None,
        api=api.strip() or None,
    )


def _order(name: str) -> Order:
    try:
        return Order(name)
    except ValueError as error:
        raise InvalidError(f"sort: {name[:50]!r} is none of {', '.join(Order)}") from error


async def _waiting(session: AsyncSession, visit: Visit) -> int:
    """Skills that nobody is offered before a person has approved them."""
    held = skills.SkillFilter(project_id=visit.project.id, state=SkillState.QUARANTINED, held=True)
    return await skills.count(session, held)


def _numbers(row: LibraryRow) -> list[object]:
    skill = row.skill
    ends = [
        value
        for each in (row.value, row.saved)
        for value in ((None, None, None) if each is None else (each.mean, each.low, each.high))
    ]
    used = (row.stats.offers, row.stats.uses, row.stats.successes, row.last_used_at)
    return [skill.id, skill.name, skill.version, skill.state, skill.scenario, *ends, row.tasks, row.without, *used]

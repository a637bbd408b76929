"""The pages of skills: the library, found, compared and sorted by what skills are worth; one skill; and changes of
states by a person, which are shown first, then done.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from difflib import unified_diff
from enum import StrEnum
from typing import Annotated, Any
from uuid import UUID

import msgspec
from litestar import Controller, Response, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath, FromQuery, QueryParameter
from litestar.response import Redirect
from sqlalchemy.ext.asyncio import AsyncSession

from app.base.errors import ConflictError, InvalidError, NotFoundError
from app.db import tables
from app.db.database import Sessions
from app.db.tables import LIVE_SKILLS, SkillState
from app.releases import statistics
from app.releases.figure_pages import ends, value_file
from app.releases.statistics import Interval
from app.skills import moves, offers
from app.skills import store as skills
from app.skills.lineage import COLUMNS, draw, read_lineages
from app.skills.offers import MOST_TASKS, SkillRecords, SkillStats
from app.skills.routes import SkillEffect, SkillValue, view_skill
from app.skills.value import compared_tasks
from app.web.access import Access, Db
from app.web.charts import draw_intervals
from app.web.formats import attachment, csv_file
from app.web.pages import Visit, Visitor, after_change, page, visit_project
from app.web.problem import AnyRequest

ROWS = 50  # of a page of the library
IN_USE, ALL = "in use", "all"  # beside the states of skills
_STATES = (IN_USE, *SkillState, ALL)
_PICTURED = 6  # skills
_CSV = (
    "id", "name", "version", "state", "scenario", "value", "value_low", "value_high", "saved_tokens", "saved_low",
    "saved_high", "tasks_with", "tasks_without", "offers", "uses", "successes", "last_used_at",
)  # fmt: skip
_USES = 25  # of a skill that its page shows
_MOST = 200  # skills changed at once
_DONE = {"approve": "approved", "retire": "retired", "restore": "restored", "merge": "merged"}
_Change = Callable[[AsyncSession, UUID, str], Awaitable[tables.Skill]]
_CHANGES: Mapping[str, _Change] = {"approve": moves.approve, "retire": moves.retire, "restore": moves.restore}
Ids = Annotated[list[UUID] | None, QueryParameter(name="skill")]


class Order(StrEnum):
    """What the library is sorted by: largest first."""

    SAVED = "saved"  # tokens, in all tasks together
    VALUE = "value"  # what is certain of it: the lower end of the interval
    USES = "uses"
    SUCCESS = "success"
    LAST_USE = "last_use"
    NEWEST = "newest"


class LibraryRow(msgspec.Struct, frozen=True, kw_only=True):
    """`saved` are generated tokens, of all tasks that were offered the skill."""

    skill: tables.Skill
    stats: SkillStats
    last_used_at: datetime | None
    value: Interval | None
    saved: Interval | None
    tasks: int  # behind these: offered it, and not
    without: int


class LibraryPage(msgspec.Struct, frozen=True, kw_only=True):
    """`best` is the skill that saves most, if one is known to save anything."""

    rows: Sequence[LibraryRow]
    total: int
    number: int  # of this page, from 1
    last: int
    best: LibraryRow | None


async def read_library(session: AsyncSession, only: skills.SkillFilter, order: Order, number: int) -> LibraryPage:
    """A page beyond the last one is the last one."""
    assert only.project_id is not None
    measured = Measured(await offers.of_project(session, only.project_id))
    ids = measured.sort(await skills.ids(session, only), order)
    last = max(1, -(-len(ids) // ROWS))
    number = min(max(1, number), last)
    shown = ids[(number - 1) * ROWS : number * ROWS]
    best = measured.best()
    known = {row.id: row for row in await skills.of_ids(session, {*shown, *([best] if best else [])})}
    return LibraryPage(
        rows=[measured.row(known[each]) for each in shown if each in known],
        total=len(ids),
        number=number,
        last=last,
        best=measured.row(known[best]) if best in known else None,
    )


class Measured:
    """What the skills of a project did, and what they are worth."""

    def __init__(self, records: SkillRecords) -> None:
        self._records = records
        self._saved = {each: self._read_saved(each) for each in records.compared}

    def best(self) -> UUID | None:
        """The skill that saves most, of those that are known to save anything."""
        certain = {each: saved.mean for each, saved in self._saved.items() if saved and saved.low > 0}
        return max(certain, key=lambda each: certain[each], default=None)

    def sort(self, ids: Sequence[UUID], order: Order) -> Sequence[UUID]:
        """The largest first. Equal ones stay in their order."""
        if order is Order.NEWEST:
            return ids
        return sorted(ids, key=lambda each: self._worth(each, order), reverse=True)

    def row(self, skill: tables.Skill) -> LibraryRow:
        return LibraryRow(
            skill=skill,
            stats=self._records.stats(skill.id),
            last_used_at=self._records.last_used_at(skill.id),
            value=self._value(skill.id),
            saved=self._saved.get(skill.id),
            tasks=self._records.with_it(skill.id).score.number,
            without=self._records.without_it(skill.id).score.number,
        )

    def _read_saved(self, skill_id: UUID) -> Interval | None:
        with_it, without = self._records.with_it(skill_id).tokens, self._records.without_it(skill_id).tokens
        costs = statistics.one_look_difference(with_it, without)
        return None if costs is None else less(costs, with_it.number)

    def _value(self, skill_id: UUID) -> Interval | None:
        return SkillEffect.of(self._records.with_it(skill_id), self._records.without_it(skill_id)).score

    def _worth(self, skill_id: UUID, order: Order) -> tuple[float, int]:
        """Of skills that save nothing, and of equal shares of successes, that of most uses is the first."""
        stats = self._records.stats(skill_id)
        worth: float = stats.uses
        match order:
            case Order.SAVED:
                saved = self._saved.get(skill_id)
                worth = saved.mean if saved else 0.0
            case Order.VALUE:
                value = self._value(skill_id) if skill_id in self._records.compared else None
                return (value.low if value else -1.0), 0
            case Order.SUCCESS:
                worth = stats.successes / stats.uses if stats.uses else -1.0
            case Order.LAST_USE:
                last = self._records.last_used_at(skill_id)
                return (last.timestamp() if last else 0.0), 0
        return worth, stats.uses


def less(costs: Interval, tasks: int) -> Interval:
    """What is saved in so many tasks, if each costs so much more.

    >>> less(Interval(-2, -3, 1), 10)
    Interval(mean=20, low=-10, high=30)
    """
    return Interval(-costs.mean * tasks, -costs.high * tasks, -costs.low * tasks)


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
        waiting = skills.SkillFilter(project_id=visit.project.id, state=SkillState.QUARANTINED, held=True)
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
            waiting=await skills.count(session, waiting),
            most_tasks=MOST_TASKS,
        )

    @get("/lineage")
    async def lineage(
        self, visit: Visitor, session: Db, sort: FromQuery[str] = Order.SAVED, file: FromQuery[str] = ""
    ) -> Response[Any]:
        """Of the first skills of the library."""
        only, order = skills.SkillFilter(project_id=visit.project.id, live=True), _order(sort)
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


def _numbers(row: LibraryRow) -> list[object]:
    about = [getattr(row.skill, name) for name in ("id", "name", "version", "state", "scenario")]
    used = (*msgspec.structs.astuple(row.stats), row.last_used_at)
    return [*about, *ends(row.value), *ends(row.saved), row.tasks, row.without, *used]


class SkillDetailPage(Controller):
    path = "/skills/{skill_id:uuid}"
    opt = {"scope": "skills"}  # noqa: RUF012

    @get()
    async def show(
        self,
        skill_id: FromPath[UUID],
        visit: Visitor,
        session: Db,
        against: FromQuery[int | None] = None,
        file: FromQuery[str] = "",
    ) -> Response[Any]:
        skill = await skills.get(session, skill_id, visit.access.project_id)
        visit = await visit_project(visit, session, skill.project_id)
        value = SkillValue.of(await compared_tasks(session, skill.project_id, skill_id=skill.id))
        if file == "value":
            return value_file(f"{skill.name}-v{skill.version}-value", value)
        versions = await skills.versions(session, skill.project_id, skill.name)
        other = _other(versions, skill, against)
        return page(
            visit,
            "skill.html",
            skill=skill,
            view=await view_skill(session, skill),
            versions=versions,
            other=other,
            diff=None if other is None else source_diff(other, skill),
            value=value,
            saved=value.one_look.tokens and less(value.one_look.tokens, value.offered.tasks),
            drawn=draw_intervals([value.one_look.score, *(each.one_look.score for each in value.scenarios)]),
            uses=await offers.uses_of(session, skill.id, _USES),
            lineage=draw(await read_lineages(session, skill.project_id, [skill.name])),
            alike=await skills.alike(session, skill),
            moves=moves.possible(skill),
        )

    @get("/lineage.csv")
    async def lineage(self, skill_id: FromPath[UUID], visit: Visitor, session: Db) -> Response[str]:
        skill = await skills.get(session, skill_id, visit.access.project_id)
        [found] = await read_lineages(session, skill.project_id, [skill.name])
        return csv_file(f"{skill.name}-lineage", COLUMNS, found.rows())

    @get("/export")
    async def export(
        self, skill_id: FromPath[UUID], visit: Visitor, session: Db, kind: FromQuery[str] = "python"
    ) -> Response[bytes]:
        """The function alone, or all that REST says about the skill."""
        skill = await skills.get(session, skill_id, visit.access.project_id)
        if kind == "python":
            return attachment(f"{skill.name}.py", "text/x-python", skill.source.encode())
        if kind == "json":
            view = msgspec.json.encode(await view_skill(session, skill))
            return attachment(f"{skill.name}-v{skill.version}.json", "application/json", view)
        raise InvalidError(f"kind: {kind[:50]!r} is neither python nor json")


def _other(versions: Sequence[tables.Skill], skill: tables.Skill, number: int | None) -> tables.Skill | None:
    """The version to compare with: the one asked for, else the one before, or without one the next.

    Raises NotFoundError.
    """
    if number is None:
        before = [each for each in versions if each.version < skill.version]
        after = [each for each in versions if each.version > skill.version]
        return before[0] if before else after[-1] if after else None
    found = next((each for each in versions if each.version == number), None)
    if found is None:
        raise NotFoundError(f"{skill.name} has no version {number}")
    return found


def source_diff(one: tables.Skill, other: tables.Skill) -> str:
    """From the first to the second, as a unified diff."""
    before, after = (f"{each.name} version {each.version}" for each in (one, other))
    lines = unified_diff(one.source.splitlines(), other.source.splitlines(), before, after, lineterm="")
    return "\n".join(lines)


class ChangedVersion(msgspec.Struct, frozen=True, kw_only=True):
    """A version of a skill, and what happens to it."""

    id: UUID
    name: str
    version: int
    before: str
    after: str


class Changed(msgspec.Struct, frozen=True):
    """`refused` are skills that cannot be changed so, with the reason."""

    versions: list[ChangedVersion]
    refused: list[tuple[tables.Skill, str]]

    @property
    def names(self) -> list[str]:
        return sorted({each.name for each in self.versions})


class SkillChangePages(Controller):
    path = "/skills/change"
    opt = {"scope": "skills"}  # noqa: RUF012

    @get()
    async def ask(
        self,
        visit: Visitor,
        sessions: NamedDependency[Sessions],
        move: FromQuery[str],
        chosen: Ids = None,
        into: FromQuery[UUID | None] = None,
        named: FromQuery[str] = "",
    ) -> Response[Any]:
        """Nothing changes: the session ends without a commit. `named` is the skill to keep, instead of `into`."""
        _check(move, chosen)
        async with sessions() as session:
            found = await _find(session, visit.access, chosen or ())
            if named.strip():
                into = await _offered(session, found[0].project_id, named.strip())
            kept = None if into is None else await skills.get(session, into, found[0].project_id)
            visit = await visit_project(visit, session, found[0].project_id)
            return page(
                visit,
                "skill_change.html",
                move=move,
                done=_DONE[move],
                chosen=found,
                changed=await change(session, found, move, visit.access.actor, into),
                kept=kept,
                diff=None if kept is None else source_diff(found[0], kept),
            )

    @post()
    async def carry_out(self, request: AnyRequest, visit: Visitor, session: Db) -> Redirect:
        form = await request.form()
        move, chosen = str(form.get("move", "")), [_id(each) for each in form.getall("skill", [])]
        into = _id(form["into"]) if form.get("into") else None
        _check(move, chosen)
        found = await _find(session, visit.access, chosen)
        visit = await visit_project(visit, session, found[0].project_id)
        changed = await change(session, found, move, visit.access.actor, into)
        await session.commit()
        path = "/console/skills" if len(found) > 1 else f"/console/skills/{into or found[0].id}"
        return after_change(visit.url(path), _notice(move, changed))


async def change(
    session: AsyncSession, chosen: Sequence[tables.Skill], move: str, actor: str, into: UUID | None
) -> Changed:
    """Change all that can be changed, in one transaction; the caller commits. A version that an earlier one has
    taken with it is not changed again.
    """
    names, refused = [each.name for each in chosen], []
    project_id = chosen[0].project_id
    before = {each.id: _state(each) for each in await skills.of_names(session, project_id, names)}
    for skill in chosen:
        if _state(skill) != before[skill.id]:
            continue
        try:
            async with session.begin_nested():
                if move != "merge":
                    await _CHANGES[move](session, skill.id, actor)
                elif into is None:
                    raise InvalidError("into: choose the skill to keep")
                else:
                    await moves.merge(session, skill.id, actor, into)
        except ConflictError as error:
            refused.append((skill, str(error)))
    after = await skills.of_names(session, project_id, names)
    versions = [
        ChangedVersion(
            id=each.id, name=each.name, version=each.version, before=before[each.id], after=_state(each)
        )
        for each in after
        if _state(each) != before[each.id]
    ]
    return Changed(versions, refused)


def _state(skill: tables.Skill) -> str:
    return f"{skill.state}, held" if skill.held else skill.state.value


def _id(text: object) -> UUID:
    try:
        return UUID(str(text))
    except ValueError as error:
        raise InvalidError(f"skill: {str(text)[:50]!r} is not an id") from error


def _check(move: str, chosen: Sequence[UUID] | None) -> None:
    """Raises InvalidError."""
    if move not in _DONE:
        raise InvalidError(f"move: {move[:50]!r} is none of {', '.join(_DONE)}")
    if not chosen:
        raise InvalidError("select at least one skill")
    if len(chosen) > _MOST:
        raise InvalidError(f"select at most {_MOST} skills at once")


async def _find(session: AsyncSession, access: Access, chosen: Sequence[UUID]) -> list[tables.Skill]:
    """Raises NotFoundError, and InvalidError for skills of several projects."""
    found = [await skills.get(session, each, access.project_id) for each in chosen]
    if len({each.project_id for each in found}) > 1:
        raise InvalidError("these skills belong to several projects: change those of one at a time")
    return found


async def _offered(session: AsyncSession, project_id: UUID, name: str) -> UUID:
    """The newest version of the name that is offered. Raises InvalidError."""
    for each in await skills.versions(session, project_id, name):
        if each.state in LIVE_SKILLS and not each.held:
            return each.id
    raise InvalidError(
        f"named: no version of a skill {name[:200]!r} is offered to tasks; Skills lists those that are"
    )


def _notice(move: str, changed: Changed) -> str:
    names = ", ".join(changed.names[:5]) + (" and others" if len(changed.names) > 5 else "")
    done = f"{_DONE[move]} {names}" if names else f"nothing was {_DONE[move]}"
    return "; ".join([done, *(f"not {skill.name}: {why}" for skill, why in changed.refused)])

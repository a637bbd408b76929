"""One skill: what it does, where it comes from, what it is worth, and why it is in its state."""

from collections.abc import Sequence
from difflib import unified_diff
from typing import Any
from uuid import UUID

import msgspec
from litestar import Controller, Response, get
from litestar.params import FromPath, FromQuery

from app.api.skill_value_view import SkillValue
from app.api.skill_view import view_skill
from app.base.errors import InvalidError, NotFoundError
from app.console.figure_files import value_file
from app.console.lineage import COLUMNS, draw
from app.console.skill_library import less
from app.console.skill_lineages import read_lineages
from app.db import skill_uses, skills, tables
from app.db.skill_value import compared_tasks
from app.db.tables import LIVE_SKILLS, NEXT_SKILL_STATE, SkillState
from app.web.access import Db
from app.web.charts import draw_intervals
from app.web.formats import attachment, csv_file
from app.web.pages import Visitor, page, visit_project

_USES = 25


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
            uses=await skill_uses.uses_of(session, skill.id, _USES),
            lineage=draw(await read_lineages(session, skill.project_id, [skill.name])),
            alike=await skills.alike(session, skill),
            moves=possible_moves(skill),
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


def possible_moves(skill: tables.Skill) -> list[str]:
    """What a person may do with it, as `skill_moves` has it."""
    moves = ["approve"] if skill.state in NEXT_SKILL_STATE else []
    moves += ["retire"] if skill.state in LIVE_SKILLS else []
    return moves + (["restore"] if skill.state in (SkillState.SUPERSEDED, SkillState.RETIRED) else [])


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

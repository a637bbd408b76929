"""Changes of skills' states by a person: what would change is shown first, then done."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Annotated, Any
from uuid import UUID

import msgspec
from litestar import Controller, Request, Response, get, post
from litestar.di import NamedDependency
from litestar.params import FromQuery, QueryParameter
from litestar.response import Redirect
from sqlalchemy.ext.asyncio import AsyncSession

from app.base.errors import ConflictError, InvalidError
from app.console.skill_page import source_diff
from app.db import skill_moves, skills, tables
from app.db.database import Sessions
from app.db.tables import LIVE_SKILLS
from app.web.access import Access, Db
from app.web.pages import Visitor, after_change, page, visit_project

_MOST = 200  # skills at once
_DONE = {"approve": "approved", "retire": "retired", "restore": "restored", "merge": "merged"}
_Change = Callable[[AsyncSession, UUID, str], Awaitable[tables.Skill]]
_CHANGES: Mapping[str, _Change] = {
    "approve": skill_moves.approve,
    "retire": skill_moves.retire,
    "restore": skill_moves.restore,
}

Ids = Annotated[list[UUID] | None, QueryParameter(name="skill")]


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
    async def carry_out(self, request: Request[Any, Any, Any], visit: Visitor, session: Db) -> Redirect:
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
    before = _states(await skills.of_names(session, project_id, names))
    for skill in chosen:
        if _state(skill) != before[skill.id]:
            continue
        try:
            async with session.begin_nested():
                if move == "merge":
                    await skill_moves.merge(session, skill.id, _needed(into), actor)
                else:
                    await _CHANGES[move](session, skill.id, actor)
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


def _states(rows: Sequence[tables.Skill]) -> dict[UUID, str]:
    return {each.id: _state(each) for each in rows}


def _state(skill: tables.Skill) -> str:
    return f"{skill.state}, held" if skill.held else skill.state.value


def _needed(into: UUID | None) -> UUID:
    if into is None:
        raise InvalidError("into: choose the skill to keep")
    return into


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

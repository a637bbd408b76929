"""Routes for skills: the functions that the agent wrote and kept."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Annotated
from uuid import UUID

from litestar import Controller, delete, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath, FromQuery, QueryParameter
from sqlalchemy.ext.asyncio import AsyncSession

from app.api.skill_value_view import SkillValue
from app.api.skill_view import SkillMatch, SkillPage, SkillSummary, SkillView, view_skill
from app.db import skill_moves, skill_uses, skills, tables
from app.db.skill_uses import SkillUse
from app.db.skill_value import compared_tasks
from app.projects.authorization import find_project, project_filter, project_names
from app.web.access import Access, Caller, Db
from app.web.fields import TIME, Cursor, Limit, ProjectName, in_utc
from app.web.problem import problems
from app.web.routes import SkillSearch

Query = Annotated[
    str, QueryParameter(min_length=1, max_length=20_000, description="an instruction in natural language")
]
Api = Annotated[str | None, QueryParameter(description="only skills that call this `app` or `app.operation`")]
Kept = Annotated[
    UUID | None, QueryParameter(description="a skill that does the same, which tasks are offered from now on")
]
_READ = problems(400, 401, 403, 404)
_MOVE = problems(400, 401, 403, 404, 409)

Move = Callable[[AsyncSession, UUID, str], Awaitable[tables.Skill]]


class SkillController(Controller):
    path = "/skills"
    tags = ("Skills",)
    opt = {"scope": "skills"}  # noqa: RUF012

    @get(summary="List skills", responses=_READ)
    async def index(  # noqa: PLR0913 - each is a query parameter
        self,
        session: Db,
        access: Caller,
        project: ProjectName = None,
        in_state: Annotated[tables.SkillState | None, QueryParameter(name="state")] = None,
        principal: FromQuery[str | None] = None,
        name: FromQuery[str | None] = None,
        scenario: FromQuery[str | None] = None,
        api: Api = None,
        cursor: Cursor = None,
        limit: Limit = 50,
    ) -> SkillPage:
        """Newest first, in any state unless one is given."""
        only = skills.SkillFilter(
            project_id=await project_filter(session, access, project),
            state=in_state,
            principal=principal,
            name=name,
            scenario=scenario,
            api=api,
        )
        page = await skills.page(session, only, cursor=cursor, limit=limit)
        names = await project_names(session)
        return SkillPage([SkillSummary.of(row, names[row.project_id]) for row in page.items], page.cursor)

    @get("/search", summary="Find skills for an instruction", responses=_READ)
    async def search(  # noqa: PLR0913 - each is a query parameter
        self,
        q: Query,
        session: Db,
        access: Caller,
        library: NamedDependency[SkillSearch],
        project: ProjectName = None,
        scenario: FromQuery[str | None] = None,
        principal: FromQuery[str] = "",
        limit: Annotated[int, QueryParameter(ge=1, le=50)] = 10,
    ) -> list[SkillMatch]:
        """The skills that a task of the principal with this instruction would be offered, best first.

        Empty if none fits.
        """
        owner = await find_project(session, access, project)
        return await search_skills(session, library, owner.id, q, scenario, principal, limit)

    @get("/value", summary="Show what skills are worth", responses=_READ)
    async def value(
        self,
        session: Db,
        access: Caller,
        project: ProjectName = None,
        skill: Annotated[UUID | None, QueryParameter(description="only tasks that this skill fitted")] = None,
        scenario: FromQuery[str | None] = None,
        since: Annotated[
            str | None, QueryParameter(description="ended at this time or later", schema_extra=TIME)
        ] = None,
    ) -> SkillValue:
        """Compares the scores of tasks that were offered skills with those of tasks from which they were withheld.

        `SAGE_SKILLS_WITHHELD` sets the share of the latter. The latest 20,000 scored tasks count, but not
        those that only a judge scored.
        """
        owner = await find_project(session, access, project)
        tasks = await compared_tasks(session, owner.id, skill_id=skill, scenario=scenario, since=in_utc(since))
        return SkillValue.of(tasks)

    @get("/{skill_id:uuid}", summary="Show a skill", responses=_READ)
    async def show(self, skill_id: FromPath[UUID], session: Db, access: Caller) -> SkillView:
        """Its source and manifest, the task that wrote it, its use, and the evidence for its state."""
        return await view_skill(session, await _find(session, access, skill_id))

    @get("/{skill_id:uuid}/versions", summary="List the versions of a skill", responses=_READ)
    async def versions(self, skill_id: FromPath[UUID], session: Db, access: Caller) -> list[SkillSummary]:
        """Newest first."""
        skill = await _find(session, access, skill_id)
        names = await project_names(session)
        rows = await skills.versions(session, skill.project_id, skill.name)
        return [SkillSummary.of(row, names[row.project_id]) for row in rows]

    @get("/{skill_id:uuid}/uses", summary="List the tasks a skill was offered to", responses=_READ)
    async def uses(
        self, skill_id: FromPath[UUID], session: Db, access: Caller, limit: Limit = 50
    ) -> list[SkillUse]:
        """Newest first, each with the task that wrote the skill and the outcome of the one it was offered to."""
        skill = await _find(session, access, skill_id)
        return await skill_uses.uses_of(session, skill.id, limit)

    @post("/{skill_id:uuid}/approve", status_code=200, summary="Approve a skill", responses=_MOVE)
    async def approve(self, skill_id: FromPath[UUID], session: Db, access: Caller) -> SkillView:
        """Moves it from quarantine to probation, or from probation to active, whatever its evidence."""
        return await _move(session, access, skill_id, skill_moves.approve)

    @post("/{skill_id:uuid}/retire", status_code=200, summary="Retire a skill", responses=_MOVE)
    async def retire(
        self, skill_id: FromPath[UUID], session: Db, access: Caller, in_favor_of: Kept = None
    ) -> SkillView:
        """No version of its name is offered again, even if the agent rewrites it, until a version is restored."""
        move = skill_moves.retire if in_favor_of is None else partial(_merge, into=in_favor_of)
        return await _move(session, access, skill_id, move)

    @post("/{skill_id:uuid}/restore", status_code=200, summary="Restore a skill", responses=_MOVE)
    async def restore(self, skill_id: FromPath[UUID], session: Db, access: Caller) -> SkillView:
        """This version has the state again that it had, in place of every other version.

        One that was held still waits for approval, and replaces none.
        """
        return await _move(session, access, skill_id, skill_moves.restore)

    @delete("/{skill_id:uuid}", summary="Delete a skill", responses=_MOVE)
    async def remove(self, skill_id: FromPath[UUID], session: Db, access: Caller) -> None:
        """Deletes its source irrevocably; references to it keep its name. The agent may write it again."""
        await _move(session, access, skill_id, skill_moves.delete)


async def search_skills(
    session: AsyncSession,
    library: SkillSearch,
    project_id: UUID,
    instruction: str,
    scenario: str | None,
    principal: str,
    limit: int,
) -> list[SkillMatch]:
    """Best first. Ends the transaction: the search may wait for the embedder."""
    await session.commit()
    found = await library.find(project_id, instruction, scenario, limit, principal=principal)
    return [SkillMatch.of(offer) for offer in found]


async def _find(session: AsyncSession, access: Access, skill_id: UUID) -> tables.Skill:
    return await skills.get(session, skill_id, access.project_id)


async def _move(session: AsyncSession, access: Access, skill_id: UUID, move: Move) -> SkillView:
    skill = await _find(session, access, skill_id)
    await move(session, skill.id, access.actor)
    await session.commit()
    return await view_skill(session, await _find(session, access, skill_id))


async def _merge(session: AsyncSession, skill_id: UUID, actor: str, into: UUID) -> tables.Skill:
    return await skill_moves.merge(session, skill_id, into, actor)

"""The tools for skills."""

from typing import Annotated, Final
from uuid import UUID

import msgspec

from app.api.mcp_server.following import Wait, followed
from app.api.mcp_server.task_tools import IdempotencyKey, Project
from app.api.mcp_server.tool import ServedTool, ToolCall
from app.api.submission import Instruction, Principal
from app.api.task_view import TaskView
from app.db.database import reading
from app.projects.authorization import find_project
from app.skills.requests import SkillMatch
from app.skills.routes import SkillRunRequest, run_skill, search_skills
from app.web.fields import Scenario


class SearchArguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the skills are for."""

    instruction: Instruction
    project: Project | None = None
    scenario: Scenario | None = None
    principal: Principal = ""
    limit: Annotated[int, msgspec.Meta(ge=1, le=50)] = 10


class SkillMatches(msgspec.Struct, frozen=True):
    """Best first; empty if none fits."""

    skills: list[SkillMatch]


async def search(call: ToolCall, given: SearchArguments) -> SkillMatches:
    """Find the skills that a task with this instruction would be offered: Python functions that earlier tasks
    wrote and that call the project's APIs. run_skill runs one.
    """
    async with reading(call.parts.sessions) as session:
        owner = await find_project(session, call.access, given.project)
        where = (session, call.parts.library, owner.id)
        found = await search_skills(*where, given.instruction, given.scenario, given.principal, given.limit)
    return SkillMatches(found)


class RunArguments(SkillRunRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which skill, and with which arguments."""

    skill_id: Annotated[UUID, msgspec.Meta(description="the `id` of the skill, from search_skills")]
    idempotency_key: IdempotencyKey | None = None
    wait_seconds: Wait = 30


async def run(call: ToolCall, given: RunArguments) -> TaskView:
    """Run a skill with arguments, in a sandbox and with the rights that it was kept with: a task without a model.

    `answer` is what it returned. If it is not there within `wait_seconds`, follow the task with get_task.
    """
    request = SkillRunRequest(**{name: getattr(given, name) for name in SkillRunRequest.__struct_fields__})
    async with call.parts.sessions() as session:
        limits, key = call.parts.limits, given.idempotency_key
        task = await run_skill(session, call.access, given.skill_id, request, key, limits)
        await session.commit()
    return await followed(call, task.id, given.wait_seconds, after=0)


SKILL_TOOLS: Final = (
    ServedTool(
        name="search_skills", scope="skills", arguments=SearchArguments, result=SkillMatches, do=search, reads=True
    ),
    ServedTool(name="run_skill", scope="tasks", arguments=RunArguments, result=TaskView, do=run, destroys=True),
)

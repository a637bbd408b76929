"""Route that runs a skill with arguments, as a task."""

import hashlib
from typing import Annotated
from uuid import UUID

import msgspec
from litestar import Controller, post
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody
from sqlalchemy.ext.asyncio import AsyncSession

from app.api.submission import Principal, Priority, Variables
from app.api.task_view import Accepted
from app.api.tasks import IdempotencyKey
from app.base.errors import ConflictError, InvalidError
from app.base.values import Json, SkillRun
from app.db import skills, tables, tasks
from app.projects.settings import Limits
from app.skills.admission import is_offered
from app.web.access import Access, Caller, Db
from app.web.problem import problems

_MAX_BYTES = 100_000  # of all arguments, as JSON

Arguments = Annotated[
    dict[str, Json],
    msgspec.Meta(description="the arguments of the skill, by parameter", examples=[{"who": "iris"}]),
]


class SkillRunRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a skill is run. `principal`, `priority` and `variables` are those of a task."""

    arguments: Arguments = {}
    principal: Principal = ""
    priority: Priority = 0
    variables: Variables = {}


class SkillRunController(Controller):
    path = "/skills/{skill_id:uuid}/run"
    tags = ("Skills",)
    opt = {"scope": "tasks"}  # noqa: RUF012

    @post(status_code=202, summary="Run a skill", responses=problems(400, 401, 403, 404, 409, 429))
    async def run(
        self,
        skill_id: FromPath[UUID],
        session: Db,
        access: Caller,
        limits: NamedDependency[Limits],
        data: JSONBody[SkillRunRequest | None] = None,
        idempotency_key: IdempotencyKey = None,
    ) -> Accepted:
        """A task that calls the skill, without a model; its answer is what the skill returns. The skill may do
        what its manifest permits, as when an agent calls it. The task fails if it raises. 409 for a skill, or a
        version of it, that tasks of the principal are not offered.
        """
        task = await run_skill(session, access, skill_id, data or SkillRunRequest(), idempotency_key, limits)
        await session.commit()
        return Accepted.of(task)


async def run_skill(
    session: AsyncSession, access: Access, skill_id: UUID, data: SkillRunRequest, key: str | None, limits: Limits
) -> tables.Task:
    """Submit the task; the caller commits. Raises InvalidError, ConflictError, NotFoundError, LimitError."""
    skill = await skills.get(session, skill_id, access.project_id)
    if len(msgspec.json.encode(data.arguments)) > _MAX_BYTES:
        raise InvalidError(f"arguments: together more than {_MAX_BYTES:,} bytes as JSON")
    if not await is_offered(session, skill, data.principal):
        raise ConflictError(
            f"version {skill.version} of {skill.name} is {skill.state}{' and held' if skill.held else ''}: it is "
            f"not offered to tasks of the principal {data.principal!r}; GET /v1/skills/search finds what is"
        )
    run = SkillRun(skill_id=skill.id, arguments=data.arguments)
    new = tasks.NewTask(
        instruction=f"Run the skill {skill.name}.",
        key_id=access.key_id,
        principal=data.principal,
        priority=data.priority,
        variables=data.variables,
        skill_run=msgspec.to_builtins(run),
        pinned=True,
        idempotency_key=key,
        request_digest=_digest(skill_id, data) if key else None,
    )
    [task] = await tasks.submit_all(session, [(skill.project_id, new)], limits)
    return task


def _digest(skill_id: UUID, data: SkillRunRequest) -> str:
    """Identify the request, to tell a repeated one from another with the same key."""
    return hashlib.sha256(msgspec.json.encode([skill_id, data], order="deterministic")).hexdigest()

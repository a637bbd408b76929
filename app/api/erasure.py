"""Routes that erase tasks."""

from typing import Annotated
from uuid import UUID

from litestar import Controller, delete
from litestar.di import NamedDependency
from litestar.params import FromPath, QueryParameter
from sqlalchemy import Select

from app.base.errors import NotFoundError
from app.base.telemetry import TASKS_ERASED
from app.db import queries, tasks
from app.db.database import Sessions
from app.projects.authorization import find_project
from app.tasks import retention
from app.tasks.retention import Erasure
from app.web.access import Access, Caller, Db
from app.web.fields import ProjectName
from app.web.problem import problems

Principal = Annotated[
    str, QueryParameter(min_length=1, max_length=200, pattern=r"^[^\x00]*$", description="whose tasks to erase")
]
_ERASE = problems(400, 401, 403, 404, 409)
_AT_ONCE = 200


class ErasureController(Controller):
    path = "/tasks"
    tags = ("Tasks",)
    opt = {"scope": "admin"}  # noqa: RUF012

    @delete("/{task_id:uuid}", status_code=200, summary="Erase a task", responses=_ERASE)
    async def erase_task(
        self, task_id: FromPath[UUID], session: Db, sessions: NamedDependency[Sessions], access: Caller
    ) -> Erasure:
        """Deletes a task that has ended with its events, trajectory, feedback, approvals and messages, and every
        copy that training runs keep. Names the skills that it wrote, and the runs and releases that learned from
        it: they stay. 409 if it has not ended, or a run is learning from it."""
        task = await tasks.get(session, task_id, access.project_id)
        await session.commit()
        erased = await _erase(sessions, access, task.project_id, retention.of_task(task_id))
        if not erased.tasks:
            raise NotFoundError(f"no task has the id {task_id}; GET /v1/tasks lists them")
        return erased

    @delete(status_code=200, summary="Erase all tasks of a person", responses=_ERASE)
    async def erase_principal(
        self,
        principal: Principal,
        session: Db,
        sessions: NamedDependency[Sessions],
        access: Caller,
        project: ProjectName = None,
    ) -> Erasure:
        """All tasks of this `principal` in the project that were submitted so far. If it is interrupted, repeat
        it. 409, and none is erased, if one has not ended."""
        owner = await find_project(session, access, project)
        until = await queries.now(session)
        await session.commit()
        return await _erase(sessions, access, owner.id, retention.of_principal(owner.id, principal, until))


async def _erase(sessions: Sessions, access: Access, project_id: UUID, which: Select[UUID]) -> Erasure:
    """In small transactions, each with its entry in the audit log."""
    async with sessions() as session:
        await retention.check_erasable(session, which)
    erased, batch = Erasure(), None
    while batch is None or batch.tasks:
        async with sessions.begin() as session:
            batch = await retention.erase_some(session, project_id, which, access.actor, _AT_ONCE)
        TASKS_ERASED.inc(batch.tasks)
        erased += batch
    return erased

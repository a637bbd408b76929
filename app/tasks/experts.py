"""Has an expert, a hosted model of a project, do some of its tasks again, without changing anything."""

from typing import Annotated

import msgspec
from sqlalchemy.ext.asyncio import AsyncSession

from app.api.task_view import Accepted
from app.db import expert_tasks, tables, tasks
from app.db.expert_tasks import Wanted
from app.db.tables import AuditAction
from app.projects import audit
from app.projects.settings import Limits
from app.releases import hosted_models
from app.releases import store as releases
from app.web.access import Access

_PRIORITY = -100  # behind what people wait for
_REASON = "an expert, of tasks that are done again and only read"


class ExpertTasksRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`failed` tasks have no success, by their score or as they could not be done; `unscored` ones were completed.
    The newest ones are taken, at most `limit`."""

    tasks: Wanted
    limit: Annotated[int, msgspec.Meta(ge=1, le=200)] = 20


class ExpertTasks(msgspec.Struct, frozen=True, kw_only=True):
    """`release` is the number of the candidate that does them; null if there are none."""

    release: int | None
    tasks: list[Accepted]


async def do_again(
    session: AsyncSession,
    access: Access,
    owner: tables.Project,
    name: str,
    data: ExpertTasksRequest,
    limits: Limits,
) -> ExpertTasks:
    """Queue them, pinned to a candidate with the model. Audited; commits. Raises NotFoundError, LimitError.

    A task may have failed with a change half made, so that nothing is changed once more: they only read.
    """
    model = await hosted_models.get(session, owner.id, name, lock=True)  # two requests take no task twice
    found = await expert_tasks.latest(session, owner.id, model.id, data.tasks, data.limit)
    if not found:
        return ExpertTasks(release=None, tasks=[])
    release = await hosted_models.propose(session, owner.id, name)
    await releases.record_evidence(session, release.id, {"reason": _REASON})
    queued = await tasks.submit_all(session, [(owner.id, _again(each, release, access)) for each in found], limits)
    detail = {"model": name, "reason": _REASON, "tasks": len(queued)}
    await audit.add(session, owner.id, release.id, access.actor, AuditAction.RELEASE_PROPOSED, detail)
    await session.commit()
    return ExpertTasks(release=release.number, tasks=[Accepted.of(each) for each in queued])


def _again(task: tables.Task, release: tables.Release, access: Access) -> tasks.NewTask:
    return tasks.NewTask(
        instruction=task.instruction,
        conversation=task.conversation,
        scenario=task.scenario,
        key_id=access.key_id,
        principal=task.principal,
        priority=_PRIORITY,
        variables=task.variables,
        use_skills=task.use_skills,
        check_code=task.check_code,
        rerun_of=task.id,
        reads_only=True,
        release_id=release.id,
        pinned=True,
    )

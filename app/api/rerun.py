"""The request body of POST /v1/tasks/{task_id}/rerun: what differs from the task that is run again."""

import hashlib
from typing import Annotated, TypeVar
from uuid import UUID

import msgspec
from msgspec import UNSET, UnsetType
from sqlalchemy.ext.asyncio import AsyncSession

from app.api.submission import (
    Check,
    Conversation,
    Instruction,
    Principal,
    Priority,
    Variables,
    refuse_blank,
    refuse_unparsable,
)
from app.base.errors import ConflictError
from app.db import tables, tasks
from app.db.tables import Exploration, ReleaseState
from app.projects.settings import Limits
from app.releases import store as releases
from app.web.access import Access
from app.web.fields import MOST, Scenario

_MAY_SERVE = (ReleaseState.ACTIVE, ReleaseState.CANARY, ReleaseState.RETIRED)

T = TypeVar("T")

ReleaseNumber = Annotated[
    int,
    msgspec.Meta(ge=1, le=MOST, description="number of the release that serves it; default: as for any task"),
]


class Rerun(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Fields that are left out are those of the task; null removes scenario, check and release."""

    instruction: Instruction | UnsetType = UNSET
    conversation: Conversation | UnsetType = UNSET
    scenario: Scenario | UnsetType | None = UNSET
    principal: Principal | UnsetType = UNSET
    priority: Priority | UnsetType = UNSET
    variables: Variables | UnsetType = UNSET
    use_skills: bool | UnsetType = UNSET
    check: Check | UnsetType | None = UNSET
    release: ReleaseNumber | UnsetType | None = UNSET


async def repeat(
    session: AsyncSession, access: Access, task_id: UUID, changes: Rerun, key: str | None, limits: Limits
) -> tables.Task:
    """Submit the task again; the caller commits. Raises InvalidError, ConflictError, NotFoundError for an unknown
    task or release.
    """
    if changes.instruction is not UNSET:
        refuse_blank(changes.instruction)
    if isinstance(changes.check, str):
        await refuse_unparsable([changes.check])
    task = await tasks.get(session, task_id, access.project_id)
    release_id = await _servable(session, task, changes.release) if isinstance(changes.release, int) else None
    new = tasks.NewTask(
        instruction=_either(changes.instruction, task.instruction),
        conversation=_either(changes.conversation, task.conversation),
        scenario=_either(changes.scenario, task.scenario),
        key_id=access.key_id,
        principal=_either(changes.principal, task.principal),
        priority=_either(changes.priority, task.priority),
        variables=_either(changes.variables, task.variables),
        use_skills=_either(changes.use_skills, task.use_skills),
        exploration=Exploration.NO if task.exploration is Exploration.NO else None,
        check_code=_either(changes.check, task.check_code),
        rerun_of=task.id,
        repairs=task.repairs,
        reads_only=task.reads_only,
        skill_run=task.skill_run,
        release_id=release_id,
        pinned=(
            release_id is not None or task.skill_run is not None or task.repairs is not None or task.reads_only
        ),
        idempotency_key=key,
        request_digest=_digest(task.id, changes) if key else None,
    )
    [submitted] = await tasks.submit_all(session, [(task.project_id, new)], limits)
    return submitted


async def _servable(session: AsyncSession, task: tables.Task, number: int) -> UUID:
    release = await releases.numbered(session, task.project_id, number)
    if release.state not in _MAY_SERVE:
        raise ConflictError(
            f"release {number} is {release.state.value} and has not served: activate it, or let it do the task "
            "without effects (POST /v1/tasks/{task_id}/replay)"
        )
    return release.id


def _digest(task_id: UUID, changes: Rerun) -> str:
    """Identify the request, to tell a repeated one from another with the same key."""
    return hashlib.sha256(msgspec.json.encode([task_id, changes], order="deterministic")).hexdigest()


def _either(given: T | UnsetType, of_task: T) -> T:
    return of_task if given is UNSET else given

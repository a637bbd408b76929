"""Erases tasks, and names what was learned from them."""

from datetime import datetime
from typing import TypeVar
from uuid import UUID

import msgspec
from sqlalchemy import Select, func, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from app.db import audit, learning, retention, tables
from app.db.in_array import in_array
from app.db.learning import OPEN_RUNS, LearnedRelease, LearningRun
from app.db.tables import TASK_END_STATES, AuditAction, SkillState
from app.errors import ConflictError

_RETRAIN = (
    "No later run learns from the erased tasks, but weights and skills remember them. To replace the weights, "
    'queue a run with start="base" (POST /v1/training-runs), promote its release, and roll back to none of those '
    "named here. To forget the skills, delete them (DELETE /v1/skills/{id})."
)
_task, _run, _skill = tables.Task, tables.TrainingRun, tables.Skill


class WrittenSkill(msgspec.Struct, frozen=True):
    """A skill that an erased task wrote. It stays until it is deleted."""

    id: UUID
    name: str
    version: int
    state: SkillState


_Named = TypeVar("_Named", bound=WrittenSkill | LearningRun | LearnedRelease)


class Erasure(msgspec.Struct, frozen=True, kw_only=True):
    """What was erased, and what remembers it."""

    tasks: int = 0
    skills: list[WrittenSkill] = []
    runs: list[LearningRun] = []
    releases: list[LearnedRelease] = []
    retrain: str = ""  #: how to forget it; "" if nothing remembers it

    def __add__(self, other: "Erasure") -> "Erasure":
        return Erasure(
            tasks=self.tasks + other.tasks,
            skills=_joined(self.skills, other.skills),
            runs=_joined(self.runs, other.runs),
            releases=_joined(self.releases, other.releases),
            retrain=self.retrain or other.retrain,
        )


def of_task(task_id: UUID) -> Select[UUID]:
    """One task, for the functions below."""
    return select(_task.id).where(_task.id == task_id)


def of_principal(project_id: UUID, principal: str, until: datetime) -> Select[UUID]:
    """A person's tasks that were submitted up to a time, for the functions below."""
    own = _task.project_id == project_id, _task.principal == principal
    return select(_task.id).where(*own, _task.created_at <= until)


async def check_erasable(session: AsyncSession, which: Select[UUID]) -> None:
    """Raises ConflictError if a task has not ended, or is learned from by a run that has not."""
    open_tasks = which.where(_task.state.not_in(TASK_END_STATES)).subquery()
    unfinished = await session.scalar(select(func.count()).select_from(open_tasks))
    if unfinished:
        raise ConflictError(
            f"tasks that have not ended: {unfinished}; cancel them first (POST /v1/tasks/{{id}}/cancel), then "
            "try again"
        )
    learned = select(tables.RunTask.run_id).where(tables.RunTask.task_id.in_(which))
    run_id = await session.scalar(
        select(_run.id).where(_run.id.in_(learned), _run.state.in_(OPEN_RUNS)).order_by(_run.id).limit(1)
    )
    if run_id is not None:
        raise ConflictError(
            f"training run {run_id} is learning from it: cancel the run, or wait until it has ended, then "
            "try again"
        )


async def erase_some(
    session: AsyncSession, project_id: UUID, which: Select[UUID], actor: str, at_once: int
) -> Erasure:
    """Delete so many of the tasks with all that belongs to them, and audit it, without any of their content.

    No task is left once this erases none. Raises ConflictError as `check_erasable`.
    """
    # A run records the tasks before it learns from them: it has done so by now, or will find that they are gone.
    ids = (await session.scalars(which.order_by(_task.id).limit(at_once).with_for_update())).all()
    if not ids:
        return Erasure()
    these = select(_task.id).where(in_array(_task.id, ids))
    await check_erasable(session, these)
    traces = await learning.traces(session, project_id, these)
    written = select(_skill.id, _skill.name, _skill.version, _skill.state).where(in_array(_skill.task_id, ids))
    skills = [WrittenSkill(*row) for row in await session.execute(written.order_by(_skill.rev))]
    read = update(_run).where(in_array(_run.id, traces.readers), _run.state.not_in(OPEN_RUNS))
    await session.execute(read.values(erased=True))
    remembered = bool(skills or traces.runs)
    detail = {
        "tasks": len(ids),
        "skills": [str(each.id) for each in skills],
        "runs": [str(each.id) for each in traces.runs],
        "releases": [each.number for each in traces.releases],
    }
    await audit.add(session, project_id, None, actor, AuditAction.TASKS_ERASED, msgspec.to_builtins(detail))
    return Erasure(
        tasks=await retention.delete_tasks(session, project_id, these),
        skills=skills,
        runs=traces.runs,
        releases=traces.releases,
        retrain=_RETRAIN if remembered else "",
    )


def _joined(some: list[_Named], others: list[_Named]) -> list[_Named]:
    """Each once."""
    known = {each.id for each in some}
    return some + [each for each in others if each.id not in known]

"""One window of a project's tasks, with all that is known of each: read once, judged elsewhere."""

from collections import defaultdict
from datetime import datetime
from uuid import UUID

import msgspec
from sqlalchemy.ext.asyncio import AsyncSession

from app.db import releases, training_data
from app.db.models import Release, ReleaseState, SkillState, TaskState
from app.db.training_data import LoggedSkill, LoggedTask
from app.records import BASE, Trajectory
from app.run_settings import RunSettings
from app.skills.checks import is_wrapper
from trainer.experience.chain_rewards import Makers
from trainer.experience.filters import BaseModel, ReleaseWeights, fault_of, staleness_by_release
from trainer.experience.records import Drop, Served
from trainer.experience.task_groups import families


class Window(msgspec.Struct, frozen=True):
    """What ended in it."""

    tasks: int  # in all
    served: list[Served]  # those that are scored, oldest first
    families: list[str]  # of each
    makers: Makers
    dropped: list[Drop]  # why the others are not among them


async def read_window(session: AsyncSession, project_id: UUID, settings: RunSettings, base: BaseModel) -> Window:
    """Raises NotFoundError where the project has no active release."""
    rows = await training_data.window(
        session, project_id, since=settings.since, until=settings.until, limit=settings.limit
    )
    reasons = {row.id: _why_not(row) for row in rows}
    scored = {row.id: row for row in rows if reasons[row.id] is None}
    served = await _served(session, project_id, scored, settings, base)
    skills = await training_data.skills(
        session,
        project_id,
        made_by=[task.id for task in served],
        ids={offer.skill_id for task in served for offer in task.trajectory.offered},
    )
    lost = [Drop.FAILED] * (len(scored) - len(served))  # without a trajectory
    return Window(
        tasks=len(rows),
        served=served,
        families=families([task.trajectory.task for task in served], _slots(skills)),
        makers={skill.id: skill.task_id for skill in skills if _earns(skill)},
        dropped=[reason for reason in reasons.values() if reason is not None] + lost,
    )


def _why_not(row: LoggedTask) -> Drop | None:
    if row.state is TaskState.CANCELLED:
        return Drop.CANCELLED
    if row.state is TaskState.FAILED:
        return Drop.FAILED
    return Drop.UNSCORED if row.score is None else None


async def _served(
    session: AsyncSession, project_id: UUID, rows: dict[UUID, LoggedTask], settings: RunSettings, base: BaseModel
) -> list[Served]:
    """In the order in which the tasks began."""
    active = await releases.active(session, project_id)
    every = await releases.of_project(session, project_id)
    numbers = {release.id: release.number for release in every}
    learner = active.model if settings.start == "active" else BASE
    staleness = staleness_by_release([_weights(each) for each in every], active.number, learner)
    served = []
    async for trajectory in training_data.trajectories(session, list(rows)):
        row = rows[trajectory.task.id]
        assert row.release_id is not None  # a task that was carried out has both
        fault = fault_of(trajectory, row.base, base)
        served.append(_one(row, trajectory, numbers[row.release_id], staleness[row.release_id], fault))
    return sorted(served, key=_beginning)


def _weights(release: Release) -> ReleaseWeights:
    served = release.state in (ReleaseState.ACTIVE, ReleaseState.RETIRED)
    return ReleaseWeights(release.id, release.number, release.model, served)


def _one(row: LoggedTask, trajectory: Trajectory, release: int, staleness: int, fault: Drop | None) -> Served:
    assert row.started_at is not None  # a task that was carried out has both
    assert row.score is not None
    return Served(
        trajectory=trajectory,
        score=row.score,
        began=row.started_at,
        release=release,
        staleness=staleness,
        fault=fault,
    )


def _beginning(task: Served) -> tuple[datetime, UUID]:
    return task.began, task.id


def _earns(skill: LoggedSkill) -> bool:
    """A wrapper of one API call earns nothing, nor does what somebody took away for good."""
    return skill.state is not SkillState.DELETED and not is_wrapper(skill.source)


def _slots(skills: list[LoggedSkill]) -> dict[UUID, set[str]]:
    """The words of each task's instruction that its skills took as arguments."""
    slots: dict[UUID, set[str]] = defaultdict(set)
    for skill in skills:
        if skill.task_id is not None:
            slots[skill.task_id].update(skill.slots)
    return slots

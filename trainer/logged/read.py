"""Experience from what was served: one window of a project's tasks becomes rewarded or imitable trajectories.

Chains come from `chains`, comparisons from `groups`, the choice for supervised steps from `best`; here is only the
way from the tables to them.
"""

from collections import defaultdict
from datetime import datetime
from uuid import UUID

import msgspec
from sqlalchemy.ext.asyncio import AsyncSession

from app.db import logged, releases
from app.db.logged import LoggedSkill, LoggedTask
from app.db.models import SkillState, TaskState
from app.records import Trajectory
from app.run_settings import RunSettings
from app.skills.checks import is_wrapper
from trainer.advantages import Rewarded
from trainer.logged.best import choose
from trainer.logged.chains import Makers, earned
from trainer.logged.families import families
from trainer.logged.faults import BaseModel, ages, fault_of
from trainer.logged.groups import compare
from trainer.logged.served import Drop, Kept, Served, tally


class Logged(msgspec.Struct, frozen=True):
    """What a run of kind `logged` learns from."""

    rewarded: list[Rewarded]
    kept: Kept


class Best(msgspec.Struct, frozen=True):
    """What a run of kind `sft` imitates."""

    trajectories: list[Trajectory]
    kept: Kept


class _Window(msgspec.Struct, frozen=True):
    tasks: int  # that ended in it
    served: list[Served]  # oldest first
    families: list[str]  # of each
    makers: Makers
    dropped: list[Drop]  # the others


async def read_logged(session: AsyncSession, project_id: UUID, settings: RunSettings, base: BaseModel) -> Logged:
    """Rewarded trajectories of the window that the settings name.

    Raises InvalidError that says what is missing where nothing is left to learn from.
    """
    window = await _read(session, project_id, settings, base, settings.max_staleness)
    totals = earned(window.served, window.makers, settings.reward, name_only=settings.name_only_use)
    compared = compare(window.served, totals, window.families)
    grouped = [(served, rewarded.group) for served, rewarded in compared.kept]
    kept = tally(window.tasks, grouped, [*window.dropped, *compared.dropped])
    return Logged([rewarded for _, rewarded in compared.kept], kept)


async def read_best(
    session: AsyncSession, project_id: UUID, settings: RunSettings, base: BaseModel, *, count: int = 4
) -> Best:
    """The `count` best successes of each family, with skills and without. Staleness is no fault in an example.

    Raises InvalidError that says what is missing where nothing succeeded.
    """
    window = await _read(session, project_id, settings, base, None)
    chosen = choose(window.served, window.families, frozenset(window.makers.values()), count)
    kept = tally(window.tasks, chosen.kept, [*window.dropped, *chosen.dropped])
    return Best([served.trajectory for served, _ in chosen.kept], kept)


async def _read(
    session: AsyncSession, project_id: UUID, settings: RunSettings, base: BaseModel, max_staleness: int | None
) -> _Window:
    rows = await logged.window(
        session, project_id, since=settings.since, until=settings.until, limit=settings.limit
    )
    reasons = {row.id: _why_not(row) for row in rows}
    scored = {row.id: row for row in rows if reasons[row.id] is None}
    served = await _served(session, project_id, scored, base, max_staleness)
    skills = await logged.skills(
        session,
        project_id,
        made_by=[task.id for task in served],
        ids={offer.skill_id for task in served for offer in task.trajectory.offered},
    )
    lost = [Drop.FAILED] * (len(scored) - len(served))  # without a trajectory
    return _Window(
        tasks=len(rows),
        served=served,
        families=families([task.trajectory.task for task in served], _slots(skills)),
        makers={skill.id: skill.task_id for skill in skills if _earns(skill)},
        dropped=[reason for reason in reasons.values() if reason is not None] + lost,
    )


def _why_not(row: LoggedTask) -> Drop | None:
    if row.state is TaskState.CANCELLED:
        return Drop.CANCELLED
    if row.state is TaskState.FAILED or row.started_at is None or row.release_id is None:
        return Drop.FAILED
    return Drop.UNSCORED if row.score is None else None


async def _served(
    session: AsyncSession,
    project_id: UUID,
    rows: dict[UUID, LoggedTask],
    base: BaseModel,
    max_staleness: int | None,
) -> list[Served]:
    """In the order in which the tasks began."""
    active = await releases.active(session, project_id)
    every = await releases.of_project(session, project_id)
    numbers, age = {release.id: release.number for release in every}, ages(every, active.number)
    served = []
    async for trajectory in logged.trajectories(session, list(rows)):
        row = rows[trajectory.task.id]
        assert row.release_id is not None  # see _why_not
        stale = max_staleness is not None and age[row.release_id] > max_staleness
        fault = Drop.STALE if stale else fault_of(trajectory, row.base, base)
        served.append(_one(row, trajectory, numbers[row.release_id], age[row.release_id], fault))
    return sorted(served, key=_beginning)


def _one(row: LoggedTask, trajectory: Trajectory, release: int, staleness: int, fault: Drop | None) -> Served:
    assert row.started_at is not None  # see _why_not
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

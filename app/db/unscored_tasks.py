"""Tasks that have no score but a judge's, and the scores of their kinds."""

from collections import defaultdict
from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from uuid import UUID

import msgspec
from sqlalchemy import ColumnElement, case, false, func, or_, select, true
from sqlalchemy.ext.asyncio import AsyncSession

from app.base.values import Json
from app.db import tables
from app.db.queries import ago, in_array
from app.db.results import proven
from app.db.tables import TaskState
from app.project.wanted_feedback import KindScores, KindTrial
from app.projects.settings import kind_of
from app.releases.trials_store import ReleaseTrial

_WINDOW = timedelta(days=30)
_MOST = 5_000  # tasks, newest first

_task, _release = tables.Task, tables.Release


class UnscoredTask(msgspec.Struct, frozen=True, kw_only=True):
    """A task that has ended without a score, or only with a judge's."""

    id: UUID
    instruction: str
    scenario: str | None
    finished_at: datetime
    release: int | None  # its number
    on_trial: bool  # its release is a canary, or was compared with one when it began, or is watched


async def latest(
    session: AsyncSession, project_id: UUID, trial: ReleaseTrial | None = None
) -> Sequence[UnscoredTask]:
    """Of the last 30 days, newest first, at most 5,000."""
    on_trial = false() if trial is None else trial.open
    query = (
        select(
            _task.id,
            _task.instruction,
            _task.scenario,
            _task.finished_at,
            _release.number.label("release"),
            func.coalesce(on_trial, False).label("on_trial"),
        )
        .outerjoin(_release, _release.id == _task.release_id)
        .where(
            _task.project_id == project_id,
            _task.state == TaskState.DONE,
            _task.skill_run.is_(None),
            proven().is_(None),
            _task.finished_at >= ago(_WINDOW.total_seconds()),
        )
        .order_by(_task.finished_at.desc(), _task.id)
        .limit(_MOST)
    )
    return [UnscoredTask(**row) for row in (await session.execute(query)).mappings()]


async def answers(session: AsyncSession, task_ids: Collection[UUID]) -> dict[UUID, Json]:
    """What these tasks answered. Answers may be large: they are read of tasks that are shown."""
    query = select(_task.id, _task.answer).where(in_array(_task.id, task_ids))
    return {row.id: row.answer for row in await session.execute(query)}


async def scores_by_kind(session: AsyncSession, project_id: UUID) -> dict[str, KindScores]:
    """Of the last 30 days."""
    return {kind: scores for kind, [scores] in (await _by_kind(session, project_id, [true()])).items()}


async def trials_by_kind(
    session: AsyncSession, project_id: UUID, trial: ReleaseTrial | None
) -> dict[str, KindTrial]:
    """The scores of both sides of a trial, of the last 30 days."""
    if trial is None:
        return {}
    return {
        kind: KindTrial(*sides)
        for kind, sides in (await _by_kind(session, project_id, [trial.new, trial.old])).items()
    }


async def _by_kind(
    session: AsyncSession, project_id: UUID, which: Sequence[ColumnElement[bool]]
) -> dict[str, list[KindScores]]:
    """The scores of the tasks that each condition is true of."""
    total = func.sum(proven())
    figures = [
        each for side in which for each in (func.count().filter(side), func.coalesce(total.filter(side), 0.0))
    ]
    own_instruction = case((_task.scenario.is_(None), _task.instruction), else_="")
    query = (
        select(_task.scenario, own_instruction, *figures)
        .where(
            _task.project_id == project_id,
            proven().is_not(None),
            or_(*which),
            _task.finished_at >= ago(_WINDOW.total_seconds()),
        )
        .group_by(_task.scenario, own_instruction)
    )
    found: dict[str, list[KindScores]] = defaultdict(lambda: [KindScores()] * len(which))
    for scenario, instruction, *numbers in await session.execute(query):
        kind, new = kind_of(instruction, scenario), list(map(KindScores, numbers[::2], numbers[1::2]))
        found[kind] = [
            KindScores(a.count + b.count, a.total + b.total) for a, b in zip(found[kind], new, strict=True)
        ]
    return dict(found)

"""What a training run learns from served tasks: those of a time window, with their trajectories and skills.

Before a run is queued, `check_experience` says whether there is enough.
"""

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from datetime import datetime
from uuid import UUID

import msgspec
from sqlalchemy import false, func, or_, select
from sqlalchemy.ext.asyncio import AsyncSession

from app.base.errors import InvalidError
from app.base.run_settings import TRAINED_TEMPERATURE, RunKind, RunSettings
from app.base.text import numbered
from app.base.values import SOLVED, ScoreSource, Trajectory
from app.db import tables
from app.db.queries import in_array
from app.db.results import executed
from app.db.tables import SkillState, TaskState, TrainingRun
from app.releases import store as releases
from app.tasks import verification

_WINDOW = 5_000  # tasks of a run: more would take too much memory
_BATCH = 200  # trajectories per query
_ENDED = (
    select(
        tables.Task.id,
        tables.Task.state,
        executed().label("executed"),
        tables.Task.score,
        tables.Task.score_source,
        tables.Task.judged_by,
        tables.Task.started_at,
        tables.Task.finished_at,
        tables.Task.release_id,
        tables.Adapter.base,
        func.coalesce(~releases.is_local(tables.Release.model), false()).label("hosted"),
    )
    .outerjoin(tables.Release, tables.Release.id == tables.Task.release_id)
    .outerjoin(tables.Adapter, tables.Adapter.hash == tables.Release.model)
)
_COMPARED = 2  # tasks of the smallest group


class LoggedTask(msgspec.Struct, frozen=True, kw_only=True):
    """A task that has ended."""

    id: UUID
    state: TaskState
    executed: bool  # or cancelled, or it could not be
    score: float | None
    score_source: ScoreSource | None
    judged_by: str | None
    started_at: datetime | None  # None: it was cancelled before it began
    finished_at: datetime
    release_id: UUID | None
    base: str | None  # the model its adapter was trained on; None without an adapter, or if unknown
    hosted: bool = False  # its policy is a hosted model


class LoggedSkill(msgspec.Struct, frozen=True, kw_only=True):
    """A skill, and the task that wrote it."""

    id: UUID
    task_id: UUID | None  # None: that task was deleted
    state: SkillState
    source: str  # "" once it is deleted
    slots: list[str]  # words of its task's instruction that were its arguments


class _Sampled(msgspec.Struct, frozen=True):
    """What is read of a trajectory."""

    temperature: float = 0.0


_SAMPLED = msgspec.msgpack.Decoder(_Sampled)


async def ended(session: AsyncSession, task_ids: Sequence[UUID]) -> list[LoggedTask]:
    """Those of the tasks that exist, in any order."""
    rows = (await session.execute(_ENDED.where(in_array(tables.Task.id, task_ids)))).mappings()
    return [LoggedTask(**row) for row in rows]


async def window(
    session: AsyncSession,
    project_id: UUID,
    *,
    since: datetime | None = None,
    until: datetime | None = None,
    limit: int = _WINDOW,
) -> list[LoggedTask]:
    """Tasks that ended from `since` up to, not at, `until`: the newest `limit` of them, oldest first."""
    task = tables.Task
    query = (
        _ENDED.where(task.project_id == project_id, task.finished_at.is_not(None))
        .order_by(task.finished_at.desc(), task.id)
        .limit(limit)
    )
    if since is not None:
        query = query.where(task.finished_at >= since)
    if until is not None:
        query = query.where(task.finished_at < until)
    rows = (await session.execute(query)).mappings().all()
    return [LoggedTask(**row) for row in reversed(rows)]


def beyond_replay(rows: Sequence[LoggedTask], learned: datetime | None, share: float) -> list[UUID]:
    """Of tasks, oldest first, those that ended before `learned` and exceed the share of replayed ones."""
    if learned is None:
        return []
    old = [row.id for row in rows if row.finished_at < learned]
    new = len(rows) - len(old)
    replayed = len(old) if share == 1 else min(len(old), int(new * share / (1 - share)))
    return old[: len(old) - replayed]


async def learned_until(session: AsyncSession, project_id: UUID) -> datetime | None:
    """The start of the last run on served tasks from which the weights come that serve now. None: they come from
    none, as after a roll-back.
    """
    active = await releases.find_active(session, project_id)
    weights, known = {active.model} if active else set(), set[str]()
    while weights:
        made = await _makers(session, project_id, weights)
        if starts := [run.started_at for run in made if run.kind is RunKind.LOGGED and run.started_at]:
            return max(starts)
        known |= weights
        weights = {run.started_from for run in made if run.started_from} - known
    return None


async def _makers(session: AsyncSession, project_id: UUID, weights: Collection[str]) -> Sequence[TrainingRun]:
    """The runs of the project that made one of these weights."""
    adapter, release = tables.Adapter, tables.Release
    stored = select(adapter.run_id).where(in_array(adapter.hash, weights))
    proposed = select(release.training_run_id).where(
        release.project_id == project_id, in_array(release.model, weights)
    )
    query = select(TrainingRun).where(
        TrainingRun.project_id == project_id, or_(TrainingRun.id.in_(stored), TrainingRun.id.in_(proposed))
    )
    return (await session.scalars(query)).all()


async def trajectories(session: AsyncSession, task_ids: Sequence[UUID]) -> AsyncIterator[Trajectory]:
    """Trajectories in the order of the ids. A task without a trajectory is left out."""
    for start in range(0, len(task_ids), _BATCH):
        some = task_ids[start : start + _BATCH]
        rows = await session.execute(
            select(tables.Trajectory.task_id, tables.Trajectory.record).where(
                in_array(tables.Trajectory.task_id, some)
            )
        )
        records = {row.task_id: row.record for row in rows}
        for record in (records[task_id] for task_id in some if task_id in records):
            yield msgspec.msgpack.decode(record, type=Trajectory)


async def temperatures(session: AsyncSession, task_ids: Sequence[UUID]) -> AsyncIterator[float]:
    """At which tasks were sampled, in any order. A task without a trajectory is left out."""
    for start in range(0, len(task_ids), _BATCH):
        some = in_array(tables.Trajectory.task_id, task_ids[start : start + _BATCH])
        records = (await session.scalars(select(tables.Trajectory.record).where(some))).all()
        for each in await asyncio.to_thread(_decoded, records):
            yield each.temperature


def _decoded(records: Sequence[bytes]) -> list[_Sampled]:
    return [_SAMPLED.decode(each) for each in records]


async def skills(
    session: AsyncSession, project_id: UUID, *, made_by: Collection[UUID], ids: Collection[UUID]
) -> list[LoggedSkill]:
    """The project's skills that one of the tasks wrote or that have one of the ids."""
    skill = tables.Skill
    rows = await session.execute(
        select(skill.id, skill.task_id, skill.state, skill.source, skill.slots)
        .where(skill.project_id == project_id, or_(in_array(skill.task_id, made_by), in_array(skill.id, ids)))
        .order_by(skill.rev)
    )
    return [LoggedSkill(**row) for row in rows.mappings()]


async def check_experience(
    session: AsyncSession, project: tables.Project, settings: RunSettings, *, judged: bool
) -> None:
    """Raises InvalidError for a run that can learn from no task that was served, with how many there are and how
    many it needs. What takes their text to decide, such as which are alike, is left to the run.

    `judged`: a judge may give the scores that are missing.
    """
    if settings.kind not in (RunKind.LOGGED, RunKind.SFT) or settings.data:
        return
    ended = await window(session, project.id, since=settings.since, until=settings.until)
    scored = await _scored(session, project.id, ended, judged=judged)
    if settings.kind is RunKind.SFT:
        solved = sum(row.score is None or row.score >= SOLVED for row in scored)
        _need(1, solved, ended, "that ended were solved", "wait for tasks that succeed, or set data")
        return
    advice = "submit tasks with a check, or score those that ended"
    _need(_COMPARED, len(scored), ended, "that ended have a score to learn from", advice)
    here = [row for row in scored if not row.hosted]
    advice = "a hosted model has no token ids and logprobs: queue a run of kind sft"
    _need(_COMPARED, len(here), scored, "with a score were done by the model servers' model", advice)
    new = await _new(session, project.id, settings, here)
    advice = "wait for new tasks, or raise both replay and max_staleness"
    _need(_COMPARED, len(new), here, "with a score are new to the weights that serve", advice)
    explored = 0
    async for temperature in temperatures(session, [row.id for row in reversed(new)]):
        explored += temperature == TRAINED_TEMPERATURE
        if explored == _COMPARED:
            return
    advice = "let a share of the tasks explore (the project's explore_percent), or serve with SAGE_TEMPERATURE=1"
    _need(_COMPARED, explored, new, "with a score were sampled at temperature 1", advice)


async def _scored(
    session: AsyncSession, project_id: UUID, ended: Sequence[LoggedTask], *, judged: bool
) -> list[LoggedTask]:
    """Those that were executed and have a score that counts, or may get one."""
    trusted = await verification.trusted(session, project_id, {row.judged_by for row in ended})

    def counts(row: LoggedTask) -> bool:
        if row.score is None or row.score_source is ScoreSource.JUDGE:
            return judged or (row.score is not None and row.judged_by in trusted)
        return True

    return [row for row in ended if row.executed and counts(row)]


async def _new(
    session: AsyncSession, project_id: UUID, settings: RunSettings, scored: Sequence[LoggedTask]
) -> list[LoggedTask]:
    """Those that the policy that serves could not learn from already, and the share of others that is replayed."""
    learned = None if settings.since else await learned_until(session, project_id)
    old = set(beyond_replay(scored, learned, settings.replay))
    return [row for row in scored if row.id not in old]


def _need(needed: int, there: int, tasks: Sequence[LoggedTask], which: str, advice: str) -> None:
    """Raises InvalidError if of these tasks there are fewer than it needs."""
    if there < needed:
        some = f"{there} of {numbered(len(tasks), 'task')} {which}"
        found = some if tasks else "no task ended in the window"
        raise InvalidError(f"too little to learn from: {found}, and the run needs {needed}: {advice}")

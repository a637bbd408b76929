"""Schedules of projects' training runs, and what each has to learn from. Any number of processes may call `tick`.

The outlook says how many scores a week come in, and what keeps the runs from learning anything.
"""

import math
from datetime import datetime, timedelta
from typing import Annotated
from uuid import UUID

import msgspec
from sqlalchemy import ColumnElement, Row, ScalarSelect, and_, case, delete, exists, func, or_, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import InstrumentedAttribute

from app.base.errors import InvalidError, NotFoundError
from app.base.run_settings import TRAINED_TEMPERATURE, RunKind, RunSettings, read_settings
from app.base.settings import Settings
from app.base.values import hosted_id
from app.db import tables
from app.db.queries import from_now
from app.db.results import proven
from app.db.tables import OPEN_RUNS, Exploration, ReleaseState
from app.projects import store as projects
from app.projects.settings import ProjectSettings, explored_percent
from app.releases import store as releases
from app.runs import store as runs

_MIN_HOURS, _MAX_HOURS = 1 / 3600, 87_600.0  # a second, ten years
_MAX_SCORED_TASKS = 1_000_000_000

_schedule, _task, _release = tables.Schedule, tables.Task, tables.Release
_DAYS = 7  # of an outlook
_HOSTED = (
    "the hosted model that serves has no token ids and logprobs, and runs of kind logged learn from nothing else: "
    "schedule runs of kind sft"
)
_ENOUGH = 20  # tasks that explored, to say how many do so to their end


class ScheduleRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Train every `every_hours` hours or `every_scored_tasks` newly scored tasks, whichever comes first."""

    every_hours: Annotated[float, msgspec.Meta(gt=0)] | None = None
    every_scored_tasks: Annotated[int, msgspec.Meta(ge=1)] | None = None  # scores of a judge do not count
    settings: RunSettings = RunSettings()
    enabled: bool = True


class ScheduleProgress(msgspec.Struct, frozen=True):
    """How far a schedule is from its next run."""

    scored_tasks: int  # since its last run
    waits_for_release: int | None  # the number of one on trial: until that ends, no run begins


async def put(session: AsyncSession, project_id: UUID, new: ScheduleRequest) -> tables.Schedule:
    """Set the project's schedule. A replaced one keeps its count of scored tasks, which starts at the first.

    Raises InvalidError for an interval out of range.
    """
    _validate(new)
    same_interval = _schedule.every_hours == new.every_hours
    given = msgspec.to_builtins(new)
    next_at = None if new.every_hours is None else from_now(new.every_hours * 3600)
    row = await session.scalar(
        insert(_schedule)
        .values(project_id=project_id, next_at=next_at, **given)
        .on_conflict_do_update(
            index_elements=["project_id"],
            set_={
                **given,
                "next_at": case((same_interval, _schedule.next_at), else_=next_at),
                "rev": _schedule.rev + 1,
            },
        )
        .returning(_schedule)
        .execution_options(populate_existing=True)
    )
    assert row is not None  # an upsert always returns its row
    return row


async def find(session: AsyncSession, project_id: UUID) -> tables.Schedule | None:
    return await session.scalar(
        select(_schedule).where(_schedule.project_id == project_id).execution_options(populate_existing=True)
    )


async def get(session: AsyncSession, project_id: UUID) -> tables.Schedule:
    row = await find(session, project_id)
    if row is None:
        raise NotFoundError("this project has no schedule: PUT /v1/schedule sets one")
    return row


async def remove(session: AsyncSession, project_id: UUID) -> None:
    """Delete the schedule; its runs stay. Raises NotFoundError."""
    deleted = await session.scalar(
        delete(_schedule).where(_schedule.project_id == project_id).returning(_schedule.id)
    )
    if deleted is None:
        raise NotFoundError("this project has no schedule")


async def tick(session: AsyncSession) -> list[UUID]:
    """Queue a run for each schedule that is due, and return their ids. Of concurrent callers, one queues it.

    A schedule waits until its last run has ended, then makes up for what it missed with a single run. It waits for
    the end of a trial, too: else what the run makes would be compared with weights that serve no more by its turn.
    """
    fired = [await _fire(session, seen) for seen in await _due(session)]
    return [run_id for run_id in fired if run_id is not None]


async def progress(session: AsyncSession, schedule: tables.Schedule) -> ScheduleProgress:
    scored = _scored(schedule.project_id)
    on_trial = select(func.min(_release.number)).where(_is_on_trial(schedule.project_id)).scalar_subquery()
    count, number = (await session.execute(select(scored, on_trial))).one()
    return ScheduleProgress(max(0, count - schedule.scored_seen), number)


def _scored(project_id: UUID | InstrumentedAttribute[UUID]) -> ScalarSelect[int]:
    """How many tasks have a score, not counting those that a judge gave."""
    counted = select(func.count()).select_from(_task).where(_task.project_id == project_id, proven().is_not(None))
    return counted.where(_task.score.is_not(None)).correlate(_schedule).scalar_subquery()  # as the index says it


def _is_on_trial(project_id: UUID | InstrumentedAttribute[UUID]) -> ColumnElement[bool]:
    """Whether a release is a canary, or waits for its turn."""
    return and_(_release.project_id == project_id, _release.state.in_([ReleaseState.PASSED, ReleaseState.CANARY]))


def _validate(new: ScheduleRequest) -> None:
    if new.every_hours is None and new.every_scored_tasks is None:
        raise InvalidError("a schedule needs `every_hours` or `every_scored_tasks`, or both")
    if new.every_hours is not None and not _MIN_HOURS <= new.every_hours <= _MAX_HOURS:
        raise InvalidError(f"`every_hours` must be between {_MIN_HOURS:.5f} (a second) and {_MAX_HOURS:g}")
    if new.every_scored_tasks is not None and not 1 <= new.every_scored_tasks <= _MAX_SCORED_TASKS:
        raise InvalidError(f"`every_scored_tasks` must be between 1 and {_MAX_SCORED_TASKS}")


async def _due(session: AsyncSession) -> list[Row[tables.Schedule, int, datetime]]:
    scored = _scored(_schedule.project_id)
    enough = and_(
        _schedule.every_scored_tasks.is_not(None), scored - _schedule.scored_seen >= _schedule.every_scored_tasks
    )
    run = tables.TrainingRun
    open_run = exists().where(run.schedule_id == _schedule.id, run.state.in_(OPEN_RUNS))
    query = (
        select(_schedule, scored, func.clock_timestamp())
        .where(_schedule.enabled, ~open_run, ~exists().where(_is_on_trial(_schedule.project_id)))
        .where(or_(_schedule.next_at <= func.clock_timestamp(), enough))
        .order_by(_schedule.id)  # one order for all processes, so that they cannot deadlock
        .execution_options(populate_existing=True)
    )
    return list(await session.execute(query))


async def _fire(session: AsyncSession, seen: Row[tables.Schedule, int, datetime]) -> UUID | None:
    """None if another process fired or edited it first."""
    schedule, scored, now = seen
    mine = await session.scalar(
        update(_schedule)
        .where(_schedule.id == schedule.id, _schedule.rev == schedule.rev)
        .values(
            rev=schedule.rev + 1,
            scored_seen=scored,
            fired_at=now,
            next_at=next_slot(schedule.next_at, schedule.every_hours, now),
        )
        .returning(_schedule.id)
        .execution_options(synchronize_session=False)
    )
    if mine is None:
        return None
    run = await runs.put(session, schedule.project_id, schedule.settings, schedule_id=schedule.id)
    return run.id


def next_slot(last: datetime | None, hours: float | None, now: datetime) -> datetime | None:
    """The first slot after now: on the last one's grid if that has passed, otherwise a whole period later.

    >>> at = datetime(2026, 1, 1, 12)
    >>> next_slot(at, 2, at.replace(hour=17)).hour, next_slot(at, 2, at.replace(hour=11)).hour
    (18, 13)
    """
    if hours is None:
        return None
    period = timedelta(hours=hours)
    if last is None or last > now:
        return now + period
    return last + period * (math.floor((now - last) / period) + 1)


class Serving(msgspec.Struct, frozen=True):
    """What this server does with the tasks of every project, and for its runs."""

    temperature: float = 0.0
    judge: str = ""
    model: str = ""  # that runs train

    @classmethod
    def of(cls, settings: Settings) -> "Serving":
        return cls(settings.temperature, settings.judge, settings.local_model)


class Outlook(msgspec.Struct, frozen=True, kw_only=True):
    """`scored_last_week` tasks were scored by other than a judge; at that pace runs can learn from about
    `scores_per_week`. Each of the `problems` keeps runs from learning anything.
    """

    scored_last_week: int
    scores_per_week: int
    problems: list[str]


class _Week(msgspec.Struct, frozen=True):
    """Of the tasks that ended in the last days."""

    scored: int  # by other than a judge
    judged: int  # by a judge alone
    explored: int  # of those scored, sampled at 1 although the server samples otherwise
    stopped: int  # of those scored, begun again without exploring, to change something


async def outlook(session: AsyncSession, schedule: tables.Schedule, serving: Serving) -> Outlook:
    """Of the runs of a schedule, as if it were enabled."""
    project = projects.settings_of(await projects.by_id(session, schedule.project_id))
    settings, week = read_settings(schedule.settings), await _week(session, schedule)
    if settings.kind not in (RunKind.LOGGED, RunKind.SFT) or settings.data:
        return Outlook(scored_last_week=week.scored, scores_per_week=0, problems=[])
    percent, kept = 100.0, 1.0
    if settings.kind is RunKind.LOGGED and serving.temperature != TRAINED_TEMPERATURE:
        percent, kept = explored_percent(project, learns=True), _share_kept(project, week)
    problems = [*_unsampled(percent, project, week), *_unscored(schedule, project, serving, week)]
    active = await releases.find_active(session, schedule.project_id)
    if settings.kind is RunKind.LOGGED and active is not None and hosted_id(active.model) is not None:
        problems = [_HOSTED, *problems]
    return Outlook(
        scored_last_week=week.scored,
        scores_per_week=0 if problems else round(week.scored * percent / 100 * kept),
        problems=problems,
    )


def _share_kept(project: ProjectSettings, week: _Week) -> float:
    """Of the tasks that begin to explore, the share that does so to its end; all of them while few are known."""
    known = week.explored + week.stopped
    return 1.0 if project.explore_writes or known < _ENOUGH else week.explored / known


def _unsampled(percent: float, project: ProjectSettings, week: _Week) -> list[str]:
    if not percent:
        return [
            "no task is sampled at temperature 1, and runs of kind logged learn from no other: raise the "
            "project's explore_percent, or serve with SAGE_TEMPERATURE=1"
        ]
    if not week.explored and week.stopped >= _ENOUGH and not project.explore_writes:
        return [
            f"none of {week.stopped} tasks that explored and were scored did so to its end: all wanted to change "
            "something, which exploring tasks do only by operations that are open to it, or with explore_writes"
        ]
    return []


def _unscored(schedule: tables.Schedule, project: ProjectSettings, serving: Serving, week: _Week) -> list[str]:
    if week.scored or project.verifier is not None:
        return []
    if not (week.judged or serving.judge):
        return [
            f"no task of the last {_DAYS} days has a score: submit tasks with a check, score them (POST "
            "/v1/feedback), or set a verifier"
        ]
    if schedule.every_hours is None:
        return ["a judge alone scores, and its scores start no run: set every_hours"]
    if project.judge_agreement and not schedule.settings.get("data"):
        return [
            "a judge alone scores, which is not known to decide as people do: score tasks that it has scored, or "
            "set judge_agreement to 0"
        ]
    return []


async def _week(session: AsyncSession, schedule: tables.Schedule) -> _Week:
    by_others, explored = proven().is_not(None), _task.exploration.in_([Exploration.READS, Exploration.WRITES])
    since = func.clock_timestamp() - timedelta(days=_DAYS)
    query = select(
        func.count().filter(by_others),
        func.count().filter(~by_others),
        func.count().filter(by_others, explored),
        func.count().filter(by_others, _task.exploration == Exploration.STOPPED),
    ).where(_task.project_id == schedule.project_id, _task.finished_at >= since, _task.score.is_not(None))
    return _Week(*(await session.execute(query)).one())

"""What a schedule has to learn from: how many scores a week, and what keeps its runs from learning anything."""

from datetime import timedelta

import msgspec
from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncSession

from app.base.settings import Settings
from app.base.values import hosted_id
from app.db import releases, tables
from app.db.results import proven
from app.db.tables import Exploration
from app.projects import store as projects
from app.projects.settings import ProjectSettings, explored_percent
from app.run_settings import TRAINED_TEMPERATURE, RunKind, read_settings

_DAYS = 7
_HOSTED = (
    "the hosted model that serves has no token ids and logprobs, and runs of kind logged learn from nothing else: "
    "schedule runs of kind sft"
)
_ENOUGH = 20  # tasks that explored, to say how many do so to their end

_task = tables.Task


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

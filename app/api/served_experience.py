"""Whether a project has served what a training run would learn from, asked before the run is queued."""

from collections.abc import Sequence
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncSession

from app.base.errors import InvalidError
from app.base.values import SOLVED, ScoreSource
from app.db import judgements, tables, training_data
from app.db.training_data import LoggedTask
from app.run_settings import TRAINED_TEMPERATURE, RunKind, RunSettings

_COMPARED = 2  # tasks of the smallest group


async def check_experience(
    session: AsyncSession, project: tables.Project, settings: RunSettings, *, judged: bool
) -> None:
    """Raises InvalidError for a run that can learn from no task that was served, with how many there are and how
    many it needs. What takes their text to decide, such as which are alike, is left to the run.

    `judged`: a judge may give the scores that are missing.
    """
    if settings.kind not in (RunKind.LOGGED, RunKind.SFT) or settings.data:
        return
    window = {"since": settings.since, "until": settings.until}
    ended = await training_data.window(session, project.id, **window, limit=settings.limit)
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
    async for temperature in training_data.temperatures(session, [row.id for row in reversed(new)]):
        explored += temperature == TRAINED_TEMPERATURE
        if explored == _COMPARED:
            return
    advice = "let a share of the tasks explore (the project's explore_percent), or serve with SAGE_TEMPERATURE=1"
    _need(_COMPARED, explored, new, "with a score were sampled at temperature 1", advice)


async def _scored(
    session: AsyncSession, project_id: UUID, ended: Sequence[LoggedTask], *, judged: bool
) -> list[LoggedTask]:
    """Those that were executed and have a score that counts, or may get one."""
    trusted = await judgements.trusted(session, project_id, {row.judged_by for row in ended})

    def counts(row: LoggedTask) -> bool:
        if row.score is None or row.score_source is ScoreSource.JUDGE:
            return judged or (row.score is not None and row.judged_by in trusted)
        return True

    return [row for row in ended if row.executed and counts(row)]


async def _new(
    session: AsyncSession, project_id: UUID, settings: RunSettings, scored: Sequence[LoggedTask]
) -> list[LoggedTask]:
    """Those that the policy that serves could not learn from already, and the share of others that is replayed."""
    learned = None if settings.since else await training_data.learned_until(session, project_id)
    old = set(training_data.beyond_replay(scored, learned, settings.replay))
    return [row for row in scored if row.id not in old]


def _need(needed: int, there: int, tasks: Sequence[LoggedTask], which: str, advice: str) -> None:
    """Raises InvalidError if of these tasks there are fewer than it needs."""
    if there < needed:
        some = f"{there} of {len(tasks):,} task{'' if len(tasks) == 1 else 's'} {which}"
        found = some if tasks else "no task ended in the window"
        raise InvalidError(f"too little to learn from: {found}, and the run needs {needed}: {advice}")

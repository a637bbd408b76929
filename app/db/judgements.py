"""Which tasks a judge is asked about, and how far its scores agree with people's."""

from collections.abc import Container, Iterable, Mapping, Sequence
from datetime import datetime
from uuid import UUID

from sqlalchemy import and_, func, or_, select, true
from sqlalchemy.ext.asyncio import AsyncSession

from app.base.values import ScoreSource
from app.db import tables
from app.db.tables import TaskState
from app.project.agreement import Agreement
from app.projects import store as projects

_SUCCESS = 0.5
_COUNTS = ("both", "neither", "judge_only", "person_only")

_task = tables.Task


async def wanted(
    session: AsyncSession,
    project_id: UUID,
    judge: str,
    *,
    since: datetime | None = None,
    until: datetime | None = None,
    unscored_since: datetime | None = None,
    limit: int,
) -> Sequence[UUID]:
    """The latest tasks that ended in the window without a check and that this judge has not scored, newest first.

    Those without a score but another judge's that ended at `unscored_since` or later, and those that a person
    scored, with which the judge is compared.
    """
    late = true() if unscored_since is None else _task.finished_at >= unscored_since
    by_other = _task.judged_by != judge
    unscored = and_(or_(_task.score.is_(None), and_(_task.score_source == ScoreSource.JUDGE, by_other)), late)
    compared = and_(_task.score_source == ScoreSource.PERSON, or_(_task.overruled_score.is_(None), by_other))
    query = (
        select(_task.id)
        .where(
            _task.project_id == project_id,
            _task.finished_at.is_not(None),
            _task.state == TaskState.DONE,
            func.coalesce(_task.check_code, "") == "",
            or_(unscored, compared),
        )
        .order_by(_task.finished_at.desc(), _task.id)
        .limit(limit)
    )
    if since is not None:
        query = query.where(_task.finished_at >= since)
    if until is not None:
        query = query.where(_task.finished_at < until)
    return (await session.scalars(query)).all()


async def trusted(session: AsyncSession, project_id: UUID, judges: Iterable[str | None]) -> Container[str | None]:
    """Those of the judges from whose scores the runs of the project may learn."""
    least = projects.settings_of(await projects.by_id(session, project_id)).judge_agreement
    if not least:
        return set(judges)
    found = await agreements(session, project_id)
    return {name for name, agreement in found.items() if agreement.suffices(least)}


async def agreements(session: AsyncSession, project_id: UUID) -> Mapping[str, Agreement]:
    """By the name of the judge: of the tasks of a project that it and a person have scored."""
    judge, person = _task.overruled_score >= _SUCCESS, _task.score >= _SUCCESS

    query = (
        select(
            _task.judged_by,
            func.count().filter(judge, person).label("both"),
            func.count().filter(~judge, ~person).label("neither"),
            func.count().filter(judge, ~person).label("judge_only"),
            func.count().filter(~judge, person).label("person_only"),
        )
        .where(
            _task.project_id == project_id,
            _task.judged_by.is_not(None),
            _task.score_source == ScoreSource.PERSON,
            _task.overruled_score.is_not(None),
        )
        .group_by(_task.judged_by)
        .order_by(_task.judged_by)
    )
    rows = (await session.execute(query)).mappings()
    return {row["judged_by"]: Agreement.of(**{key: row[key] for key in _COUNTS}) for row in rows}

"""The comparison of two releases that is going on in a project, by which tasks are part of it."""

from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

from sqlalchemy import ColumnElement, and_, or_
from sqlalchemy.ext.asyncio import AsyncSession

from app.db import canaries, releases, tables, watches
from app.db.queries import in_array
from app.projects import store as projects

_task = tables.Task


class ReleaseTrial(NamedTuple):
    """Conditions on tasks: those of either side, and those whose score may still come to count."""

    new: ColumnElement[bool]
    old: ColumnElement[bool]
    open: ColumnElement[bool]


async def current(session: AsyncSession, project_id: UUID) -> ReleaseTrial | None:
    """That of a canary, else that of a watch."""
    active = await releases.find_active(session, project_id)
    canary = await projects.canary_of(session, project_id)
    if active is None:
        return None
    if canary is not None:  # both sides: scores that favor one of them would not be comparable
        new = _task.release_id == canary.id
        baseline = _served(await canaries.baselines(session, canary, active))
        old = and_(baseline, _task.started_at >= await canaries.shared_since(session, canary, active))
        return ReleaseTrial(new, old, or_(new, old))
    if active.watched_against is None:
        return None
    former = await releases.get(session, active.watched_against)
    new = and_(_served(await watches.under_watch(session, active)), _task.started_at >= active.watched_since)
    old = and_(_served(await releases.with_weights(session, former)), _task.finished_at < active.watched_since)
    return ReleaseTrial(new, old, new)


def _served(served: Sequence[tables.Release]) -> ColumnElement[bool]:
    return in_array(_task.release_id, [each.id for each in served])

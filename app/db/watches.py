"""Watches: releases that were just promoted, and the tasks by which they are compared with the release before."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from uuid import UUID

import msgspec
from sqlalchemy import ColumnElement, and_, case, null, select
from sqlalchemy.ext.asyncio import AsyncSession

from app.base.errors import ConflictError
from app.base.values import Json
from app.db import releases, tables
from app.db.queries import in_array
from app.db.results import kind, measures
from app.db.tables import ReleaseState, TaskState

WINDOW = timedelta(days=30)  # before the promotion: earlier tasks of the former release are not compared
_MOST_BEFORE = 5_000  # tasks of the former release, the latest

_task = tables.Task


class WatchedTask(msgspec.Struct, frozen=True):
    """A task that ended otherwise than by being cancelled."""

    kind: str
    reward: float | None  # in [0, 1]; None while it has no score
    scored_at: datetime | None
    error: float  # 0 or 1, see `task_measures`
    turns: int | None  # None if it could not be carried out
    unscored: bool = False  # its reward is 0 because its check gave no score


async def begin(session: AsyncSession, release: tables.Release, former: tables.Release) -> None:
    """Watch a release, which has just replaced another one. Call in the transaction that activates it."""
    watch = {"state": "watching", "since": release.activated_at, "baseline": baseline_of(former)}
    evidence = {**(release.evidence or {}), "watch": msgspec.to_builtins(watch)}
    release.watched_against, release.watched_since = former.id, release.activated_at
    await releases.record_evidence(session, release.id, evidence)


def began_with(release: tables.Release) -> bool:
    """Whether a watch goes on that began with this release, not with an earlier one of the same weights."""
    return release.watched_since is not None and release.watched_since == release.activated_at


def baseline_of(former: tables.Release) -> dict[str, Json]:
    return {"number": former.number, "model": former.model}


async def all_open(session: AsyncSession) -> Sequence[tables.Release]:
    """Watched releases of all projects, oldest promotion first."""
    row = tables.Release
    query = select(row).where(row.state == ReleaseState.ACTIVE, row.watched_against.is_not(None))
    return (await session.scalars(query.order_by(row.activated_at))).all()


def check_is_watched(release: tables.Release) -> None:
    """Raises ConflictError."""
    if release.state is not ReleaseState.ACTIVE or release.watched_against is None:
        raise ConflictError(f"release {release.number} is {release.state}, and is not watched: see its evidence")


async def locked(session: AsyncSession, release_id: UUID) -> tables.Release:
    """The watched release, until the transaction ends. Raises ConflictError if it is not watched any more."""
    release = await releases.locked(session, release_id)
    check_is_watched(release)
    return release


async def keep(session: AsyncSession, release: tables.Release, evidence: dict[str, Json]) -> None:
    """End the watch of a `locked` release, which stays active."""
    release.watched_against = release.watched_since = None
    await releases.record_evidence(session, release.id, evidence)


async def reject(session: AsyncSession, release: tables.Release, evidence: dict[str, Json]) -> None:
    """Reject a release of a watch, in the transaction in which the one before has replaced it."""
    release.evidence = evidence
    await releases.move(session, release, ReleaseState.REJECTED)


async def under_watch(session: AsyncSession, release: tables.Release) -> Sequence[tables.Release]:
    """A watched release, and those with its weights that served since these are watched, newest first.

    A changed API document or prompt makes a release with the same weights.
    """
    return await releases.with_weights(session, release, tables.Release.activated_at >= release.watched_since)


async def tasks_before(
    session: AsyncSession, former: tables.Release, promoted_at: datetime
) -> Sequence[WatchedTask]:
    """Tasks of the former weights that ended within 30 days before the promotion, newest first.

    A score that became known later is left out: which tasks get one late would depend on the present.
    """
    own = _task.project_id == former.project_id  # whose tasks an index has by their ends
    ended = and_(own, _task.finished_at < promoted_at, _task.finished_at >= promoted_at - WINDOW)
    return await _read(
        session, await releases.with_weights(session, former), ended, _MOST_BEFORE, scored_before=promoted_at
    )


async def tasks_since(session: AsyncSession, release: tables.Release, most: int) -> Sequence[WatchedTask]:
    """The first tasks that were pinned to the watched weights since the promotion, by their end."""
    pinned = _task.started_at >= release.watched_since
    return await _read(session, await under_watch(session, release), pinned, most)


async def _read(
    session: AsyncSession,
    served: Sequence[tables.Release],
    which: ColumnElement[bool],
    most: int,
    *,
    scored_before: datetime | None = None,
) -> Sequence[WatchedTask]:
    """By their end: the first ones, or with `scored_before` the last ones, newest first."""
    ended = and_(_task.state.in_([TaskState.DONE, TaskState.FAILED]), ~_task.pinned)
    order = _task.finished_at if scored_before is None else _task.finished_at.desc()
    pinned = in_array(_task.release_id, [each.id for each in served])
    tasks = select(_task).where(pinned, ended, which).order_by(order, _task.id).limit(most).subquery()
    measured = measures(tasks)
    reward = measured.reward
    if scored_before is not None:
        reward = case((measured.scored_at < scored_before, reward), else_=null())
    turns = case((measured.is_done, tasks.c.turns), else_=null())
    at = tasks.c.finished_at
    query = select(kind(tasks.c), reward, measured.scored_at, measured.error, turns, measured.unscored)
    in_order = query.order_by(at if scored_before is None else at.desc(), tasks.c.id)
    return [WatchedTask(*row) for row in await session.execute(in_order)]

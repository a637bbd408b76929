"""Canaries, releases that serve a share of the new tasks, and their results compared with the active release's."""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

import msgspec
from sqlalchemy import BigInteger, ColumnElement, and_, case, cast, func, literal, select, true
from sqlalchemy.dialects.postgresql import BIT
from sqlalchemy.ext.asyncio import AsyncSession

from app.base.errors import ConflictError, InvalidError
from app.base.values import Json
from app.db import queries, releases, tables
from app.db.queries import in_array
from app.db.results import kind, measures
from app.db.tables import ReleaseState, TaskState
from app.projects import store as projects

_COST_WINDOW = 1_000  # earlier tasks that define the typical cost
_KINDS_WINDOW = 5_000  # earlier tasks that show what is usual of each kind

_task = tables.Task


class CanaryTask(NamedTuple):
    """A task of the canary or the active weights that ended since both serve, otherwise than by being
    cancelled.
    """

    kind: str
    on_canary: bool
    started_at: datetime
    reward: float | None  # in [0, 1]; None while it has no score
    scored_at: datetime | None
    error: float  # 0 or 1, see `task_measures`
    turns: int | None  # None if it could not be carried out
    tokens: int | None  # generated; likewise
    finished_at: datetime | None = None
    unscored: bool = False  # its reward is 0 because its check gave no score


class CanaryShare(msgspec.Struct, frozen=True):
    """The share of the new tasks that a canary serves since a time."""

    percent: float
    since: datetime


class UsualKind(NamedTuple):
    """Tasks of one kind before the canary: how many, with how many rewards, and the sums of rewards and errors."""

    tasks: int
    scored: int
    reward: float
    errors: float
    scores: int = 0  # the rewards without the zeros of checks that gave no score
    same: float | None = None  # the score that all of them have; None if they differ


class TypicalCost(msgspec.Struct, frozen=True):
    """The 95th percentiles of a project's tasks."""

    turns: float
    tokens: float


def is_assigned() -> ColumnElement[bool]:
    """SQL condition: the canary in `Release` serves a row of `Task`. A hash of both ids decides."""
    release = tables.Release
    digest = func.md5(func.concat(_task.id, release.id))
    number = cast(cast(func.concat("x", func.left(digest, 8)), BIT(32)), BigInteger)  # 0 <= number < 2**32
    return number < release.canary_percent / 100 * 2**32


async def begin(
    session: AsyncSession, release_id: UUID, percent: float, *, allow_rejected: bool = False
) -> tables.Release:
    """Pin this share of the new tasks to the release from now on.

    Raises InvalidError for a share out of range, NotFoundError, and ConflictError if the release is active or the
    project has another canary, and for rejected weights unless `allow_rejected` is set.
    """
    release = await releases.locked(session, release_id)
    await check_can_begin(session, release, percent, allow_rejected=allow_rejected)
    release.canary_percent, release.canary_at = percent, await queries.now(session)
    release.canary_shares = [msgspec.to_builtins(CanaryShare(percent, release.canary_at))]
    return await releases.move(session, release, ReleaseState.CANARY)


async def check_can_begin(
    session: AsyncSession, release: tables.Release, percent: float, *, allow_rejected: bool
) -> tables.Release | None:
    """The rejection that is overridden, as of `releases.check_can_serve`. Raises as `begin` does."""
    if not 0 < percent <= 100:
        raise InvalidError(f"a canary serves more than 0 and at most 100 percent of new tasks, not {percent:g}")
    there = await projects.canary_of(session, release.project_id)
    if there is not None:
        raise ConflictError(
            f"release {there.number} is a canary, and a project has one at a time: wait for its end, or end it "
            f"(DELETE /v1/releases/{there.id}/canary)"
        )
    if release.state is ReleaseState.ACTIVE:
        raise ConflictError(f"release {release.number} is active: it serves all new tasks already")
    return await releases.check_can_serve(session, release, allow_rejected=allow_rejected)


async def raise_share(session: AsyncSession, release: tables.Release, percent: float) -> None:
    """Let a canary, which is locked, serve this share of the new tasks from now on."""
    share = CanaryShare(percent, await queries.now(session))
    release.canary_percent = percent
    release.canary_shares = [*(release.canary_shares or []), msgspec.to_builtins(share)]
    await session.flush()


def shares_of(release: tables.Release) -> Sequence[CanaryShare]:
    """Of a canary, oldest first."""
    return msgspec.convert(release.canary_shares or [], list[CanaryShare])


async def end(
    session: AsyncSession, release_id: UUID, state: ReleaseState, evidence: dict[str, Json]
) -> tables.Release:
    """Reject it or make it a candidate again. Pinned tasks keep it. ConflictError if it is not a canary."""
    release = await releases.locked(session, release_id)
    check_is_canary(release)
    release.evidence, release.canary_percent = evidence, None
    return await releases.move(session, release, state)


def check_is_canary(release: tables.Release) -> None:
    """Raises ConflictError."""
    if release.state is not ReleaseState.CANARY:
        raise ConflictError(f"release {release.number} is {release.state}, not a canary")


async def shared_since(session: AsyncSession, canary: tables.Release, active: tables.Release) -> datetime:
    """When the canary and the weights of the active release began to share the new tasks."""
    row = tables.Release
    others = row.project_id == active.project_id, row.model != active.model
    replaced = await session.scalar(select(func.max(row.activated_at)).where(*others))
    served = [each.activated_at for each in await releases.with_weights(session, active) if each.activated_at]
    since = [each for each in served if replaced is None or each >= replaced]
    began = min(since, default=max(served))  # none, where the clock was set back since the others were activated
    return began if canary.canary_at is None else max(canary.canary_at, began)


async def baselines(
    session: AsyncSession, canary: tables.Release, active: tables.Release
) -> Sequence[tables.Release]:
    """Those with the weights that a canary is compared with."""
    return [each for each in await releases.with_weights(session, active) if each.id != canary.id]


async def ended_tasks(
    session: AsyncSession,
    canary: tables.Release,
    active: tables.Release,
    began: datetime,
    most: int,
    until: datetime | None = None,
) -> Sequence[CanaryTask]:
    """The first `most` tasks of the canary and of the weights of the active release that began since `began`, in
    the order of their ends, which are before `until`; a score that came later is left out.
    """
    served = [canary, *await baselines(session, canary, active)]
    ended = and_(
        in_array(_task.release_id, [each.id for each in served]),
        _task.started_at >= began,
        ~_task.pinned,
        _task.state.in_([TaskState.DONE, TaskState.FAILED]),
        true() if until is None else _task.finished_at < until,
    )
    first = select(_task).where(ended).order_by(_task.finished_at, _task.id).limit(most).subquery()
    columns, measured = first.c, measures(first)
    known = true() if until is None else measured.scored_at < until
    query = select(
        kind(columns),
        columns.release_id == canary.id,
        columns.started_at,
        case((known, measured.reward)),
        measured.scored_at,
        measured.error,
        case((measured.is_done, columns.turns)),
        case((measured.is_done, columns.generated_tokens)),
        columns.finished_at,
        measured.unscored,
    )
    rows = await session.execute(query.order_by(columns.finished_at, columns.id))
    return [CanaryTask(*row) for row in rows]


async def usual_kinds(session: AsyncSession, project_id: UUID, before: datetime) -> dict[str, UsualKind]:
    """Of the project's last 5,000 tasks that had ended by then, with the scores of that time."""
    ended = and_(
        _task.project_id == project_id,
        _task.finished_at < before,
        _task.state.in_([TaskState.DONE, TaskState.FAILED]),
        _task.skill_run.is_(None),
    )
    last = select(_task).where(ended).order_by(_task.finished_at.desc()).limit(_KINDS_WINDOW).subquery()
    measured = measures(last)
    reward = case((measured.scored_at < before, measured.reward))
    each = select(
        kind(last.c).label("kind"),
        reward.label("reward"),
        case((~measured.unscored, reward)).label("score"),
        measured.error.label("error"),
    ).subquery()
    lowest, highest = func.min(each.c.score), func.max(each.c.score)
    query = select(
        each.c.kind,
        func.count().label("tasks"),
        func.count(each.c.reward).label("scored"),
        func.coalesce(func.sum(each.c.reward), 0.0).label("reward"),
        func.sum(each.c.error).label("errors"),
        func.count(each.c.score).label("scores"),
        case((lowest == highest, lowest)).label("same"),
    ).group_by(each.c.kind)
    return {name: UsualKind(*sums) for name, *sums in await session.execute(query)}


async def typical_cost(session: AsyncSession, project_id: UUID, before: datetime) -> TypicalCost | None:
    """Computed from the project's last 1,000 tasks at that time; None if there were none."""
    last = (
        select(_task.turns, _task.generated_tokens)
        .where(
            _task.project_id == project_id,
            _task.created_at < before,
            _task.finished_at < before,
            _task.state == TaskState.DONE,
            _task.skill_run.is_(None),
        )
        .order_by(_task.created_at.desc())
        .limit(_COST_WINDOW)
        .subquery()
    )
    most = literal(0.95)
    turns, tokens = (
        await session.execute(
            select(
                func.percentile_disc(most).within_group(last.c.turns),
                func.percentile_disc(most).within_group(last.c.generated_tokens),
            )
        )
    ).one()
    return None if turns is None else TypicalCost(float(turns), float(tokens))

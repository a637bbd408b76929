"""Canaries, releases that serve a share of the new tasks, and their results compared with the active release's."""

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

import msgspec
from sqlalchemy import BigInteger, ColumnElement, cast, func, literal, select
from sqlalchemy.dialects.postgresql import BIT, aggregate_order_by
from sqlalchemy.ext.asyncio import AsyncSession

from app.db import models, releases
from app.db.models import ReleaseState, TaskState
from app.db.task_measures import measures
from app.errors import ConflictError, InvalidError
from app.records import Json

_COST_WINDOW = 1_000  # earlier tasks that define the typical cost

_task = models.Task


class ArmResults(msgspec.Struct, frozen=True, kw_only=True):
    """Results of one release's tasks, each in the order it became known, without cancelled tasks."""

    rewards: Sequence[float] = ()  # of those that have a score, and 0 where the check gave none
    errors: Sequence[float] = ()  # of each: 1 if it failed, did not stop by completing, or its check gave no score
    turns: Sequence[float] = ()  # of those that could be carried out
    tokens: Sequence[float] = ()  # generated, of the same


class TypicalCost(msgspec.Struct, frozen=True):
    """The 95th percentiles of a project's tasks."""

    turns: float
    tokens: float


def is_assigned() -> ColumnElement[bool]:
    """SQL condition: the canary in `Release` serves a row of `Task`. A hash of both ids decides."""
    release = models.Release
    digest = func.md5(func.concat(_task.id, release.id))
    number = cast(cast(func.concat("x", func.left(digest, 8)), BIT(32)), BigInteger)  # 0 <= number < 2**32
    return number < release.canary_percent / 100 * 2**32


async def begin(
    session: AsyncSession, release_id: UUID, percent: float, *, allow_rejected: bool = False
) -> models.Release:
    """Pin this share of the new tasks to the release from now on.

    Raises InvalidError for a share out of range, NotFoundError, and ConflictError if the release is active or the
    project has another canary, and for rejected weights unless `allow_rejected` is set.
    """
    release = await releases.locked(session, release_id)
    await check_can_begin(session, release, percent, allow_rejected=allow_rejected)
    release.canary_percent, release.canary_at = percent, func.clock_timestamp()
    return await releases.move(session, release, ReleaseState.CANARY)


async def check_can_begin(
    session: AsyncSession, release: models.Release, percent: float, *, allow_rejected: bool
) -> models.Release | None:
    """The rejection that is overridden, as of `releases.check_can_serve`. Raises as `begin` does."""
    if not 0 < percent <= 100:
        raise InvalidError(f"a canary serves more than 0 and at most 100 percent of new tasks, not {percent:g}")
    there = await of_project(session, release.project_id)
    if there is not None:
        raise ConflictError(
            f"release {there.number} is a canary, and a project has one at a time: wait for its end, or end it "
            f"(DELETE /v1/releases/{there.id}/canary)"
        )
    if release.state is ReleaseState.ACTIVE:
        raise ConflictError(f"release {release.number} is active: it serves all new tasks already")
    return await releases.check_can_serve(session, release, allow_rejected=allow_rejected)


async def of_project(session: AsyncSession, project_id: UUID) -> models.Release | None:
    release = models.Release
    there = select(release).where(release.project_id == project_id, release.state == ReleaseState.CANARY)
    found: models.Release | None = await session.scalar(there)
    return found


async def end(
    session: AsyncSession, release_id: UUID, state: ReleaseState, evidence: dict[str, Json]
) -> models.Release:
    """Reject it or make it a candidate again. Pinned tasks keep it. ConflictError if it is not a canary."""
    release = await releases.locked(session, release_id)
    check_is_canary(release)
    release.evidence, release.canary_percent = evidence, None
    return await releases.move(session, release, state)


def check_is_canary(release: models.Release) -> None:
    """Raises ConflictError."""
    if release.state is not ReleaseState.CANARY:
        raise ConflictError(f"release {release.number} is {release.state}, not a canary")


def shared_since(canary: models.Release, active: models.Release) -> datetime:
    """When the two began to share the new tasks: the later of both starts."""
    moments = [each for each in (canary.canary_at, active.activated_at) if each is not None]
    return max(moments)


async def results(
    session: AsyncSession, canary: models.Release, active: models.Release, began: datetime, most: int
) -> tuple[ArmResults, ArmResults]:
    """Results of the first `most` tasks that ended, of either release since `began`: both cover the same time."""
    first = (
        select(_task)
        .where(
            _task.release_id.in_([canary.id, active.id]),
            _task.started_at >= began,
            _task.state.in_([TaskState.DONE, TaskState.FAILED]),
        )
        .order_by(_task.finished_at, _task.id)
        .limit(most)
        .subquery()
    )
    columns, measured = first.c, measures(first)

    def listed(value: ColumnElement[Json], moment: ColumnElement[Json]) -> ColumnElement[Json]:
        return func.array_agg(aggregate_order_by(value, moment, columns.id))

    rows = await session.execute(
        select(
            columns.release_id,
            listed(measured.reward, measured.scored_at).filter(measured.reward.is_not(None)),
            listed(measured.error, columns.finished_at),
            listed(columns.turns, columns.finished_at).filter(measured.is_done),
            listed(columns.generated_tokens, columns.finished_at).filter(measured.is_done),
        ).group_by(columns.release_id)
    )
    arms = {
        release_id: ArmResults(rewards=rewards or (), errors=errors, turns=turns or (), tokens=tokens or ())
        for release_id, rewards, errors, turns, tokens in rows
    }
    return arms.get(canary.id, ArmResults()), arms.get(active.id, ArmResults())


async def typical_cost(session: AsyncSession, project_id: UUID, before: datetime) -> TypicalCost | None:
    """Computed from the project's last 1,000 tasks at that time; None if there were none."""
    last = (
        select(_task.turns, _task.generated_tokens)
        .where(
            _task.project_id == project_id,
            _task.created_at < before,
            _task.finished_at < before,
            _task.state == TaskState.DONE,
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

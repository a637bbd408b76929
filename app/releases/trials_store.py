"""Releases on trial, in the database: canaries, watches and shadows, and the tasks by which each is compared.

A canary serves a share of the new tasks beside the active release, a watched release was just promoted and is
compared with the one before, and a shadow is a finished task that another release replays.
"""

from collections.abc import AsyncIterator, Collection, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

import msgspec
from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Select,
    and_,
    case,
    cast,
    delete,
    func,
    inspect,
    literal,
    or_,
    select,
    true,
)
from sqlalchemy.dialects.postgresql import BIT, insert
from sqlalchemy.ext.asyncio import AsyncSession

from app.base.errors import ConflictError, InvalidError
from app.base.values import Json, Stop, Trajectory
from app.db import lease, queries, tables
from app.db.database import pack
from app.db.notify import RELEASES, notify
from app.db.queries import in_array
from app.db.results import TaskMeasures, kind, measures
from app.db.tables import ReleaseState, TaskState
from app.projects import store as projects
from app.releases import store as releases

_COST_WINDOW = 1_000  # earlier tasks that define the typical cost
_KINDS_WINDOW = 5_000  # earlier tasks that show what is usual of each kind
WINDOW = timedelta(days=30)  # before the promotion: earlier tasks of the former release are not compared
_MOST_BEFORE = 5_000  # tasks of the former release, the latest
_BATCH = 100  # trajectories per query

_task, _shadow = tables.Task, tables.Shadow
_queue = lease.LeaseQueue(_shadow, _shadow.finished_at.is_(None))


class ReleaseName(msgspec.Struct, frozen=True):
    """A release that another one is compared with."""

    number: int
    model: str


class CanaryTask(NamedTuple):
    """A task of the canary or the active weights that ended since both serve, otherwise than by being
    cancelled.
    """

    kind: str
    on_canary: bool
    started_at: datetime
    reward: float | None  # in [0, 1]; None while it has no score
    scored_at: datetime | None
    error: float  # 0 or 1, see `TaskMeasures`
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
    in_time = true() if until is None else _task.finished_at < until
    first = _ended(served, _task.started_at >= began, in_time).order_by(_task.finished_at, _task.id).limit(most)
    tasks = first.subquery()
    columns, measured = tasks.c, measures(tasks)
    query = select(
        kind(columns),
        columns.release_id == canary.id,
        columns.started_at,
        _reward(measured, until),
        measured.scored_at,
        measured.error,
        case((measured.is_done, columns.turns)),
        case((measured.is_done, columns.generated_tokens)),
        columns.finished_at,
        measured.unscored,
    )
    rows = await session.execute(query.order_by(columns.finished_at, columns.id))
    return [CanaryTask(*row) for row in rows]


def _ended(served: Sequence[tables.Release], *which: ColumnElement[bool]) -> Select[tables.Task]:
    """The tasks of releases that show something about these."""
    ended = _task.state.in_([TaskState.DONE, TaskState.FAILED])
    return select(_task).where(_served(served), ended, ~_task.pinned, *which)


def _reward(measured: TaskMeasures, known_before: datetime | None) -> ColumnElement[float | None]:
    if known_before is None:
        return measured.reward
    return case((measured.scored_at < known_before, measured.reward))


async def usual_kinds(session: AsyncSession, project_id: UUID, before: datetime) -> dict[str, UsualKind]:
    """Of the project's last 5,000 tasks that had ended by then, with the scores of that time."""
    ended = (
        _task.project_id == project_id,
        _task.finished_at < before,
        _task.state.in_([TaskState.DONE, TaskState.FAILED]),
        _task.skill_run.is_(None),
    )
    last = select(_task).where(*ended).order_by(_task.finished_at.desc()).limit(_KINDS_WINDOW).subquery()
    measured = measures(last)
    reward = _reward(measured, before)
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
    most = func.percentile_disc(literal(0.95))
    query = select(most.within_group(last.c.turns), most.within_group(last.c.generated_tokens))
    turns, tokens = (await session.execute(query)).one()
    return None if turns is None else TypicalCost(float(turns), float(tokens))


class WatchedTask(msgspec.Struct, frozen=True):
    """A task that ended otherwise than by being cancelled."""

    kind: str
    reward: float | None  # in [0, 1]; None while it has no score
    scored_at: datetime | None
    error: float  # 0 or 1, see `TaskMeasures`
    turns: int | None  # None if it could not be carried out
    unscored: bool = False  # its reward is 0 because its check gave no score


def scored_at(task: CanaryTask | WatchedTask) -> datetime:
    """To sort by: those without a score come last."""
    return task.scored_at or datetime.max.replace(tzinfo=UTC)


async def begin_watch(session: AsyncSession, release: tables.Release, former: tables.Release) -> None:
    """Watch a release, which has just replaced another one. Call in the transaction that activates it."""
    baseline = {"number": former.number, "model": former.model}
    watch = {"state": "watching", "since": release.activated_at, "baseline": baseline}
    evidence = {**(release.evidence or {}), "watch": msgspec.to_builtins(watch)}
    release.watched_against, release.watched_since = former.id, release.activated_at
    await releases.record_evidence(session, release.id, evidence)


def began_with(release: tables.Release) -> bool:
    """Whether a watch goes on that began with this release, not with an earlier one of the same weights."""
    return release.watched_since is not None and release.watched_since == release.activated_at


async def all_open(session: AsyncSession) -> Sequence[tables.Release]:
    """Watched releases of all projects, oldest promotion first."""
    row = tables.Release
    query = select(row).where(row.state == ReleaseState.ACTIVE, row.watched_against.is_not(None))
    return (await session.scalars(query.order_by(row.activated_at))).all()


def check_is_watched(release: tables.Release) -> None:
    """Raises ConflictError."""
    if release.state is not ReleaseState.ACTIVE or release.watched_against is None:
        raise ConflictError(f"release {release.number} is {release.state}, and is not watched: see its evidence")


async def under_watch(session: AsyncSession, release: tables.Release) -> Sequence[tables.Release]:
    """A watched release, and those with its weights that served since these are watched, newest first."""
    return await releases.with_weights(session, release, tables.Release.activated_at >= release.watched_since)


async def tasks_before(
    session: AsyncSession, former: tables.Release, promoted_at: datetime
) -> Sequence[WatchedTask]:
    """Tasks of the former weights that ended within 30 days before the promotion, newest first.

    A score that became known later is left out: which tasks get one late would depend on the present.
    """
    tasks = _ended(
        await releases.with_weights(session, former),
        _task.project_id == former.project_id,  # whose tasks an index has by their ends
        _task.finished_at < promoted_at,
        _task.finished_at >= promoted_at - WINDOW,
    )
    return await _read(session, tasks, _MOST_BEFORE, known_before=promoted_at)


async def tasks_since(session: AsyncSession, release: tables.Release, most: int) -> Sequence[WatchedTask]:
    """The first tasks that were pinned to the watched weights since the promotion, by their end."""
    tasks = _ended(await under_watch(session, release), _task.started_at >= release.watched_since)
    return await _read(session, tasks, most)


async def _read(
    session: AsyncSession, tasks: Select[tables.Task], most: int, known_before: datetime | None = None
) -> Sequence[WatchedTask]:
    """By their end: the first ones, or with `known_before` the last ones, newest first."""

    def by_end(columns: Any) -> tuple[Any, Any]:
        return columns.finished_at if known_before is None else columns.finished_at.desc(), columns.id

    rows = tasks.order_by(*by_end(_task)).limit(most).subquery()
    columns, measured = rows.c, measures(rows)
    query = select(
        kind(columns),
        _reward(measured, known_before),
        measured.scored_at,
        measured.error,
        case((measured.is_done, columns.turns)),
        measured.unscored,
    )
    return [WatchedTask(*row) for row in await session.execute(query.order_by(*by_end(columns)))]


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
        baseline = _served(await baselines(session, canary, active))
        old = and_(baseline, _task.started_at >= await shared_since(session, canary, active))
        return ReleaseTrial(new, old, or_(new, old))
    if active.watched_against is None:
        return None
    former = await releases.get(session, active.watched_against)
    new = and_(_served(await under_watch(session, active)), _task.started_at >= active.watched_since)
    old = and_(_served(await releases.with_weights(session, former)), _task.finished_at < active.watched_since)
    return ReleaseTrial(new, old, new)


def _served(served: Sequence[tables.Release]) -> ColumnElement[bool]:
    return in_array(_task.release_id, [each.id for each in served])


class ShadowOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """How a shadow ended. `stop` is None if the rollout failed."""

    stop: Stop | None = None
    failure: str | None = None
    score: float | None = None
    turns: int = 0
    generated_tokens: int = 0
    same_changes: bool | None = None


class ShadowedTask(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a task, and of its shadow once that has ended."""

    score: float | None  # of the task's own check
    turns: int
    generated_tokens: int
    shadow: ShadowOutcome | None


async def add(session: AsyncSession, release_id: UUID, task_ids: Collection[UUID]) -> None:
    """Queue tasks to be replayed by a release, each once."""
    rows = [{"release_id": release_id, "task_id": task_id} for task_id in task_ids]
    if rows:
        await session.execute(insert(_shadow).values(rows).on_conflict_do_nothing())
        await notify(session, RELEASES, release_id)


async def add_replay(session: AsyncSession, release_id: UUID, task_id: UUID) -> tables.Shadow:
    """Queue a task to be done again on its recorded calls. A result is kept, unless that could not be executed."""
    key = {"release_id": release_id, "task_id": task_id, "recorded": True}
    which = [getattr(_shadow, name) == value for name, value in key.items()]
    await session.execute(delete(_shadow).where(*which, _shadow.finished_at.is_not(None), _shadow.stop.is_(None)))
    await session.execute(insert(_shadow).values(key).on_conflict_do_nothing())
    await notify(session, RELEASES, release_id)
    return await session.get_one(_shadow, tuple(key.values()), populate_existing=True)


async def replay(session: AsyncSession, release_id: UUID, task_id: UUID) -> tables.Shadow | None:
    """The replay of a task by a release, if it was asked for."""
    return await session.get(_shadow, (release_id, task_id, True))


async def claim(session: AsyncSession, owner: str, lease_seconds: float) -> tables.Shadow | None:
    """The oldest shadow that waits or whose lease has expired, or None. Two processes never get the same one.

    Replays go first: a person waits for them.
    """
    for recorded in (True, False):
        claimed = _queue.claim(owner, lease_seconds, _shadow.recorded.is_(recorded)).returning(_shadow)
        shadow: tables.Shadow | None = await session.scalar(claimed.execution_options(populate_existing=True))
        if shadow is not None:
            return shadow
    return None


async def finish(
    session: AsyncSession, shadow: tables.Shadow, outcome: ShadowOutcome, trajectory: Trajectory | None = None
) -> bool:
    """Store the outcome, and the trajectory of a replay.

    False, and nothing is written: the shadow is no longer the owner's.
    """
    keys = inspect(_shadow).primary_key
    which = (key == getattr(shadow, key.name) for key in keys)
    record = pack(trajectory) if trajectory else None
    finished = _queue.finish(shadow.owner or "", *which, record=record, **msgspec.structs.asdict(outcome))
    return await session.scalar(finished.returning(_shadow.task_id)) is not None


async def hand_back(session: AsyncSession, process: str) -> None:
    """Let others claim the process's shadows at once; the attempt does not count."""
    await session.execute(_queue.hand_back_all(process, attempt=_shadow.attempt - 1))


async def abandon(session: AsyncSession, process: str) -> None:
    """Let others claim the shadows of a dead process. The attempt counts: a shadow may have been the cause."""
    await session.execute(_queue.hand_back_all(process))


async def records(
    session: AsyncSession, project_id: UUID, *, other_than: UUID, limit: int
) -> AsyncIterator[tuple[UUID, bytes]]:
    """The project's latest finished tasks, newest first, with their stored trajectories.

    Those of the release `other_than`, and those that ran a skill, are left out.
    """
    task, trajectory = tables.Task, tables.Trajectory
    newest = (
        select(task.id, trajectory.record)
        .join(trajectory, trajectory.task_id == task.id)
        .where(task.project_id == project_id, task.state == TaskState.DONE, task.release_id != other_than)
        .where(task.skill_run.is_(None))
        .order_by(task.created_at.desc(), task.id.desc())
    )
    for start in range(0, limit, _BATCH):
        rows = (await session.execute(newest.offset(start).limit(min(_BATCH, limit - start)))).all()
        for row in rows:
            yield row.id, row.record
        if len(rows) < _BATCH:
            return


async def of_release(session: AsyncSession, release_id: UUID) -> list[ShadowedTask]:
    """The results of the shadows, in the order they were queued."""
    rows = await session.execute(
        select(tables.Task, _shadow)
        .join(_shadow, _shadow.task_id == tables.Task.id)
        .where(_shadow.release_id == release_id, ~_shadow.recorded)
        .order_by(_shadow.created_at, _shadow.task_id)
        .execution_options(populate_existing=True)
    )
    return [
        ShadowedTask(
            score=(task.score if task.overruled_score is None else task.overruled_score) if task.checked else None,
            turns=task.turns,
            generated_tokens=task.generated_tokens,
            shadow=outcome_of(shadow),
        )
        for task, shadow in rows
    ]


def outcome_of(shadow: tables.Shadow) -> ShadowOutcome | None:
    """None until it has ended."""
    if shadow.finished_at is None:
        return None
    return msgspec.convert(shadow, ShadowOutcome, from_attributes=True)

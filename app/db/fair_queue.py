"""The next task of the queue: projects take turns by weight; within one, priority goes first, then age.

Start-time fair queueing: each project has a virtual time, which a claim of one of its tasks advances by 1/weight,
and the project with the least is next. The time of a project that had nothing waiting, or was held back by a
limit, is lifted to that of the latest claim less one turn, so that it saves up no more than that. Every claim
advances only its own project's time, so each project with a task waiting is served after a number of claims that
the weights determine.

Claims never wait for each other: one locks the row of its project's turn, and skips rows that others have locked.
A project that is skipped keeps its time, and is served before others the next time. Where a limit of running tasks
holds, the row must also be unchanged since the snapshot of the claim, which then shows every earlier claim of the
project: the limit is exact. A claim that found only rows taken by others is tried again.
"""

from typing import Any

from sqlalchemy import (
    ARRAY,
    CTE,
    BigInteger,
    ColumnElement,
    Double,
    Exists,
    Select,
    Table,
    Uuid,
    all_,
    bindparam,
    case,
    cast,
    exists,
    func,
    literal,
    literal_column,
    or_,
    select,
    union_all,
    update,
)
from sqlalchemy.orm import aliased

from app.db import tables
from app.db.lease import RUNNING
from app.projects import usage
from app.projects.settings import Limits

_task, _turn, _project = tables.Task, tables.ProjectTurn, tables.Project
ACCEPTED = _task.state == literal_column("'accepted'")  # literals: a parameter would match no partial index
HELD_OFF = bindparam("held_off", type_=ARRAY(Uuid))  # projects to pass over


def next_task(limits: Limits, skip: int, *resumable: ColumnElement[bool]) -> tuple[CTE, CTE]:
    """The id of the task to claim, and the statement that charges its project.

    Tasks that have begun and that no runner holds come first, where they are `resumable`, and are not charged
    again. `limits` are the server's; `skip` passes over that many projects, in case their rows are locked.
    """
    resumed = _resumed(*resumable)
    chosen = _candidates(limits).where(~exists(select(resumed.c.id))).offset(skip).cte("chosen")
    locked = _locked(chosen)
    fresh = _first_of(locked)
    turns = _turn.__table__
    assert isinstance(turns, Table)
    charged = (
        update(turns)
        .where(turns.c.project_id == locked.c.project_id, exists(select(fresh.c.id)))
        .values(turn=locked.c.turn)
        .returning(turns.c.project_id)
        .cte("charged")
    )
    return union_all(select(resumed.c.id), select(fresh.c.id)).cte("next_task"), charged


def any_candidate(limits: Limits) -> Exists:
    """True if a task waits whose project may run it."""
    return exists(_candidates(limits))


def _limit(
    name: str, defaults: Limits, kind: type[BigInteger] | type[Double[float]] = BigInteger
) -> ColumnElement[float]:
    """The project's limit, or else the server's; NULL is none."""
    own = cast(_project.settings["limits"][name].astext, kind)
    return func.nullif(func.coalesce(own, literal(getattr(defaults, name) or 0, kind)), 0)


def _within(limit: ColumnElement[float], used: ColumnElement[float]) -> ColumnElement[bool]:
    return or_(limit.is_(None), used < limit)


def _resumed(*resumable: ColumnElement[bool]) -> CTE:
    free = or_(_task.lease_until.is_(None), _task.lease_until < func.clock_timestamp())
    oldest = select(_task.id).where(RUNNING, free, *resumable).order_by(_task.created_at, _task.id).limit(1)
    return oldest.with_for_update(skip_locked=True).cte("resumed")


def _candidates(limits: Limits) -> Select[Any]:
    """The projects with a task that may run now, in the order of their turns."""
    waiting, others = _waiting(), aliased(_turn)
    project_id = waiting.c.project_id
    weight = func.coalesce(cast(_project.settings["weight"].astext, Double), 1.0)
    stride = 1.0 / weight
    latest = select(func.max(others.turn)).scalar_subquery()
    credit = case((_turn.turn.is_(None), 0.0), else_=stride)
    least = func.coalesce(latest, 0.0) - credit
    running = select(func.count()).where(RUNNING, _task.project_id == project_id).scalar_subquery()
    capacity = _limit("running_tasks", limits)
    return (
        select(
            project_id,
            stride.label("stride"),
            least.label("least"),
            func.greatest(_turn.turn + stride, least).label("turn"),
            _turn.turn.label("before"),
            capacity.is_(None).label("unlimited"),
        )
        .join(_turn, _turn.project_id == project_id)
        .join(_project, _project.id == project_id)
        .where(
            project_id != all_(HELD_OFF),
            _within(capacity, running),
            _within(_limit("tokens_per_day", limits), usage.today("generated_tokens", project_id)),
            _within(_limit("calls_per_day", limits), usage.today("calls", project_id)),
            _within(_limit("cost_per_day", limits, Double), usage.today("cost", project_id)),
        )
        .order_by("turn", _turn.turn.nulls_first(), project_id)
    )


def _waiting() -> CTE:
    """The projects with a waiting task, each by one step in the index, however many tasks there are."""
    first = select(_task.project_id).where(ACCEPTED).order_by(_task.project_id).limit(1).subquery()
    waiting = select(first.c.project_id).cte("waiting", recursive=True)
    after = (
        select(_task.project_id)
        .where(ACCEPTED, _task.project_id > waiting.c.project_id)
        .order_by(_task.project_id)
        .limit(1)
        .scalar_subquery()
    )
    return waiting.union_all(select(after).where(waiting.c.project_id.is_not(None)))


def _locked(chosen: CTE) -> CTE:
    """The first project whose turn no other claim is taking. Where its running tasks are limited, no claim may
    have added one since the snapshot, in which they were counted.
    """
    own = aliased(_turn)
    turn = func.greatest(own.turn + chosen.c.stride, chosen.c.least)  # by the row as it is now
    row = select(own.project_id, turn.label("turn")).join(chosen, own.project_id == chosen.c.project_id)
    counted = or_(chosen.c.unlimited, own.turn.is_not_distinct_from(chosen.c.before))
    first = row.where(counted).order_by(chosen.c.turn, chosen.c.before.nulls_first(), own.project_id).limit(1)
    return first.with_for_update(of=own, skip_locked=True).cte("locked")


def _first_of(locked: CTE) -> CTE:
    return (
        select(_task.id)
        .where(ACCEPTED, _task.project_id == select(locked.c.project_id).scalar_subquery())
        .order_by(_task.priority.desc(), _task.created_at, _task.id)
        .limit(1)
        .with_for_update(skip_locked=True)
        .cte("fresh")
    )

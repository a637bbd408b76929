"""What tasks leave behind: their events, trajectories and scores, and the sums and measures that are made of
these.

It is ground, as the tables are: skills, releases and tasks all read it.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple
from uuid import UUID, uuid4

import msgspec
from sqlalchemy import (
    CTE,
    BigInteger,
    ColumnElement,
    Double,
    FromClause,
    LargeBinary,
    Text,
    Uuid,
    and_,
    bindparam,
    case,
    cast,
    false,
    func,
    null,
    or_,
    select,
    text,
    update,
)
from sqlalchemy.dialects.postgresql import JSONB, insert
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.sql.base import ReadOnlyColumnCollection

from app.base.errors import NotFoundError
from app.base.values import GOOD, LIMITS, Json, ScoreSource, Stop, Trajectory
from app.db import tables
from app.db.database import execute, pack, to_json
from app.db.tables import TaskState

_MOST = 5_000  # tasks of a release, the latest
_APPEND = text("SELECT append_task_events(:task, CAST(:new AS jsonb))")  # waits, numbers, inserts and notifies

_task = tables.Task


class NewEvent(NamedTuple):
    """An event to append."""

    kind: str
    data: dict[str, Json]


async def append(session: AsyncSession, task_id: UUID, kind: str, data: dict[str, Json]) -> int:
    """Append an event and return its number. Other writers to the task wait for this transaction: commit soon.

    So events become visible in the order of their numbers, and a reader that has seen one misses no smaller one.
    """
    return await append_all(session, task_id, [NewEvent(kind, data)])


async def append_all(session: AsyncSession, task_id: UUID, new: Sequence[NewEvent]) -> int:
    """Append several events in order. Returns the number of the last."""
    values = {"task": task_id, "new": parameter(new)}
    return int((await execute(session, _APPEND, values)).scalar_one())


def appended(task_id: ColumnElement[UUID]) -> ColumnElement[int | None]:
    """A column that appends the events of the parameter `events`, which `parameter` prepares, if there are any."""
    new = cast(bindparam("events", type_=Text), JSONB)
    return case((func.jsonb_array_length(new) > 0, func.append_task_events(task_id, new)))


def parameter(new: Iterable[NewEvent]) -> str:
    """Events as a parameter of statements that append them."""
    return to_json([[each.kind, each.data] for each in new])


async def rewrite(session: AsyncSession, task_id: UUID, change: Callable[[Json], Json]) -> None:
    """Replace the data of each event by what `change` makes of it."""
    event = tables.TaskEvent
    for row in (await session.execute(select(event.seq, event.data).where(event.task_id == task_id))).all():
        if (changed := change(row.data)) != row.data:
            await session.execute(
                update(event).where(event.task_id == task_id, event.seq == row.seq).values(data=changed)
            )


async def has(session: AsyncSession, task_id: UUID, kind: str) -> bool:
    """Whether the task has an event of this kind."""
    found = select(tables.TaskEvent.seq).where(tables.TaskEvent.task_id == task_id, tables.TaskEvent.kind == kind)
    return await session.scalar(found.limit(1)) is not None


async def of_kind(session: AsyncSession, task_id: UUID, kind: str) -> Sequence[dict[str, Json]]:
    """The data of the task's events of this kind, in order."""
    event = tables.TaskEvent
    query = select(event.data).where(event.task_id == task_id, event.kind == kind).order_by(event.seq)
    return (await session.scalars(query)).all()


async def after(
    session: AsyncSession, task_id: UUID, seq: int = 0, limit: int = 500
) -> Sequence[tables.TaskEvent]:
    """Events after number `seq`, in order."""
    query = (
        select(tables.TaskEvent)
        .where(tables.TaskEvent.task_id == task_id, tables.TaskEvent.seq > seq)
        .order_by(tables.TaskEvent.seq)
        .limit(limit)
    )
    return (await session.scalars(query)).all()


async def latest(session: AsyncSession, task_id: UUID) -> int:
    """The number of the last event; 0 without one."""
    query = select(func.max(tables.TaskEvent.seq)).where(tables.TaskEvent.task_id == task_id)
    return await session.scalar(query) or 0


async def used(session: AsyncSession, task_id: UUID) -> dict[str, int]:
    """The turns, generated tokens and calls of a task, by its events."""
    event = tables.TaskEvent
    is_turn, is_call = event.kind == "turn", event.kind == "call"
    tokens = cast(event.data["tokens"].astext, BigInteger)
    query = select(
        func.count().filter(is_turn).label("turns"),
        func.coalesce(func.sum(tokens).filter(is_turn), 0).label("generated_tokens"),
        func.count().filter(is_call).label("calls"),
    ).where(event.task_id == task_id)
    row = (await session.execute(query)).one()
    return {name: int(value) for name, value in row._mapping.items()}


_new = insert(tables.Trajectory).values(
    id=bindparam("new_id", type_=Uuid),
    task_id=bindparam("of_task", type_=Uuid),
    project_id=bindparam("of_project", type_=Uuid),
    release_id=bindparam("of_release", type_=Uuid),
    record=bindparam("packed", type_=LargeBinary),
)
_SAVE = _new.on_conflict_do_update(
    index_elements=["task_id"],
    set_={name: _new.excluded[name] for name in ("project_id", "release_id", "record")},
)


async def save(session: AsyncSession, project_id: UUID, trajectory: Trajectory) -> None:
    """Store the trajectory of a task, or replace it."""
    values = {
        "new_id": uuid4(),
        "of_task": trajectory.task.id,
        "of_project": project_id,
        "of_release": trajectory.policy.release,
        "packed": pack(trajectory),
    }
    await execute(session, _SAVE, values)


async def of_task(session: AsyncSession, task_id: UUID) -> Trajectory:
    """Raises NotFoundError if there is none yet."""
    record = await session.scalar(select(tables.Trajectory.record).where(tables.Trajectory.task_id == task_id))
    if record is None:
        raise NotFoundError(f"task {task_id} has no trajectory: it has not ended, or never began")
    return msgspec.msgpack.decode(record, type=Trajectory)


async def give(
    session: AsyncSession, task_id: UUID, score: float, source: ScoreSource, *, judged_by: str | None = None
) -> bool:
    """As `put`, for a task that may have been deleted."""
    task = await session.get(tables.Task, task_id, with_for_update=True, populate_existing=True)
    return task is not None and put(task, score, source, judged_by=judged_by)


def put(
    task: tables.Task,
    score: float,
    source: ScoreSource,
    *,
    judged_by: str | None = None,
    scored_by: UUID | None = None,
) -> bool:
    """Score a task whose row is locked. False: a score of a stronger source is there, and stays.

    The first score that yields to another one is kept as `overruled_score`; that of a judge, until another judge
    gives its own. `judged_by` names the judge, `scored_by` the key over which a person's score came.
    """
    there = task.score_source
    _widen(task, score, source)
    if there is not None and source.yields_to(there):
        if task.overruled_score is None or (source is ScoreSource.JUDGE and task.judged_by is not None):
            task.overruled_score, task.judged_by = score, judged_by
        return False
    if there is not source and task.overruled_score is None:
        task.overruled_score = task.score
    task.score, task.score_source, task.scored_by = score, source, scored_by
    if source is ScoreSource.JUDGE:
        task.judged_by = judged_by
    return True


def _widen(task: tables.Task, score: float, source: ScoreSource) -> None:
    """Note how far scores lie apart: of several sources, or of several people. Others of one source replace it."""
    if task.score is None or (source is task.score_source and source is not ScoreSource.PERSON):
        return
    known = [each for each in (task.lowest_score, task.highest_score) if each is not None]
    task.lowest_score = min(task.score, score, *known)
    task.highest_score = max(task.score, score, *known)


def proven(tasks: FromClause = tables.Task.__table__) -> ColumnElement[Any]:
    """SQL: the score of a row of `tasks`, NULL if a judge gave it. What a judge says promotes nothing."""
    by_judge = tasks.c.score_source == ScoreSource.JUDGE
    return case((by_judge, null()), else_=tasks.c.score)


def independent(author: UUID | None) -> ColumnElement[Any]:
    """SQL: as `proven`, but for good scores that the key `author` gave itself the one that they replaced."""
    if author is None:
        return proven()
    own = and_(_task.scored_by == author, _task.score >= GOOD)
    replaced = case((_task.judged_by.is_(None), _task.overruled_score), else_=null())
    return case((own, replaced), else_=proven())


def executed() -> ColumnElement[Any]:
    """SQL: a task is done, or failed as its agent did nothing; not as it could not be executed."""
    without_calls = and_(_task.calls == 0, _task.skill_run.is_(None), _task.stop.in_([*LIMITS]))
    nothing_done = or_(_task.stop == Stop.NOTHING_DONE, without_calls)
    return func.coalesce(or_(_task.state == TaskState.DONE, nothing_done), false())


class TaskMeasures(NamedTuple):
    """Expressions over the rows of `tasks`, or of a subquery with its columns."""

    reward: ColumnElement[Any]  # in [0, 1]; 0 where the check gave no score; NULL without either, or a judge's
    scored_at: ColumnElement[Any]  # when the reward became known
    unscored: ColumnElement[bool]  # the reward is 0 because the check gave no score
    error: ColumnElement[Any]  # 1.0 if it failed, did not stop by completing, or its check gave no score
    is_done: ColumnElement[bool]  # it could be carried out: its turns and tokens count


def measures(tasks: FromClause) -> TaskMeasures:
    columns = tasks.c
    given = (
        select(func.min(tables.Feedback.created_at)).where(tables.Feedback.task_id == columns.id).scalar_subquery()
    )
    asked = tables.Verification
    verified = select(asked.finished_at).where(asked.task_id == columns.id).scalar_subquery()
    # Tasks whose check gave no score must count, or a release would be judged by its good answers alone.
    unscored = and_(columns.check_code != "", ~columns.checked)
    unscored_by_all = and_(unscored, columns.score.is_(None))
    wrong = or_(columns.state == TaskState.FAILED, columns.stop.is_distinct_from(Stop.COMPLETED), unscored)
    return TaskMeasures(
        reward=case((unscored_by_all, 0.0), else_=proven(tasks)),
        scored_at=case(
            (or_(columns.checked, unscored), func.coalesce(given, columns.finished_at)),
            else_=func.coalesce(given, verified),
        ),
        unscored=unscored_by_all,
        error=case((wrong, 1.0), else_=0.0),
        is_done=columns.state == TaskState.DONE,
    )


class ValueSums(NamedTuple):
    """A number of values, their sum, and that of their squares."""

    number: int = 0
    total: float = 0.0
    squares: float = 0.0


class TaskSums(NamedTuple):
    """Of scored tasks; turns and generated tokens of those that did not fail."""

    score: ValueSums = ValueSums()
    turns: ValueSums = ValueSums()
    tokens: ValueSums = ValueSums()


def sums_of(tasks: CTE, score: ColumnElement[Any]) -> list[ColumnElement[Any]]:
    """Of rows of tasks with these scores, which `read_sums` reads."""
    carried_out = and_(tasks.c.state == TaskState.DONE, score.is_not(None))
    costs = (case((carried_out, each)) for each in (tasks.c.turns, tasks.c.generated_tokens))
    values = [cast(each, Double) for each in (score, *costs)]
    return [total for each in values for total in (func.count(each), _sum(each), _sum(each * each))]


def _sum(value: ColumnElement[Any]) -> ColumnElement[Any]:
    return func.coalesce(func.sum(value), 0.0)


def read_sums(sums: Sequence[Any]) -> TaskSums:
    return TaskSums(*(ValueSums(*sums[start : start + 3]) for start in (0, 3, 6)))


async def of_release(session: AsyncSession, release_id: UUID) -> TaskSums:
    """Of its latest 5,000 tasks that ended and that nobody pinned to it."""
    columns = (_task.state, _task.score, _task.turns, _task.generated_tokens)
    ended = select(*columns).where(_task.release_id == release_id, _task.finished_at.is_not(None), ~_task.pinned)
    latest = ended.order_by(_task.started_at.desc()).limit(_MOST).cte("latest")
    return read_sums((await session.execute(select(*sums_of(latest, latest.c.score)))).one())


UNLABELLED = "instruction "
"""What the kind of a task without a scenario begins with, before the hash of its instruction."""


def kind(columns: ReadOnlyColumnCollection[str, ColumnElement[Any]]) -> ColumnElement[str]:
    """As `app.projects.kinds.kind_of`, with a hash for the instruction of a task without a scenario."""
    words = func.btrim(func.regexp_replace(func.lower(columns.instruction), r"\s+", " ", "g"))
    return func.coalesce(columns.scenario, func.concat(UNLABELLED, func.md5(words)))

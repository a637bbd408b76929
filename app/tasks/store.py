"""Tasks in the database, as their submitters see them: submitted, found, searched for words, read batch
by batch, cancelled, and taken up again once a call in doubt is settled. Runners use `queue`.
"""

from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import msgspec
from sqlalchemy import (
    ColumnElement,
    Row,
    Select,
    Subquery,
    case,
    delete,
    exists,
    func,
    literal_column,
    or_,
    select,
    tuple_,
    update,
)
from sqlalchemy.dialects.postgresql import REGCONFIG, insert
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import InstrumentedAttribute

from app.base.errors import ConflictError, NotFoundError
from app.base.fields import columns
from app.base.values import Call, Json, ScoreSource, Stop
from app.db import results, tables
from app.db.database import Sessions, reading
from app.db.notify import TASKS, notify
from app.db.queries import Page, in_array, read_page
from app.db.tables import AuditAction, Exploration, TaskState
from app.projects import audit, usage
from app.projects.settings import Limits
from app.tasks import calls, masking, queue, turns
from app.tasks.requests import TaskRequest

_WORDS: ColumnElement[str] = literal_column("'simple'", REGCONFIG)  # as they are written, in any language
_CONFLICT = 0.5  # between two scores of a task
_BATCH = 200  # that are read by one query

_task, _event = tables.Task, tables.TaskEvent


class NewTask(TaskRequest, frozen=True, kw_only=True):
    """A request, whose project is found, and what the server adds to it.

    The same idempotency key means the same task; the digest detects a different one.
    """

    key_id: UUID | None = None  # that submits it
    idempotency_key: str | None = None
    request_digest: str | None = None
    rerun_of: UUID | None = None
    repairs: UUID | None = None  # a skill: such a task only reads
    reads_only: bool = False  # it fails where it wants to change something
    release_id: UUID | None = None
    pinned: bool = False  # to this release, or to the code of `skill_run`
    skill_run: dict[str, Json] | None = None  # `values.SkillRun`

    def values(self) -> dict[str, Any]:
        """The columns of its row."""
        return {
            "exploration": None if self.explore else Exploration.NO,
            **columns(self, NewTask, "project", "explore"),
        }


class TaskFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Filters of a listing; None matches everything."""

    project_id: UUID | None = None
    state: TaskState | None = None
    stop: Stop | None = None
    scenario: str | None = None
    words: str | None = None  # of the instruction, as in a web search
    skill_ids: Sequence[UUID] | None = None  # of which one was offered
    release_id: UUID | None = None
    rerun_of: UUID | None = None
    created_after: datetime | None = None  # inclusive
    created_before: datetime | None = None  # exclusive
    min_score: float | None = None
    max_score: float | None = None
    contradicted: bool = False  # only those of which two scores lie `_CONFLICT` apart, whoever gave them


async def submit(
    session: AsyncSession,
    project_id: UUID,
    new: NewTask,
    limits: Limits = Limits(),  # noqa: B008  frozen
) -> tables.Task:
    """As `submit_all`, of one."""
    [task] = await submit_all(session, [(project_id, new)], limits)
    return task


async def submit_all(
    session: AsyncSession,
    batch: Sequence[tuple[UUID, NewTask]],
    limits: Limits = Limits(),  # noqa: B008  frozen
) -> list[tables.Task]:
    """Queue several tasks in order. `limits` are the server's. Runners are notified when the transaction commits.

    A known key with the same digest returns the existing task. Raises ConflictError for one with another digest,
    LimitError if a project has reached one of its limits; then roll back.
    """
    rows = [
        {
            "id": uuid4(),
            "project_id": project_id,
            "created_at": func.clock_timestamp() + timedelta(microseconds=place),  # distinct, to keep the order
            **new.values(),
        }
        for place, (project_id, new) in enumerate(batch)
    ]
    stored = await session.scalars(
        insert(tables.Task)
        .values(rows)
        .on_conflict_do_nothing(index_elements=["project_id", "idempotency_key"])
        .returning(tables.Task)
    )
    fresh = {task.id: task for task in stored}
    if fresh:
        await _make_findable(session, list(fresh))
        await queue.admit(session, Counter(task.project_id for task in fresh.values()), limits)
        await notify(session, TASKS)
    return [
        fresh.get(row["id"]) or await _first(session, project_id, new)
        for row, (project_id, new) in zip(rows, batch, strict=True)
    ]


async def get(session: AsyncSession, task_id: UUID, project_id: UUID | None = None) -> tables.Task:
    """Raises NotFoundError also for a task of another project than the one given."""
    task = await session.get(_task, task_id, populate_existing=True)
    if task is None or project_id not in (None, task.project_id):
        raise NotFoundError(f"no task has the id {task_id}; GET /v1/tasks lists them")
    return task


async def page(
    session: AsyncSession, only: TaskFilter, *, cursor: str | None = None, limit: int = 50
) -> Page[tables.Task]:
    """Newest first. Raises InvalidError for an invalid cursor."""
    task = tables.Task
    if only.words is None:
        return await read_page(
            session, select(task).where(*_conditions(only, task.created_at)), task, cursor, limit
        )
    words = _newest(only.words, only.project_id)
    query = select(task).join(words, words.c.task_id == task.id).where(*_conditions(only, words.c.created_at))
    return await read_page(session, query, task, cursor, limit, by=(words.c.created_at, words.c.task_id))


async def batches(
    sessions: Sessions, only: TaskFilter, limit: int | None = None
) -> AsyncIterator[Sequence[Row[tables.Task, bytes]]]:
    """Tasks with their trajectories as they are stored, newest first. Each batch is read in a session of its own:
    between two of them nothing is held.
    """
    position, left = None, limit
    while left is None or left > 0:
        size = _BATCH if left is None else min(_BATCH, left)
        async with reading(sessions) as session:
            rows = (await session.execute(_following(only, position).limit(size))).all()
        if rows:
            yield rows
            position = rows[-1][0].created_at, rows[-1][0].id
        if len(rows) < size:
            return
        left = None if left is None else left - size


async def request_cancel(session: AsyncSession, task_id: UUID, project_id: UUID | None = None) -> tables.Task:
    """Cancel a task at once if no runner has a valid lease on it; flag another for its runner. Idempotent.

    The events keep no secret of the journal. Raises NotFoundError as `get`, and ConflictError if it has ended
    otherwise.
    """
    await get(session, task_id, project_id)
    expired = _task.lease_until < func.statement_timestamp()  # the same for all columns
    waits = or_(_task.owner.is_(None), expired)
    ended = {
        "state": TaskState.CANCELLED,
        "stop": Stop.CANCELLED,
        "finished_at": func.clock_timestamp(),
        "owner": None,
        "lease_until": None,
    }
    open_states = [TaskState.ACCEPTED, TaskState.RUNNING, TaskState.WAITING]
    task = await session.scalar(
        update(_task)
        .where(_task.id == task_id, _task.state.in_(open_states))
        .values(
            cancel_requested=True,
            **{name: case((waits, value), else_=getattr(_task, name)) for name, value in ended.items()},
        )
        .returning(_task)
        .execution_options(populate_existing=True)
    )
    if task is None:
        task = await get(session, task_id)
        if task.state != TaskState.CANCELLED:
            raise ConflictError(f"task {task_id} is already {task.state}: it cannot be cancelled")
    elif task.state == TaskState.CANCELLED:
        used = await results.used(session, task_id)
        await usage.add(session, task.project_id, usage.SUBMISSIONS, cancelled=1, **used)
        await masking.mask(session, task_id, await masking.of_task(session, task))
        await queue.clean_up(session, task_id)
        outcome = queue.TaskOutcome(state=task.state, stop=task.stop)
        await results.append(session, task_id, "done", msgspec.to_builtins(outcome))
    return task


async def call_in_doubt(session: AsyncSession, task: tables.Task) -> Call | None:
    """The call whose settlement lets an ended task go on; None for a task that ended otherwise."""
    if task.state is not TaskState.DONE or task.stop is not Stop.IN_DOUBT:
        return None
    made = await calls.of_task(session, task.id)
    lost = next((each for each in made if each.call is None and not each.repeatable), None)
    begun = await turns.of_task(session, task.id)
    if lost is None or not begun:  # deleted with the trajectory
        return None
    return Call(seq=lost.seq, turn=begun[-1].index, api=lost.api, arguments=lost.arguments)


async def settle(
    session: AsyncSession,
    task_id: UUID,
    project_id: UUID | None,
    actor: str,
    *,
    arrived: bool,
    result: Json = None,
) -> tables.Task:
    """Let a task go on that ended with a call in doubt, and has kept its journal: a person has found out what
    became of the call. Its code is run again, with `result` for a call that arrived, else the call is sent.

    Raises NotFoundError as `get`, and ConflictError if no call of the task is in doubt.
    """
    await get(session, task_id, project_id)
    task = await session.get_one(_task, task_id, with_for_update=True, populate_existing=True)
    call = await call_in_doubt(session, task)
    if call is None:
        raise ConflictError(f"no call of task {task_id} is in doubt")
    await calls.settle(session, task_id, call, arrived=arrived, result=result)
    await _reopen(session, task)
    data = {"turn": call.turn, "seq": call.seq, "api": call.api, "arrived": arrived, "settled_by": actor}
    ended = _event.task_id == task_id, _event.kind == "done"  # its followers wait for the last event
    await session.execute(update(_event).where(*ended).values(kind="settled", data=data))
    if not await results.has(session, task_id, "settled"):
        await results.append(session, task_id, "settled", data)
    detail = {"task": str(task_id), "api": call.api, "arrived": arrived}
    await audit.add(session, task.project_id, None, actor, AuditAction.CALL_SETTLED, detail)
    return task


async def _make_findable(session: AsyncSession, task_ids: Sequence[UUID]) -> None:
    task = tables.Task
    new = select(task.id, task.project_id, task.created_at, func.to_tsvector(_WORDS, task.instruction))
    names = ["task_id", "project_id", "created_at", "words"]
    await session.execute(insert(tables.TaskWords).from_select(names, new.where(in_array(task.id, task_ids))))


async def _first(session: AsyncSession, project_id: UUID, new: NewTask) -> tables.Task:
    task = await session.scalar(
        select(tables.Task).where(
            tables.Task.project_id == project_id, tables.Task.idempotency_key == new.idempotency_key
        )
    )
    if task is None or task.request_digest != new.request_digest:
        raise ConflictError(
            f"the idempotency key {new.idempotency_key!r} was used for another request: choose a new one"
        )
    return task


def _newest(words: str, project_id: UUID | None) -> Subquery:
    """Id and time of the tasks that have all the words; "in quotes" in this order, -without, this or that.

    In the order of a listing, so that only the tasks of its page are read.
    """
    row = tables.TaskWords
    query = select(row.task_id, row.created_at).where(
        row.words.bool_op("@@")(func.websearch_to_tsquery(_WORDS, words))
    )
    if project_id is not None:
        query = query.where(row.project_id == project_id)
    return query.order_by(row.created_at.desc(), row.task_id.desc()).subquery("found")


def _conditions(
    only: TaskFilter, created_at: ColumnElement[datetime] | InstrumentedAttribute[datetime]
) -> Iterator[ColumnElement[bool]]:
    """`created_at` is that of the table that the listing reads."""
    task, offer = tables.Task, tables.SkillOffer
    for name in ("project_id", "state", "stop", "scenario", "release_id", "rerun_of"):
        if (value := getattr(only, name)) is not None:
            yield getattr(task, name) == value
    bounds = (
        (only.created_after, created_at.__ge__),
        (only.created_before, created_at.__lt__),
        (only.min_score, task.score.__ge__),
        (only.max_score, task.score.__le__),
    )
    yield from (compare(value) for value, compare in bounds if value is not None)
    if only.skill_ids is not None:
        yield exists().where(offer.task_id == task.id, in_array(offer.skill_id, only.skill_ids))
    if only.contradicted:
        yield task.highest_score.is_not(None)
        yield task.highest_score - task.lowest_score >= _CONFLICT


def _following(only: TaskFilter, position: tuple[datetime, UUID] | None) -> Select[tables.Task, bytes]:
    task, trajectory = tables.Task, tables.Trajectory
    query = select(task, trajectory.record).join(trajectory, trajectory.task_id == task.id)
    query = query.where(*_conditions(only, task.created_at)).order_by(task.created_at.desc(), task.id.desc())
    return query if position is None else query.where(tuple_(task.created_at, task.id) < tuple_(*position))


async def _reopen(session: AsyncSession, task: tables.Task) -> None:
    """Its end counts for nothing, and of its scores only a person's stays."""
    used = {name: -(getattr(task, name) or 0) for name in usage.OF_TASKS}
    await usage.add(session, task.project_id, usage.SUBMISSIONS, done=-1, **used)
    await session.execute(delete(tables.Trajectory).where(tables.Trajectory.task_id == task.id))
    task.state, task.stop, task.failure, task.answer, task.finished_at = TaskState.RUNNING, None, None, None, None
    task.turns = task.generated_tokens = task.calls = task.prompt_tokens = 0
    task.cost = None
    if task.score_source is not ScoreSource.PERSON:
        task.score, task.score_source, task.checked, task.judged_by = None, None, False, None
        await session.execute(delete(tables.Verification).where(tables.Verification.task_id == task.id))
    await session.flush()
    await notify(session, TASKS)

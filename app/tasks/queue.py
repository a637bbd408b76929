"""The queue of accepted tasks: who claims which task and when, how many a project may have, and what follows
from a task's end. A runner claims a task, and writes to it only while its claim holds the lease.

Projects take turns by weight (start-time fair queueing); within one, priority goes first, then age. Each
project has a virtual time, which a claim of one of its tasks advances by 1/weight, and the project with the
least is next. The time of a project that had nothing waiting, or was held back by a limit, is lifted to that of
the latest claim less one turn, so that it saves up no more than that. Every claim advances only its own
project's time, so each project with a task waiting is served after a number of claims that the weights
determine.

Claims never wait for each other: one locks the row of its project's turn, and skips rows that others have
locked. A project that is skipped keeps its time, and is served before others the next time. Where a limit of
running tasks holds, the row must also be unchanged since the snapshot of the claim, which then shows every
earlier claim of the project: the limit is exact. A claim that found only rows taken by others is tried again.

A task whose runner died is a suspect: its next runner executes it alone, so that the tasks that ran beside a
harmful one are cleared. If runners die while they execute a suspect alone, and it makes no progress in between,
the suspect is condemned: by two that ended by themselves, stuck, crashed or too large, or by five in all.
Others were killed from outside, or nobody knows how they ended. Outages count against no task, nor does a
stall: a runner that goes on after its lease has expired withdraws its death.
"""

import asyncio
import random
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import (
    ARRAY,
    CTE,
    BigInteger,
    ColumnElement,
    Double,
    ScalarSelect,
    Select,
    Table,
    Text,
    Update,
    Uuid,
    all_,
    and_,
    bindparam,
    case,
    cast,
    delete,
    exists,
    false,
    func,
    literal,
    literal_column,
    or_,
    select,
    true,
    tuple_,
    union_all,
    update,
)
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import aliased
from sqlalchemy.sql.dml import ReturningUpdate

from app.apis.approvals import store as approvals
from app.base.errors import LimitError
from app.base.values import Json, ScoreSource, Stop
from app.db import lease, results, runners, tables
from app.db.database import Handle, execute
from app.db.lease import QUEUE, RUNNING
from app.db.notify import TASKS, notify
from app.db.queries import from_now
from app.db.results import executed
from app.db.tables import TASK_END_STATES, ApprovalState, ReleaseState, TaskState
from app.projects import store as projects
from app.projects import usage, webhooks
from app.projects.settings import Limits, WebhookEvent
from app.releases import trials_store
from app.tasks import verification

_CONDEMNING_ENDS = 2  # of runners by themselves
_CONDEMNING_DEATHS = 5  # whatever their cause
_QUEUE_SECONDS = 5.0  # after which some of the waiting tasks will have been claimed
_TRIES = 20  # of a claim that others overtake
_PAUSE = 0.002  # seconds between two tries, at most; each is longer
NO_LIMITS = Limits()

_task, _turn, _project, _approval = tables.Task, tables.ProjectTurn, tables.Project, tables.Approval
_ACCEPTED = _task.state == literal_column("'accepted'")  # literals: a parameter would match no partial index
_HELD_OFF = bindparam("held_off", type_=ARRAY(Uuid))  # projects to pass over
_OWNER, _PROCESS = bindparam("new_owner", type_=Text), bindparam("new_process", type_=Text)  # of a claim
_PROMPT = bindparam("prompt", type_=Text)  # hash of the claiming runner's; NULL: it takes any task
_OURS = bindparam("ours", type_=ARRAY(Uuid))  # tasks that the claim leaves alone
_CANCELLED = select(_task.id).where(QUEUE.held_by(bindparam("process", type_=Text)), _task.cancel_requested)

_EVENTS: dict[TaskState, WebhookEvent] = {
    TaskState.DONE: "task.done",
    TaskState.FAILED: "task.failed",
    TaskState.CANCELLED: "task.cancelled",
}

_task_id = bindparam("task", type_=Uuid)
_call = tables.TaskCall
_lost = exists().where(_call.task_id == _task.id, _call.record.is_(None), ~_call.repeatable)
_resumable = and_(_task.stop == Stop.IN_DOUBT, _lost)  # once a person knows whether the call arrived
_ended = select(_task.id).where(_task.id == _task_id, ~func.coalesce(_resumable, false()))
_waits = _approval.state == ApprovalState.WAITING
_withdrawn = {  # and what is left of digests of arguments
    "state": case((_waits, ApprovalState.WITHDRAWN.value), else_=_approval.state),
    "decided_at": case((_waits, func.clock_timestamp()), else_=_approval.decided_at),
    "digest": "",
    "shown": None,
}
_CLEAN_UP = (
    select(
        _task.project_id,
        _task.state,
        _task.stop,
        _task.score,
        _task.scenario,
        _task.check_code,
        executed().label("executed"),
        _project.settings,
    )
    .join(_project, _project.id == _task.project_id)
    .where(_task.id == _task_id)
    .add_cte(
        delete(tables.TaskTurn).where(tables.TaskTurn.task_id.in_(_ended)).cte("old_turns"),
        delete(tables.TaskCall).where(tables.TaskCall.task_id.in_(_ended)).cte("old_calls"),
        update(_approval)
        .where(_approval.task_id.in_(_ended), or_(_waits, _approval.digest != ""))
        .values(_withdrawn)
        .cte("withdrawn"),
    )
)


class TaskOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """How a task ended. A score given here is the check's unless a judge is named."""

    state: TaskState
    stop: Stop | None = msgspec.field(name="stop_reason", default=None)
    answer: Json = None
    failure: str | None = None
    score: float | None = None
    judged_by: str | None = None
    turns: int = 0
    generated_tokens: int = 0
    calls: int = 0
    prompt_tokens: int = 0
    cost: float | None = None


class QueueDepth(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers of tasks, and how many seconds ago the oldest queued one was sent."""

    queued: int
    running: int
    waiting: int  # for a person
    oldest_seconds: float


async def admit(session: AsyncSession, submitted: Mapping[UUID, int], defaults: Limits) -> None:
    """Count tasks that this transaction has added, by project. Raises LimitError: then roll them back.

    Submissions of a project are admitted one after the other, so a limit holds exactly.
    """
    for project_id, count in sorted(submitted.items()):  # in one order, so that none waits for one that waits
        await usage.add(session, project_id, usage.SUBMISSIONS, submitted=count)
        await _check(session, project_id, defaults)


async def in_progress(session: AsyncSession, project_id: UUID) -> tuple[int, int]:
    """The numbers of the project's tasks that wait and that run."""
    return await _count(session, project_id, _ACCEPTED), await _count(session, project_id, RUNNING)


async def exhausted(session: AsyncSession, project: tables.Project, defaults: Limits) -> str | None:
    """The limit that keeps the project's waiting tasks waiting, if one does."""
    limits = projects.settings_of(project).limits.over(defaults)
    used = await usage.of_today(session, project.id)
    running = await _count(session, project.id, RUNNING) if limits.running_tasks is not None else 0
    return _reached(limits, **_of_day(used), running_tasks=running)


async def read(session: AsyncSession) -> QueueDepth:
    """Of all projects."""
    age = func.extract("epoch", func.clock_timestamp() - func.min(_task.created_at))
    query = select(_task.state, func.count(), age).where(or_(_ACCEPTED, RUNNING)).group_by(_task.state)
    found = {state: (count, float(seconds)) for state, count, seconds in await session.execute(query)}
    queued, oldest = found.get(TaskState.ACCEPTED, (0, 0.0))
    return QueueDepth(
        queued=queued,
        running=found.get(TaskState.RUNNING, (0, 0.0))[0],
        waiting=await approvals.count_waiting(session),
        oldest_seconds=oldest,
    )


async def claim(  # noqa: PLR0913  the last ones are each a condition of its own
    session: AsyncSession,
    owner: str,
    lease_seconds: float,
    limits: Limits = NO_LIMITS,
    *,
    abandoned: bool = True,
    ours: Collection[UUID] = (),
    held_off: Collection[UUID] = (),
    prompt: str | None = None,
) -> tables.Task | None:
    """The next task whose project may run it within its limits, or None; `limits` are the server's.

    Two runners never get the same task, nor does one that is still busy with it: those are in `ours`. `owner` is a
    new claim. The first one pins the release, the canary for its share of the tasks and otherwise the active one,
    and sets the clock that the sandbox shows. A claim of a task that another runner let expire counts as a death
    of that runner; without `abandoned` these tasks are left alone, as are those of the projects `held_off`. A task
    that began under another prompt than the one with the hash `prompt` is left to the runners that have that one,
    while there are any.
    """
    waiting = {"held_off": list(held_off)}
    given: dict[str, object] = {"new_owner": owner, "new_process": lease.process_of(owner), "prompt": prompt}
    given |= {"ours": list(ours), **waiting}
    connection = await session.connection()  # the statements are large: only the core's keep their cache key
    for attempt in range(_TRIES):
        skip = attempt // 4
        task_id = await connection.scalar(_claiming(lease_seconds, limits, abandoned, skip), given)
        if task_id is not None:
            return await session.get(_task, task_id, populate_existing=True)
        if not await connection.scalar(_asking(limits), waiting):
            return None
        await asyncio.sleep(random.uniform(0, min(_PAUSE * (attempt + 1), 0.02)))
    return None


async def any_waits(session: AsyncSession, limits: Limits = NO_LIMITS) -> bool:
    """Whether a task waits whose project may run it; `limits` are the server's."""
    return bool(await (await session.connection()).scalar(_asking(limits), {"held_off": []}))


async def mark_alone(session: AsyncSession, task_id: UUID, owner: str) -> None:
    """The owner begins to execute this task, and nothing else. Raises ConflictError if it lost the task."""
    marked = update(_task).where(QUEUE.held(owner, _task.id == task_id)).values(alone=True)
    if await session.scalar(marked.returning(_task.id)) is None:
        raise lease.lost("task", task_id, owner)


async def extend(session: AsyncSession, owners: Mapping[UUID, str], lease_seconds: float) -> dict[UUID, bool]:
    """Renew the leases of these tasks and claims. Returns task id -> cancellation requested.

    A task that is missing was claimed again, or deleted: its rollout must stop.
    """
    held = tuple_(_task.id, _task.owner).in_(list(owners.items()))
    extended = update(_task).where(held, RUNNING).values(lease_until=from_now(lease_seconds))
    rows = await session.execute(extended.returning(_task.id, _task.cancel_requested))
    return {row.id: row.cancel_requested for row in rows}


async def cancelled(handle: Handle, process: str) -> set[UUID]:
    """The tasks of a process whose cancellation was requested."""
    return set((await execute(handle, _CANCELLED, {"process": process})).scalars())


async def finish(session: AsyncSession, task_id: UUID, owner: str, outcome: TaskOutcome) -> bool:
    """False, and nothing is written: the task is no longer the owner's, and the rollout is to be dropped.

    Counts what the task used for its project, and deletes the journal of turns and calls; see `task_end`.
    """
    if outcome.state not in TASK_END_STATES:
        raise ValueError(f"a task cannot end as {outcome.state}")
    given_by = ScoreSource.JUDGE if outcome.judged_by else ScoreSource.CHECK
    values = msgspec.structs.asdict(outcome)
    if outcome.score is None:
        del values["score"]
    else:
        values |= {"checked": True, **_unless_a_person_scored(score=outcome.score, score_source=given_by)}
    finished = QUEUE.finish(owner, _task.id == task_id, **values)
    project_id = await session.scalar(finished.returning(_task.project_id))
    if project_id is None:
        return False
    await usage.add(session, project_id, usage.writer_of(owner), **await _used(session, task_id, outcome))
    await clean_up(session, task_id)
    return True


async def hand_back(session: AsyncSession, process: str) -> Sequence[UUID]:
    """Let others resume all tasks of a process at once. Returns their ids."""
    return await _free(session, QUEUE.hand_back_all(process, alone=_alone()))


async def record_prompt(session: AsyncSession, task_id: UUID, owner: str, prompt: str) -> str | None:
    """Record that a task without turns begins under another prompt than that of its runner. Returns the one that
    it began under. Raises ConflictError if it has another owner.
    """
    began = case((_has_turns(), _task.prompt), else_=prompt)
    held = QUEUE.held(owner, _task.id == task_id)
    rows = (await session.scalars(update(_task).where(held).values(prompt=began).returning(_task.prompt))).all()
    if not rows:
        raise lease.lost("task", task_id, owner)
    return rows[0]


async def put_back(
    session: AsyncSession,
    task_id: UUID,
    owner: str,
    *,
    seconds: float = 0,
    sandbox_failures: int = 0,
    broken_answers: int = 0,
) -> None:
    """Let others resume one task in so many seconds, if this claim still holds it; the attempt does not count."""
    values = {
        "attempt": _task.attempt - 1,
        "sandbox_failures": _task.sandbox_failures + sandbox_failures,
        "broken_answers": _task.broken_answers + broken_answers,
        "lease_until": from_now(seconds) if seconds else None,
    }
    await _free(session, QUEUE.hand_back(owner, _task.id == task_id, alone=_alone(), **values))


async def advance(session: AsyncSession, task_id: UUID, owner: str) -> None:
    """The task, which runners died at, has got further: they died of something else, or it does harm elsewhere."""
    await session.execute(
        update(_task).where(QUEUE.held(owner, _task.id == task_id)).values(lone_deaths=0, lone_kills=0)
    )


async def withdraw_death(session: AsyncSession, task_id: UUID, *, alone: bool) -> None:
    """A runner whose claim expired is alive after all: the claim that followed counted its death. Call it once.

    `alone`: the runner executed nothing else.
    """
    less = int(alone)  # nobody knew the cause of the death
    without = {
        "deaths": func.greatest(_task.deaths - 1, 0),
        "lone_deaths": func.greatest(_task.lone_deaths - less, 0),
        "lone_kills": func.greatest(_task.lone_kills - less, 0),
    }
    await session.execute(update(_task).where(_task.id == task_id).values(**without))


async def abandon(session: AsyncSession, process: str, *, killed: bool = False) -> Sequence[UUID]:
    """Let others resume the tasks of a process that died or is about to. Counts the death, returns their ids.

    `killed`: from outside, or nobody knows, so that it takes more such deaths until a task is condemned.
    """
    return await _free(session, QUEUE.hand_back_all(process, **_after_death(true(), killed=killed)))


async def clean_up(session: AsyncSession, task_id: UUID) -> None:
    """Delete the journal of a task that has just ended, withdraw the approval that it waited for, and have the
    project's webhook told and its verifier asked.

    It tells of passwords, and is kept only for a task that may go on: one with a call in doubt.
    """
    row = (await execute(session, _CLEAN_UP, {"task": task_id})).one()
    if row.settings.get("webhook"):
        data = {"state": row.state, "stop_reason": row.stop, "score": row.score, "scenario": row.scenario}
        await webhooks.enqueue(session, row.project_id, task_id, _EVENTS[row.state], data)
    if row.settings.get("verifier") and row.executed and not row.check_code:
        await verification.enqueue(session, row.project_id, task_id)


def is_suspect(task: tables.Task) -> bool:
    """It was being executed when a runner died, so it must be executed alone."""
    return task.deaths > 0 and not is_condemned(task)


def is_condemned(task: tables.Task) -> bool:
    """Enough runners died at the same turn of it, which executed nothing else: it must not run again."""
    ends = task.lone_deaths - task.lone_kills
    return ends >= _CONDEMNING_ENDS or task.lone_deaths >= _CONDEMNING_DEATHS


@lru_cache(maxsize=64)
def _claiming(lease_seconds: float, limits: Limits, abandoned: bool, skip: int) -> ReturningUpdate[UUID]:
    """Returns the id of the claimed task, if there is one."""
    died = and_(_task.owner.is_not(None), QUEUE.process() != _PROCESS)  # of a task whose lease has expired
    resumable = [_task.id != all_(_OURS), _task.project_id != all_(_HELD_OFF), _may_run(died)]
    resumable += [_may_continue()]
    found, charged = _next_task(limits, skip, *resumable, *([] if abandoned else [_task.owner.is_(None)]))
    active = _release_in(ReleaseState.ACTIVE)
    canary = _release_in(ReleaseState.CANARY, trials_store.is_assigned())
    claimed = QUEUE.take(
        _OWNER,
        lease_seconds,
        _task.id == found.c.id,
        state=TaskState.RUNNING,
        started_at=func.coalesce(_task.started_at, func.clock_timestamp()),
        prompt=case((and_(_task.prompt.is_not(None), _has_turns()), _task.prompt), else_=_PROMPT),
        release_id=func.coalesce(_task.release_id, canary, active),
        **_after_death(died, killed=True),  # nobody knows its cause
    )
    return claimed.add_cte(charged).returning(_task.id)


def _may_continue() -> ColumnElement[bool]:
    """A task goes on under the prompt it began under, as long as a runner has that one."""
    own = or_(_PROMPT.is_(None), _task.prompt.is_(None), _task.prompt == _PROMPT)
    return or_(own, ~runners.serve_with(_task.prompt))


def _has_turns() -> ColumnElement[bool]:
    return exists(select(tables.TaskTurn.task_id).where(tables.TaskTurn.task_id == _task.id))


@lru_cache(maxsize=8)
def _asking(limits: Limits) -> Select[bool]:
    return select(exists(_candidates(limits)))


def _may_run(died: ColumnElement[bool]) -> ColumnElement[bool]:
    """Suspects may occupy half of the runners, and at least one. `died`: the task's runner has just been lost."""
    beside = and_(_task.deaths == 0, ~died)
    some = _in_progress() < func.greatest(1, runners.count_of_live() // 2)
    return or_(beside, _condemned(died, killed=True), some)


def _in_progress() -> ScalarSelect[int]:
    other = aliased(_task)
    in_progress = and_(
        other.deaths > 0,
        other.state == TaskState.RUNNING,
        other.owner.is_not(None),
        other.lease_until > func.clock_timestamp(),
    )
    return select(func.count()).select_from(other).where(in_progress).scalar_subquery()


def _after_death(
    died: ColumnElement[bool], *, killed: bool
) -> dict[str, ColumnElement[int] | ColumnElement[bool]]:
    """The counts of a task, by whether its runner has just been lost, and whether it was killed from outside, as
    far as anybody knows.
    """
    return {
        "deaths": _task.deaths + case((died, 1), else_=0),
        "lone_deaths": _lone_deaths(died),
        "lone_kills": _lone_kills(died, killed=killed),
        "alone": _alone(died, killed=killed),
    }


def _alone(died: ColumnElement[bool] = false(), *, killed: bool = True) -> ColumnElement[bool]:  # noqa: B008  immutable
    """A condemned task stays marked: its next runners may die while they record its end."""
    return and_(_task.alone, _condemned(died, killed=killed))


def _condemned(died: ColumnElement[bool], *, killed: bool) -> ColumnElement[bool]:
    deaths = _lone_deaths(died)
    return or_(
        deaths - _lone_kills(died, killed=killed) >= _CONDEMNING_ENDS,
        deaths >= _CONDEMNING_DEATHS,
    )


def _lone_deaths(died: ColumnElement[bool]) -> ColumnElement[int]:
    return _task.lone_deaths + case((and_(_task.alone, died), 1), else_=0)


def _lone_kills(died: ColumnElement[bool], *, killed: bool) -> ColumnElement[int]:
    return _task.lone_kills + case((and_(_task.alone, died), int(killed)), else_=0)


def _next_task(limits: Limits, skip: int, *resumable: ColumnElement[bool]) -> tuple[CTE, CTE]:
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
            project_id != all_(_HELD_OFF),
            _within(capacity, running),
            _within(_limit("tokens_per_day", limits), usage.today("generated_tokens", project_id)),
            _within(_limit("calls_per_day", limits), usage.today("calls", project_id)),
            _within(_limit("cost_per_day", limits, Double), usage.today("cost", project_id)),
        )
        .order_by("turn", _turn.turn.nulls_first(), project_id)
    )


def _waiting() -> CTE:
    """The projects with a waiting task, each by one step in the index, however many tasks there are."""
    first = select(_task.project_id).where(_ACCEPTED).order_by(_task.project_id).limit(1).subquery()
    waiting = select(first.c.project_id).cte("waiting", recursive=True)
    after = (
        select(_task.project_id)
        .where(_ACCEPTED, _task.project_id > waiting.c.project_id)
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
        .where(_ACCEPTED, _task.project_id == select(locked.c.project_id).scalar_subquery())
        .order_by(_task.priority.desc(), _task.created_at, _task.id)
        .limit(1)
        .with_for_update(skip_locked=True)
        .cte("fresh")
    )


def _limit(
    name: str, defaults: Limits, kind: type[BigInteger] | type[Double[float]] = BigInteger
) -> ColumnElement[float]:
    """The project's limit, or else the server's; NULL is none."""
    own = cast(_project.settings["limits"][name].astext, kind)
    return func.nullif(func.coalesce(own, literal(getattr(defaults, name) or 0, kind)), 0)


def _within(limit: ColumnElement[float], used: ColumnElement[float]) -> ColumnElement[bool]:
    return or_(limit.is_(None), used < limit)


async def _free(session: AsyncSession, freeing: Update) -> Sequence[UUID]:
    freed = (await session.scalars(freeing.returning(_task.id))).all()
    if freed:
        await notify(session, TASKS)
    return freed


def _release_in(state: ReleaseState, *more: ColumnElement[bool]) -> ScalarSelect[UUID]:
    """At most one per project."""
    release = tables.Release
    query = select(release.id).where(release.project_id == _task.project_id, release.state == state, *more)
    return query.scalar_subquery()


def _unless_a_person_scored(**values: object) -> dict[str, ColumnElement[object]]:
    """A task that ended with a call in doubt, and went on, may have been scored in between."""
    scored = _task.score_source == ScoreSource.PERSON
    columns = {name: getattr(_task, name) for name in values}
    return {name: case((scored, columns[name]), else_=value) for name, value in values.items()}


async def _used(session: AsyncSession, task_id: UUID, outcome: TaskOutcome) -> dict[str, float]:
    """Counts for the project's usage. The outcome of a task that failed has none: its events do."""
    counts: dict[str, float] = {name: getattr(outcome, name) or 0 for name in usage.OF_TASKS}
    if outcome.state is TaskState.FAILED and not any(counts.values()):
        counts |= await results.used(session, task_id)
    return {outcome.state.value: 1, **counts}


async def _check(session: AsyncSession, project_id: UUID, defaults: Limits) -> None:
    project = await projects.by_id(session, project_id)
    limits = projects.settings_of(project).limits.over(defaults)
    if limits.queued_tasks is not None and await _count(session, project_id, _ACCEPTED) > limits.queued_tasks:
        what = f"{project.name} would have more than {limits.queued_tasks:,} tasks waiting: submit fewer, or later"
        raise _limit_error("queued_tasks", limits.queued_tasks, what, _QUEUE_SECONDS)
    used = await usage.of_today(session, project_id)
    reached = _reached(limits, tasks_per_day=used.submitted - 1, **_of_day(used))
    if reached is not None:
        now = await usage.clock(session)
        reset, value = usage.next_day(now), getattr(limits, reached)
        what = f"{project.name} has used up the {_in_words(reached, value)} of today"
        seconds = (reset - now).total_seconds()
        raise _limit_error(reached, value, f"{what}: submit again from {reset:%Y-%m-%dT%H:%MZ}", seconds)


def _of_day(used: usage.UsageCounts) -> dict[str, float]:
    return {
        "tokens_per_day": used.generated_tokens,
        "calls_per_day": used.calls,
        "cost_per_day": used.cost,
    }


def _in_words(name: str, value: float) -> str:
    """
    >>> _in_words("tokens_per_day", 2000), _in_words("cost_per_day", 2.5)
    ('2,000 tokens', 'cost of 2.5')
    """
    return f"cost of {value:g}" if name == "cost_per_day" else f"{value:,} {name.removesuffix('_per_day')}"


def _reached(limits: Limits, **used: float) -> str | None:
    """The first of these limits that is used up."""
    for name, count in used.items():
        limit = getattr(limits, name)
        if limit is not None and count >= limit:
            return name
    return None


async def _count(session: AsyncSession, project_id: UUID, state: ColumnElement[bool]) -> int:
    query = select(func.count()).select_from(_task).where(state, _task.project_id == project_id)
    return (await session.scalars(query)).one()


def _limit_error(name: str, value: float, what: str, seconds: float) -> LimitError:
    setting = f"SAGE_LIMIT_{name.upper()}"
    message = f"{what}, or ask an administrator to raise limits.{name} of the project, or {setting}"
    return LimitError(message, name=name, value=value, setting=setting, retry_after=seconds)

"""The queue of accepted tasks. A runner claims a task, and writes to it only while its claim holds the lease."""

import asyncio
import random
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from uuid import UUID

import msgspec
from sqlalchemy import (
    ARRAY,
    ColumnElement,
    ScalarSelect,
    Select,
    Text,
    Update,
    Uuid,
    all_,
    and_,
    bindparam,
    case,
    exists,
    func,
    or_,
    select,
    true,
    tuple_,
    update,
)
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.sql.dml import ReturningUpdate

from app.base.values import Json, ScoreSource, Stop
from app.db import lease, results, runners, suspects, tables, task_end
from app.db.database import Handle, execute
from app.db.fair_queue import HELD_OFF, any_candidate, next_task
from app.db.lease import QUEUE, RUNNING
from app.db.notify import TASKS, notify
from app.db.queries import from_now
from app.db.tables import TASK_END_STATES, ReleaseState, TaskState
from app.projects import usage
from app.projects.settings import Limits
from app.releases import trials_store

_task = tables.Task
_CANCELLED = select(_task.id).where(QUEUE.held_by(bindparam("process", type_=Text)), _task.cancel_requested)
_TRIES = 20  # of a claim that others overtake
_PAUSE = 0.002  # seconds between two tries, at most; each is longer
NO_LIMITS = Limits()
_OWNER, _PROCESS = bindparam("new_owner", type_=Text), bindparam("new_process", type_=Text)  # of a claim
_PROMPT = bindparam("prompt", type_=Text)  # hash of the claiming runner's; NULL: it takes any task
_OURS = bindparam("ours", type_=ARRAY(Uuid))  # tasks that the claim leaves alone


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
    connection = (
        await session.connection()
    )  # the statements are large: only those of the core keep their cache key
    for attempt in range(_TRIES):
        skip = attempt // 4
        task_id = await connection.scalar(_claiming(lease_seconds, limits, abandoned, skip), given)
        if task_id is not None:
            return await session.get(_task, task_id, populate_existing=True)
        if not await connection.scalar(_asking(limits), waiting):
            return None
        await asyncio.sleep(random.uniform(0, min(_PAUSE * (attempt + 1), 0.02)))
    return None


@lru_cache(maxsize=64)
def _claiming(lease_seconds: float, limits: Limits, abandoned: bool, skip: int) -> ReturningUpdate[UUID]:
    """Returns the id of the claimed task, if there is one."""
    died = and_(_task.owner.is_not(None), QUEUE.process() != _PROCESS)  # of a task whose lease has expired
    resumable = [_task.id != all_(_OURS), _task.project_id != all_(HELD_OFF), suspects.may_run(died)]
    resumable += [_may_continue()]
    found, charged = next_task(limits, skip, *resumable, *([] if abandoned else [_task.owner.is_(None)]))
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
        **suspects.after_death(died, killed=True),  # nobody knows its cause
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
    return select(any_candidate(limits))


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
    await task_end.clean_up(session, task_id)
    return True


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


async def hand_back(session: AsyncSession, process: str) -> Sequence[UUID]:
    """Let others resume all tasks of a process at once. Returns their ids."""
    return await _free(session, QUEUE.hand_back_all(process, alone=suspects.alone()))


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
    await _free(session, QUEUE.hand_back(owner, _task.id == task_id, alone=suspects.alone(), **values))


async def advance(session: AsyncSession, task_id: UUID, owner: str) -> None:
    """The task, which runners died at, has got further: they died of something else, or it does harm elsewhere."""
    await session.execute(
        update(_task).where(QUEUE.held(owner, _task.id == task_id)).values(lone_deaths=0, lone_kills=0)
    )


async def withdraw_death(session: AsyncSession, task_id: UUID, *, alone: bool) -> None:
    """A runner whose claim expired is alive after all: the claim that followed counted its death. Call it once.

    `alone`: the runner executed nothing else.
    """
    without = suspects.without_death(alone=alone)
    await session.execute(update(_task).where(_task.id == task_id).values(**without))


async def abandon(session: AsyncSession, process: str, *, killed: bool = False) -> Sequence[UUID]:
    """Let others resume the tasks of a process that died or is about to. Counts the death, returns their ids.

    `killed`: from outside, or nobody knows, so that it takes more such deaths until a task is condemned.
    """
    return await _free(session, QUEUE.hand_back_all(process, **suspects.after_death(true(), killed=killed)))


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

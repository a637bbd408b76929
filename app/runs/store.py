"""Training runs in the database: as their submitters see them, and as the queue that workers claim them from.

A process holds a run by a lease, and writes to it only while it is the owner; any number of processes may
claim and recover runs. Workers also report which environments they have, and copy the end of each run's log
here.
"""

from collections.abc import Sequence
from uuid import UUID

import msgspec
from sqlalchemy import Update, and_, case, delete, exists, func, literal, literal_column, or_, select, update
from sqlalchemy.dialects.postgresql import distinct_on, insert
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import aliased

from app.base.errors import ConflictError, NotFoundError
from app.base.plugins import EnvironmentInfo
from app.base.run_settings import RunKind, RunSettings
from app.base.values import Json, RunPart
from app.db import lease, tables
from app.db import notify as notifications
from app.db.queries import Page, from_now, read_page
from app.db.tables import OPEN_RUNS, RUN_MOVES, RunState

_run = tables.TrainingRun
MAX_LOSSES = 3  # processes that a run may lose without progress
_LOST = (
    f"RunLostError: the process of this run was lost {MAX_LOSSES} times (killed, or the machine stopped) without "
    "progress in between: read the end of its log on the worker, give it a smaller batch or more memory, "
    "then retry the run"
)
_queue = lease.LeaseQueue(_run, _run.state.in_(OPEN_RUNS))
_log = tables.RunLog
REPORT_SECONDS = 60.0
_EXPIRY_SECONDS = 5 * REPORT_SECONDS  # rows not refreshed for this long are ignored
_FORGET_SECONDS = 24 * 3600.0  # and deleted after this
_environment = tables.WorkerEnvironment


async def create(session: AsyncSession, project_id: UUID, settings: RunSettings) -> tables.TrainingRun:
    """Queue a run. Call `app.runs.broker.notify_workers` after the commit."""
    return await put(session, project_id, msgspec.to_builtins(settings))


async def put(
    session: AsyncSession, project_id: UUID, settings: dict[str, Json], *, schedule_id: UUID | None = None
) -> tables.TrainingRun:
    """Queue a run like `create`, with settings as they are stored. The run fails if they are no longer valid."""
    row = {"project_id": project_id, "schedule_id": schedule_id, "settings": settings}
    run: tables.TrainingRun | None = await session.scalar(
        insert(_run).values(kind=RunKind(settings["kind"]), **row).returning(_run)
    )
    assert run is not None  # an insert returns its row
    await notify(session, run.id)
    return run


async def get(session: AsyncSession, run_id: UUID, project_id: UUID | None = None) -> tables.TrainingRun:
    """Raises NotFoundError also for a run of another project than the one given."""
    run = await session.get(_run, run_id, populate_existing=True)
    if run is None or project_id not in (None, run.project_id):
        raise NotFoundError(f"no training run has the id {run_id}; GET /v1/training-runs lists them")
    return run


async def page(
    session: AsyncSession,
    project_id: UUID,
    *,
    state: RunState | None = None,
    cursor: str | None = None,
    limit: int = 50,
) -> Page[tables.TrainingRun]:
    """Newest first. Raises InvalidError for an invalid cursor."""
    query = select(_run).where(_run.project_id == project_id)
    if state is not None:
        query = query.where(_run.state == state)
    return await read_page(session, query, _run, cursor, limit)


async def latest_practice(session: AsyncSession, project_id: UUID, model: str) -> dict[str, Json] | None:
    """What the latest run of practice on a model did with its hours; None before the first."""
    practised = _run.result["data"]["practice"]
    found: dict[str, Json] | None = await session.scalar(
        select(practised)
        .where(
            _run.project_id == project_id,
            _run.kind == RunKind.PRACTICE,
            _run.state == RunState.DONE,
            practised["model"].astext == model,
        )
        .order_by(_run.finished_at.desc())
        .limit(1)
    )
    return found


async def steps(
    session: AsyncSession, run_id: UUID, after: int = 0, limit: int = 1000
) -> Sequence[tables.RunStep]:
    """Steps after number `after`, in order."""
    query = (
        select(tables.RunStep)
        .where(tables.RunStep.run_id == run_id, tables.RunStep.index > after)
        .order_by(tables.RunStep.index)
        .limit(limit)
        .execution_options(populate_existing=True)
    )
    return (await session.scalars(query)).all()


class OpenRuns(msgspec.Struct, frozen=True):
    """Of the runs that have not ended. A run whose number of steps is not known yet plans none."""

    queued: int
    running: int
    steps_done: int
    steps_planned: int


async def progress(session: AsyncSession) -> OpenRuns:
    """Of all projects together."""
    is_running = _run.state == literal_column("'running'")
    query = select(
        func.count().filter(~is_running),
        func.count().filter(is_running),
        func.coalesce(func.sum(_run.step).filter(is_running), 0),
        func.coalesce(func.sum(_run.steps).filter(is_running), 0),
    ).where(or_(is_running, _run.state == literal_column("'queued'")))
    return OpenRuns(*(int(value) for value in (await session.execute(query)).one()))


async def request_cancel(session: AsyncSession, run_id: UUID) -> tables.TrainingRun:
    """Cancel a queued run at once; flag a running one for its process. Idempotent.

    Raises NotFoundError, and ConflictError if the run has ended otherwise.
    """
    waits = _run.state == RunState.QUEUED
    run = await write(
        session,
        update(_run)
        .where(_run.id == run_id, _run.state.in_(OPEN_RUNS))
        .values(
            cancel_requested=True,
            state=case((waits, RunState.CANCELLED), else_=_run.state),
            finished_at=case((waits, func.clock_timestamp()), else_=_run.finished_at),
        ),
    )
    if run is None:
        run = await get(session, run_id)
        if run.state != RunState.CANCELLED:
            raise ConflictError(f"run {run_id} is already {run.state}: it cannot be cancelled")
    return run


async def retry(session: AsyncSession, run_id: UUID) -> tables.TrainingRun:
    """Queue a run again, with all its attempts; it resumes from its checkpoint. Notify workers after the commit.

    Raises NotFoundError, and ConflictError for a run that neither failed nor was cancelled, or that learned from a
    task that is deleted.
    """
    untried = {"attempt": 0, "losses": 0, "lost_at": 0}
    again = {"cancel_requested": False, "failure": None, "result": None, "finished_at": None, **untried}
    run = await write(
        session,
        update(_run)
        .where(_run.id == run_id, _run.state.in_([RunState.FAILED, RunState.CANCELLED]), ~_run.erased)
        .values(state=RunState.QUEUED, **again),
    )
    if run is None:
        found = await get(session, run_id)
        if found.erased:
            raise ConflictError(
                f"run {run_id} learned from a task that is deleted: it cannot be retried, start a new one"
            )
        state = found.state
        raise ConflictError(f"run {run_id} is {state}: only one that failed or was cancelled can be retried")
    return run


async def write(session: AsyncSession, changes: Update) -> tables.TrainingRun | None:
    """Execute an update of one run and notify its followers. Returns the run, or None if no row matched."""
    run: tables.TrainingRun | None = await session.scalar(
        changes.returning(_run).execution_options(populate_existing=True)
    )
    if run is not None:
        await notify(session, run.id)
    return run


async def notify(session: AsyncSession, run_id: UUID) -> None:
    """Tell followers, once this is committed, that the run has changed."""
    await notifications.notify(session, notifications.RUNS, run_id)


async def claim(
    session: AsyncSession, owner: str, lease_seconds: float, run_id: UUID | None = None
) -> tables.TrainingRun | None:
    """The oldest queued run, or the one given; None if it is not queued, or its project has a running one.

    Two processes never get the same run, nor two of the same project.
    """
    other = aliased(_run)
    training = exists().where(other.project_id == _run.project_id, other.state == RunState.RUNNING)
    which = [_run.state == RunState.QUEUED, ~training]
    if run_id is not None:
        which.append(_run.id == run_id)
    started_at = func.coalesce(_run.started_at, func.clock_timestamp())
    now = {"state": RunState.RUNNING, "started_at": started_at, "part": None}
    claimed = _queue.claim(owner, lease_seconds, *which, **now)
    try:
        async with session.begin_nested():
            return await write(session, claimed)
    except IntegrityError:  # another run of the project was claimed at the same moment
        return None


async def extend(
    session: AsyncSession, run_id: UUID, owner: str, lease_seconds: float, *, part: RunPart | None = None
) -> bool:
    """Renew the lease, and store how much is done, if that is new.

    Returns whether cancellation was requested. Raises ConflictError if the owner lost the run.
    """
    renewed = _queue.extend(owner, lease_seconds, _run.id == run_id)
    if part is not None:
        renewed = renewed.values(part=msgspec.to_builtins(part))
        await notify(session, run_id)
    return await _write_held(session, run_id, owner, renewed)


async def hold(session: AsyncSession, run_id: UUID, owner: str) -> bool:
    """Keep others from claiming the run until this transaction ends. Returns and raises as `extend`."""
    held = select(_run.cancel_requested).where(_queue.held(owner, _run.id == run_id)).with_for_update(read=True)
    return _surely_held(await session.scalar(held), run_id, owner)


async def append_step(
    session: AsyncSession, run_id: UUID, owner: str, index: int, metrics: dict[str, Json], *, total: int = 0
) -> bool:
    """Store a step's metrics and delete later steps, which a lost attempt left. Returns and raises as `extend`."""
    progress = update(_run).where(_queue.held(owner, _run.id == run_id))
    cancelled = await _write_held(session, run_id, owner, progress.values(step=index, steps=total or _run.steps))
    step, row = tables.RunStep, {"metrics": metrics, "created_at": func.clock_timestamp()}
    await session.execute(delete(step).where(step.run_id == run_id, step.index > index))
    await session.execute(
        insert(step)
        .values(run_id=run_id, index=index, **row)
        .on_conflict_do_update(index_elements=["run_id", "index"], set_=row)
    )
    await notify(session, run_id)
    return cancelled


async def finish(
    session: AsyncSession,
    run_id: UUID,
    owner: str,
    state: RunState,
    *,
    failure: str | None = None,
    result: dict[str, Json] | None = None,
) -> bool:
    """False, and nothing is written: the run is no longer the owner's."""
    if state not in RUN_MOVES[RunState.RUNNING] - {RunState.QUEUED}:
        raise ValueError(f"a run cannot end as {state}")
    end = {"state": state, "failure": failure, "result": result, "part": None}
    finished = _queue.finish(owner, _run.id == run_id, **end)
    return await write(session, finished) is not None


async def hand_back(session: AsyncSession, run_id: UUID, owner: str) -> bool:
    """Requeue a run whose process was asked to stop; the attempt does not count."""
    state = case((_run.cancel_requested, RunState.CANCELLED), else_=RunState.QUEUED)
    finished_at = case((_run.cancel_requested, func.clock_timestamp()), else_=None)
    changes = {"state": state, "finished_at": finished_at, "attempt": _run.attempt - 1, "part": None}
    return await write(session, _queue.hand_back(owner, _run.id == run_id, **changes)) is not None


async def requeue_expired(session: AsyncSession) -> list[UUID]:
    """Requeue runs whose lease has expired; returns their ids. One that was lost too often fails instead.

    Steps repeated after a loss do not count as progress; otherwise a step that kills its process would be
    repeated indefinitely.
    """
    losses = case((_run.step > _run.lost_at, 1), else_=_run.losses + 1)
    too_often = and_(~_run.cancel_requested, losses >= MAX_LOSSES)
    state = case((_run.cancel_requested, RunState.CANCELLED), (too_often, RunState.FAILED), else_=RunState.QUEUED)
    expired = _queue.requeue_expired(
        state=state,
        part=None,
        losses=losses,
        lost_at=func.greatest(_run.lost_at, _run.step),
        failure=case((too_often, _LOST), else_=None),
        finished_at=case((_run.cancel_requested | too_often, func.clock_timestamp()), else_=None),
    )
    rows = (await session.execute(expired.returning(_run.id, _run.state))).all()
    for row in rows:
        await notify(session, row.id)
    return [row.id for row in rows if row.state == RunState.QUEUED]


async def expire(session: AsyncSession, run_id: UUID, owner: str) -> None:
    """End the lease of a process that is known to be dead."""
    await session.execute(_queue.extend(owner, 0, _run.id == run_id))


async def startable(session: AsyncSession) -> list[UUID]:
    """The oldest queued run of each project that has none running."""
    other = aliased(_run)
    running = exists().where(other.project_id == _run.project_id, other.state == RunState.RUNNING)
    oldest = (
        select(_run.id)
        .ext(distinct_on(_run.project_id))
        .where(_run.state == RunState.QUEUED, ~running)
        .order_by(_run.project_id, _run.created_at, _run.id)
    )
    return list(await session.scalars(oldest))


async def _write_held(session: AsyncSession, run_id: UUID, owner: str, changes: Update) -> bool:
    return _surely_held(await session.scalar(changes.returning(_run.cancel_requested)), run_id, owner)


def _surely_held(cancelled: bool | None, run_id: UUID, owner: str) -> bool:
    if cancelled is None:
        raise lease.lost("run", run_id, owner)
    return cancelled


async def store(session: AsyncSession, run_id: UUID, end: str) -> None:
    """Replace what is stored. Nothing is, once the run has been deleted."""
    row = select(_run.id, literal(end)).where(_run.id == run_id)
    await session.execute(
        insert(_log)
        .from_select(["run_id", "end"], row)
        .on_conflict_do_update(index_elements=["run_id"], set_={"end": end})
    )


async def read(session: AsyncSession, run_id: UUID) -> str | None:
    """At most its last 64 KiB, from the beginning of a line. None before its worker has copied it."""
    return await session.scalar(select(_log.end).where(_log.run_id == run_id))


async def report(session: AsyncSession, worker: str, environments: Sequence[EnvironmentInfo]) -> None:
    """Replace what the worker reported before. Call it at its start, and every REPORT_SECONDS."""
    names = [each.name for each in environments]
    for each in sorted(environments, key=lambda each: each.name):  # one order: workers of one host never deadlock
        values = {"version": each.version, "options": each.options, "reported_at": func.clock_timestamp()}
        await session.execute(
            insert(_environment)
            .values(worker=worker, name=each.name, **values)
            .on_conflict_do_update(index_elements=["worker", "name"], set_=values)
        )
    gone = (_environment.worker == worker) & _environment.name.not_in(names)
    await session.execute(
        delete(_environment).where(or_(gone, _environment.reported_at < from_now(-_FORGET_SECONDS)))
    )


async def installed(session: AsyncSession) -> list[EnvironmentInfo]:
    """Those of all live workers, by name: an entry for each version with its options."""
    rows = await session.scalars(
        select(_environment)
        .where(_environment.reported_at > from_now(-_EXPIRY_SECONDS))
        .order_by(_environment.name, _environment.version)
    )
    found: list[EnvironmentInfo] = []
    for row in rows:
        info = EnvironmentInfo(row.name, row.version, row.options)
        if info not in found:
            found.append(info)
    return found


async def workers(session: AsyncSession) -> list[str]:
    """The hosts of the live workers."""
    hosts = select(_environment.worker).where(_environment.reported_at > from_now(-_EXPIRY_SECONDS))
    return sorted(set(await session.scalars(hosts)))

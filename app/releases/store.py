"""Releases in the database, and what the training runs that made them learned from.

Only this module changes which release serves. What runs learned from served tasks is recorded before they do,
and found again by task.
"""

from collections.abc import Collection, Sequence
from uuid import UUID

import msgspec
from sqlalchemy import ColumnElement, Select, and_, case, func, literal, or_, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import InstrumentedAttribute

from app.base.errors import ConflictError, NotFoundError
from app.base.run_settings import RunKind
from app.base.values import BASE, HOSTED, Json, hosted_id
from app.db import tables
from app.db.notify import RELEASES, notify
from app.db.queries import in_array
from app.db.tables import RELEASE_MOVES, SERVING_STATES, ReleaseState, RunState
from app.projects import store as projects
from app.projects.kinds import kind_of
from app.skills import moves

_REJECT = "reject"  # the `verdict` of the evidence against a release
_WAITING = "waiting"  # in the evidence of one that passed
_NEXT = "next"  # in the evidence: what a person may do, until it serves
SERVING = (ReleaseState.PASSED, ReleaseState.CANARY, ReleaseState.ACTIVE)  # or about to
_task, _run, _release, _learned = tables.Task, tables.TrainingRun, tables.Release, tables.RunTask


async def active(session: AsyncSession, project_id: UUID) -> tables.Release:
    """The release that new tasks are pinned to."""
    release = await find_active(session, project_id)
    if release is None:
        raise NotFoundError(f"project {project_id} has no active release: activate one")
    return release


async def get(session: AsyncSession, release_id: UUID, project_id: UUID | None = None) -> tables.Release:
    """Raises NotFoundError also for a release of another project than the one given."""
    release = await session.get(tables.Release, release_id)
    if release is None or project_id not in (None, release.project_id):
        raise NotFoundError(f"no release has the id {release_id}; GET /v1/releases lists them")
    return release


async def numbered(session: AsyncSession, project_id: UUID, number: int) -> tables.Release:
    row = tables.Release
    release = await session.scalar(select(row).where(row.project_id == project_id, row.number == number))
    if release is None:
        raise NotFoundError(f"the project has no release {number}: GET /v1/releases lists them")
    return release


async def of_project(
    session: AsyncSession, project_id: UUID, *which: ColumnElement[bool]
) -> Sequence[tables.Release]:
    """Newest first."""
    query = (
        select(tables.Release)
        .where(tables.Release.project_id == project_id, *which)
        .order_by(tables.Release.number.desc())
    )
    return (await session.scalars(query)).all()


async def propose(
    session: AsyncSession, project_id: UUID, model: str, training_run_id: UUID | None = None
) -> tables.Release:
    """Add a candidate with the next number. A run that began again gets its earlier candidate."""
    await lock(session, project_id)
    release = tables.Release
    if training_run_id is not None:
        before = await session.scalar(
            select(release).where(release.training_run_id == training_run_id, release.model == model)
        )
        if before is not None:
            return before
    last = await session.scalar(select(func.max(release.number)).where(release.project_id == project_id))
    row = release(project_id=project_id, number=(last or 0) + 1, model=model, training_run_id=training_run_id)
    session.add(row)
    await session.flush()
    return await _notified(session, row)


async def record_evidence(session: AsyncSession, release_id: UUID, evidence: dict[str, Json]) -> tables.Release:
    """Store the gate's figures; the state stays."""
    release = await locked(session, release_id)
    release.evidence = evidence
    await session.flush()
    return await _notified(session, release)


async def note_waiting(session: AsyncSession, release_id: UUID, cause: str) -> None:
    """Say in the evidence of a release that passed why it does not serve yet, until its state changes. Raises
    NotFoundError.
    """
    release = await locked(session, release_id)
    before = release.evidence or {}
    if release.state is ReleaseState.PASSED and before.get(_WAITING) != cause:
        release.evidence = before | {_WAITING: cause}
        await session.flush()
        await _notified(session, release)


async def approve(
    session: AsyncSession, release_id: UUID, evidence: dict[str, Json], canary_percent: float | None = None
) -> tables.Release:
    """Record that the candidate passed the gate. It serves, fully or as a canary, once the model servers have
    verified its weights. Raises NotFoundError, and ConflictError if it is no longer a candidate.
    """
    release = await locked(session, release_id)
    release.evidence, release.canary_percent = evidence, canary_percent or None
    return await move(session, release, ReleaseState.PASSED)


async def reopen(session: AsyncSession, release_id: UUID, evidence: dict[str, Json]) -> tables.Release:
    """Make it a candidate again, for a person to decide: its reference no longer serves. Raises as `approve`."""
    release = await locked(session, release_id)
    release.evidence = evidence
    return await move(session, release, ReleaseState.CANDIDATE)


async def serving(session: AsyncSession, project_id: UUID | None = None) -> Sequence[tuple[str, tables.Release]]:
    """Active releases and canaries of one project or all, each after the name of its project."""
    release = tables.Release
    query = (
        select(tables.Project.name, release)
        .join(release, release.project_id == tables.Project.id)
        .where(release.state.in_(SERVING_STATES))
        .order_by(tables.Project.name, release.number)
    )
    if project_id is not None:
        query = query.where(release.project_id == project_id)
    return [(name, row) for name, row in await session.execute(query)]


async def local_projects(session: AsyncSession) -> Sequence[UUID]:
    """The projects whose active release needs the model servers."""
    row = tables.Release
    query = select(row.project_id).where(row.state == ReleaseState.ACTIVE, is_local(row.model))
    return (await session.scalars(query)).all()


def is_local(model: ColumnElement[str] | InstrumentedAttribute[str]) -> ColumnElement[bool]:
    """It is on the model servers: the base model, or an adapter."""
    return ~model.startswith(HOSTED)


async def numbers(session: AsyncSession, release_ids: Collection[UUID]) -> dict[UUID, int]:
    """By id, of those that there are."""
    query = select(tables.Release.id, tables.Release.number).where(in_array(tables.Release.id, release_ids))
    return {row.id: row.number for row in await session.execute(query)}


async def in_state(session: AsyncSession, state: ReleaseState) -> Sequence[tables.Release]:
    """Releases of all projects in a state, oldest first."""
    query = select(tables.Release).where(tables.Release.state == state)
    return (await session.scalars(query.order_by(tables.Release.created_at))).all()


async def activate(session: AsyncSession, release_id: UUID, *, allow_rejected: bool = False) -> tables.Release:
    """Pin new tasks to it from now on; the one that was active retires. A watch of its weights goes on if they are
    also those of this release, else it ends. Repeating it is harmless.

    Raises NotFoundError, and ConflictError for rejected weights (see `check_can_serve`), unless `allow_rejected`.
    """
    release = await locked(session, release_id)
    if release.state == ReleaseState.ACTIVE:
        return release
    await check_can_serve(session, release, allow_rejected=allow_rejected)
    former = await find_active(session, release.project_id)
    release.watched_against = release.watched_since = None
    if former is not None:
        _hand_over_watch(former, release)
        await move(session, former, ReleaseState.RETIRED)
    release.activated_at, release.canary_percent = func.clock_timestamp(), None
    return await move(session, release, ReleaseState.ACTIVE)


async def check_can_serve(
    session: AsyncSession, release: tables.Release, *, allow_rejected: bool
) -> tables.Release | None:
    """The rejected release that `allow_rejected` overrides, for the audit log; None if there is none.

    Weights stay rejected whatever release of the project proposes them again, until the gate passes that one.
    Raises ConflictError for them unless `allow_rejected` is set.
    """
    rejected = await _rejection(session, release)
    if rejected is None or allow_rejected:
        return rejected
    same = rejected.id == release.id
    what = f"release {release.number} was" if same else f"the weights of release {release.number} were"
    where = "see its evidence" if same else f"as release {rejected.number}, see its evidence"
    raise ConflictError(
        f"{what} rejected ({where}): "
        "to serve it anyway, activate it with allow_rejected=true (sage releases --allow-rejected)"
    )


async def reject(session: AsyncSession, release_id: UUID, evidence: dict[str, Json]) -> tables.Release:
    """Reject a candidate. Raises NotFoundError, and ConflictError for a release that serves or has served."""
    release = await locked(session, release_id)
    release.evidence = {"verdict": _REJECT, **evidence}  # it stays when the state changes
    return await move(session, release, ReleaseState.REJECTED)


async def find_active(session: AsyncSession, project_id: UUID) -> tables.Release | None:
    return await session.scalar(
        select(tables.Release).where(
            tables.Release.project_id == project_id, tables.Release.state == ReleaseState.ACTIVE
        )
    )


async def with_weights(
    session: AsyncSession, release: tables.Release, *which: ColumnElement[bool]
) -> Sequence[tables.Release]:
    """The releases with the weights of one that have served as active ones, newest first.

    A changed API document or prompt makes a release with the same weights.
    """
    row = tables.Release
    query = select(row).where(row.project_id == release.project_id, row.model == release.model, *which)
    return (await session.scalars(query.where(row.activated_at.is_not(None)).order_by(row.number.desc()))).all()


async def locked(session: AsyncSession, release_id: UUID) -> tables.Release:
    """The release, after waiting for other changes of its project's releases. Held until the transaction ends."""
    await lock(session, (await get(session, release_id)).project_id)
    return await session.get_one(tables.Release, release_id, populate_existing=True)


async def _rejection(session: AsyncSession, release: tables.Release) -> tables.Release | None:
    """The release that was rejected with the weights of a candidate, preferably itself."""
    if release.state not in (ReleaseState.CANDIDATE, ReleaseState.REJECTED):
        return None  # the gate passed it, or it served before
    row = tables.Release
    same = row.id == release.id
    if release.model != BASE:
        same |= (row.project_id == release.project_id) & (row.model == release.model)
    rejected = (row.state == ReleaseState.REJECTED) | (row.evidence["verdict"].astext == _REJECT)
    newest = select(row).where(same, rejected).order_by((row.id == release.id).desc(), row.number.desc()).limit(1)
    found: tables.Release | None = await session.scalar(newest)
    return found


def _hand_over_watch(former: tables.Release, release: tables.Release) -> None:
    """End the watch of the former release. It goes on with one that has the same weights."""
    if former.watched_against is None:
        return
    watch, reason = (former.evidence or {}).get("watch", {}), f"release {release.number} was activated"
    if former.model == release.model and former.watched_against != release.id:
        release.watched_against, release.watched_since = former.watched_against, former.watched_since
        release.evidence = {**(release.evidence or {}), "watch": watch}
        reason += ", and is watched instead"
    former.watched_against = former.watched_since = None
    former.evidence = {**(former.evidence or {}), "watch": {**watch, "state": "ended", "reason": reason}}


async def lock(session: AsyncSession, project_id: UUID) -> None:
    """Serialize changes of a project's releases. Rows that refer to the project may still be added."""
    project = tables.Project
    held = select(project.id).where(project.id == project_id).with_for_update(key_share=True)
    if await session.scalar(held) is None:
        raise NotFoundError(f"no project has the id {project_id}")


async def move(session: AsyncSession, release: tables.Release, state: ReleaseState) -> tables.Release:
    """Change the state of a `locked` release. Raises ConflictError if that move is not allowed, or the release
    would serve with a hosted model that was removed.
    """
    if state not in RELEASE_MOVES[release.state]:
        raise ConflictError(f"release {release.number} is {release.state}: it cannot be {state}")
    if state in SERVING and (model_id := hosted_id(release.model)) is not None:
        entry = tables.HostedModel
        if await session.scalar(select(entry.id).where(entry.id == model_id)) is None:
            raise ConflictError(f"the hosted model of release {release.number} was removed: activate another one")
    before, release.state = release.state, state
    done = {_WAITING, _NEXT} if state in SERVING_STATES else {_WAITING}
    if release.evidence and not done.isdisjoint(release.evidence):
        release.evidence = {name: value for name, value in release.evidence.items() if name not in done}
    on_trial = ReleaseState.CANARY in (before, state)
    await session.flush()
    if on_trial:
        await moves.announce(session, release.id, release.project_id)
    if before is ReleaseState.CANARY and state is not ReleaseState.REJECTED:
        settings = projects.settings_of(await projects.by_id(session, release.project_id))
        if settings.skills == "open":  # every skill is offered at once
            await moves.end_trial(session, release.id, release.project_id)
    return await _notified(session, release)


async def _notified(session: AsyncSession, release: tables.Release) -> tables.Release:
    """Notify the servers of the project. Returns the release as stored."""
    await notify(session, RELEASES, release.id)
    await session.refresh(release)
    return release


class LearningRun(msgspec.Struct, frozen=True):
    """A training run that learned from a task, or continued an adapter that did."""

    id: UUID
    state: RunState
    recorded: bool  #: False: an earlier version executed it, which recorded no tasks; it may have


class LearnedRelease(msgspec.Struct, frozen=True):
    """A release with the weights of such a run."""

    id: UUID
    number: int
    state: ReleaseState
    model: str  #: the adapter's hash
    run_id: UUID | None


class Traces(msgspec.Struct, frozen=True):
    """What remembers some tasks."""

    runs: list[LearningRun]  # oldest first
    releases: list[LearnedRelease]
    readers: set[UUID]  # the runs that read the tasks themselves, and may keep a copy


async def record(
    session: AsyncSession,
    run_id: UUID,
    started_from: str,
    task_ids: Collection[UUID],
    learning_rate: float | None = None,
) -> bool:
    """Record the model that a run continues, at which rate, and the served tasks that it learns from. Safe to
    repeat.

    Until the transaction ends, the tasks cannot be erased. False, and nothing is recorded: some were erased since
    they were read.
    """
    there = select(_task.id).where(in_array(_task.id, task_ids)).with_for_update(read=True, key_share=True)
    found = (await session.scalars(there)).all()
    if len(found) < len(set(task_ids)):
        return False
    begun = {"started_from": started_from, "learning_rate": learning_rate}
    await session.execute(update(_run).where(_run.id == run_id).values(begun))
    rows = select(literal(run_id), _task.id).where(in_array(_task.id, found))
    await session.execute(insert(_learned).from_select(["run_id", "task_id"], rows).on_conflict_do_nothing())
    return True


async def served_kinds(session: AsyncSession, project_ids: Collection[UUID]) -> dict[UUID, set[str]]:
    """The kinds of tasks that releases learned from which have been active, by project: where they were placed, or
    see `kind_of`.
    """
    placed = tables.PlacedTask
    label = func.coalesce(_task.scenario, placed.kind)
    own_instruction = case((label.is_(None), _task.instruction))
    query = (
        select(_task.project_id, label, own_instruction)
        .join(_learned, _learned.task_id == _task.id)
        .outerjoin(placed, placed.task_id == _task.id)
        .join(_release, _release.training_run_id == _learned.run_id)
        .where(in_array(_release.project_id, project_ids), _release.activated_at.is_not(None))
        .distinct()
    )
    found: dict[UUID, set[str]] = {each: set() for each in project_ids}
    for project_id, known, instruction in await session.execute(query):
        found[project_id].add(kind_of(instruction or "", known))
    return found


async def traces(session: AsyncSession, project_id: UUID, tasks: Select[UUID]) -> Traces:
    """What learned from some tasks of a project."""
    recorded = set(await session.scalars(select(_learned.run_id).where(_learned.task_id.in_(tasks))))
    unrecorded = set(await session.scalars(_unrecorded(project_id, tasks)))
    known, possible = await _with_successors(session, recorded), await _with_successors(session, unrecorded)
    runs = select(_run.id, _run.state).where(in_array(_run.id, known | possible)).order_by(_run.created_at)
    columns = (_release.id, _release.number, _release.state, _release.model, _release.training_run_id)
    releases = select(*columns).where(in_array(_release.training_run_id, known | possible))
    return Traces(
        runs=[LearningRun(run_id, state, run_id in known) for run_id, state in await session.execute(runs)],
        releases=[LearnedRelease(*row) for row in await session.execute(releases.order_by(_release.number))],
        readers=recorded | unrecorded,
    )


def _unrecorded(project_id: UUID, tasks: Select[UUID]) -> Select[UUID]:
    """Runs of an earlier version that may have learned from one of the tasks, or continued an adapter that did."""
    first_end = select(func.min(_task.finished_at)).where(_task.id.in_(tasks)).scalar_subquery()
    imported = func.coalesce(_run.settings["data"].astext, "") != ""
    reads_tasks = or_(_run.kind == RunKind.LOGGED, and_(_run.kind == RunKind.SFT, ~imported))
    continues = func.coalesce(_run.settings["start"].astext, "active") == "active"
    return select(_run.id).where(
        _run.project_id == project_id,
        _run.kind != RunKind.EXAM,  # it learns nothing
        or_(reads_tasks, continues),
        _run.started_from.is_(None),
        _run.started_at > first_end,
        _run.step > 0,
    )


async def _with_successors(session: AsyncSession, runs: Collection[UUID]) -> set[UUID]:
    """The runs, and those that continued an adapter that one of them made."""
    found, new = set(runs), set(runs)
    while new:
        made = select(tables.Adapter.hash).where(in_array(tables.Adapter.run_id, new))
        proposed = select(_release.model).where(in_array(_release.training_run_id, new))
        later = select(_run.id).where(or_(_run.started_from.in_(made), _run.started_from.in_(proposed)))
        new = set(await session.scalars(later)) - found
        found |= new
    return found

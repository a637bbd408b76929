"""Decides about skills that a changed API document may have broken.

One that passes a test on recorded calls gets its former state back. Of any other that only reads, a task of its
own, which can only read too, is to write a new version. A skill that changes something is never tried again: it
is retired, as is one that its tasks did not repair. Any number of processes may: each skill is leased to one.

The test sends nothing. The skill runs twice on each call of it that tasks recorded. On the documents that the
task had, it has to make the recorded calls again. On the present ones, which check all arguments, and with the
answers that they still allow, it has to make the same calls and return the same.
"""

import hashlib
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec
import structlog
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from app.apis.calls.gateway import Gateway
from app.apis.calls.recorded_calls import projected
from app.apis.calls.skill_guard import GuardedSkill, SkillGuard
from app.apis.catalog import Catalog, Operation
from app.base import telemetry
from app.base.errors import AppError, LimitError
from app.base.loop import Loop, Looping
from app.base.values import GOOD, Call, SkillCall, Trajectory
from app.db import tables
from app.db.database import TRANSIENT, Sessions
from app.db.lease import new_claim
from app.db.tables import LIVE_SKILLS, TASK_END_STATES, AuditAction, RepairOutcome, SkillState, TaskState
from app.projects import audit
from app.projects import store as projects
from app.projects.settings import Limits
from app.sandbox.protocol import Function
from app.skills import moves, repairs
from app.skills import store as skills
from app.skills.admission import stored_manifest
from app.skills.keeping import call_of, repeatable
from app.tasks import store as tasks
from app.tasks.execution import TaskExecutor

log = structlog.get_logger(__name__)

_TASKS = 3  # the latest ones that used it
_CALLS = 3  # of each
_MAX_TRIES = 2  # tasks that are to repair one skill
_ATTEMPTS = 20  # claims of one row, its waits for tasks not counted
_LEASE = 300.0  # seconds
_PAUSE = 5.0  # between looks for what is due, and at a task under way
_LATER = 900.0  # seconds until a limit is looked at again
_PRIORITY = -100  # behind what people wait for


class RecordedTest(NamedTuple):
    """On how many recorded calls a skill was tested, and why it failed, if it did."""

    calls: int
    failure: str | None = None


class _Run(NamedTuple):
    passed: bool
    shown: str  # a hash of what it printed and returned
    reason: str = ""


async def run_recorded(executor: TaskExecutor, skill: tables.Skill) -> RecordedTest:
    """Raises SandboxError if the sandbox fails."""
    present = (await executor.context(skill.project_id, None, serves=False)).catalog
    count = 0
    for row, trajectory in await _recorded(executor, skill):
        former = (await executor.context(skill.project_id, row.release_id, serves=False)).catalog
        for call, made in list(repeatable(trajectory, skill.name))[:_CALLS]:
            expected = await _run(executor, row, former, skill, call, made)
            if not expected.passed:
                continue  # it cannot be repeated: it depends on what was not recorded
            count += 1
            now_made = [_as_now(each, former.find(each.api), present.find(each.api)) for each in made]
            got = await _run(executor, row, present, skill, call, now_made)
            if not got.passed or got.shown != expected.shown:
                reason = got.reason or "it returns something else"
                return RecordedTest(count, f"{reason} (on calls of task {row.id})")
    return RecordedTest(count)


async def _recorded(executor: TaskExecutor, skill: tables.Skill) -> Sequence[tuple[tables.Task, Trajectory]]:
    task, offer, trajectory = tables.Task, tables.SkillOffer, tables.Trajectory
    query = (
        select(task, trajectory.record)
        .join(offer, offer.task_id == task.id)
        .join(trajectory, trajectory.task_id == task.id)
        .where(offer.skill_id == skill.id, offer.returned > 0)
        .order_by(task.created_at.desc(), task.id)
        .limit(_TASKS)
    )
    async with executor.sessions() as session:
        return [
            (row, msgspec.msgpack.decode(record, type=Trajectory)) for row, record in await session.execute(query)
        ]


async def _run(
    executor: TaskExecutor,
    row: tables.Task,
    catalog: Catalog,
    skill: tables.Skill,
    call: SkillCall,
    made: Sequence[Call],
) -> _Run:
    gateway = Gateway(catalog, executor.client)
    gateway.guard = SkillGuard({skill.name: GuardedSkill.of(stored_manifest(skill), skill.source)})
    gateway.replay(made, closed=True)
    agent = executor.agent
    session = await agent.sandbox.open(
        gateway.names(),
        gateway,
        agent.limits.session,
        prelude=[Function(skill.name, skill.source)],
        seed=row.seed,
        now=row.started_at,
    )
    try:
        seen = await session.run(f"import json\nprint(repr({call_of(skill.source, skill.name, call.arguments)}))")
    finally:
        await session.close()
    shown = hashlib.sha256(seen.stdout.encode()).hexdigest()
    if seen.error is not None:
        return _Run(False, shown, f"it raises {seen.error.strip().splitlines()[-1][:300]}")
    if gateway.in_doubt is not None or len(gateway.take_calls()) != len(made):
        return _Run(False, shown, gateway.in_doubt or "it makes fewer calls")
    return _Run(True, shown)


def _as_now(call: Call, old: Operation | None, new: Operation | None) -> Call:
    """With the answer that the present document allows."""
    if old is None or new is None or call.error is not None or old.returns == new.returns:
        return call
    return msgspec.structs.replace(call, result=projected(call.result, old.returns, new.returns))


class SkillRepairs(Looping):
    """Works on what is due while it is entered and `may` run."""

    def __init__(
        self,
        sessions: Sessions,
        executor: TaskExecutor,
        *,
        owner: str,
        may: Callable[[], bool] = lambda: True,
        pause: float = _PAUSE,
    ) -> None:
        """`owner` is the process."""
        self._sessions, self._executor, self._may = sessions, executor, may
        self._owner, self._pause = owner, pause
        self._loop = Loop("repair skills", self._next, pause, expected=TRANSIENT)

    async def _next(self) -> float | None:
        """Return 0 if there was something to do."""
        if not self._may():
            return None
        async with self._sessions.begin() as session:
            row = await repairs.claim(session, new_claim(self._owner), _LEASE)
            skill = None if row is None else await skills.get(session, row.skill_id)
        if row is None or skill is None:
            return None
        tested = None
        try:
            if not row.tested and skill.state is SkillState.QUARANTINED:
                tested = await run_recorded(self._executor, skill)
            async with self._sessions.begin() as session:
                await self._decide(session, row, tested)
        except LimitError as error:
            await self._wait(row, _LATER, str(error))
        except AppError as error:
            await self._wait(row, self._pause * row.attempt, str(error))
        return 0

    async def _wait(self, row: tables.SkillRepair, seconds: float, cause: str) -> None:
        log.warning("a skill waits to be repaired", skill=str(row.skill_id), cause=cause)
        async with self._sessions.begin() as session:
            if row.attempt < _ATTEMPTS:
                await repairs.go_on_later(session, row, seconds)
            else:
                await repairs.finish(session, row, RepairOutcome.LEFT, [*row.tried, cause])

    async def _decide(self, session: AsyncSession, row: tables.SkillRepair, tested: RecordedTest | None) -> None:
        """Under the lock of the project's skills, so that what is decided on does not change meanwhile."""
        skill, rev = await moves.locked(session, row.skill_id)
        if not await repairs.is_held(session, row):
            return
        tried = list(row.tried)
        if tested is not None:
            tried.append(_said(tested))
        if skill.state is not SkillState.QUARANTINED or skill.moved_by != moves.CHANGES:
            await _end(session, row, RepairOutcome.LEFT, [*tried, f"it was moved meanwhile: it is {skill.state}"])
        elif (by := await _successor(session, row, skill)) is not None:
            tried.append(f"{by.name} version {by.version} does its work")
            await _move(session, skill, SkillState.SUPERSEDED, rev, tried[-1])
            await _end(session, row, RepairOutcome.REPAIRED, tried)
        elif tested is not None and tested.failure is None and (tested.calls or row.fits):
            state = row.was if tested.calls else SkillState.PROBATION
            if state is SkillState.ACTIVE:
                await moves.activate(session, skill, rev, actor=moves.CHANGES, reason=tried[-1])
            else:
                await _move(session, skill, state, rev, tried[-1])
            await _end(session, row, RepairOutcome.RESTORED, tried)
        else:
            await self._repair(session, row, skill, rev, tried)

    async def _repair(
        self, session: AsyncSession, row: tables.SkillRepair, skill: tables.Skill, rev: int, tried: list[str]
    ) -> None:
        """Go on with the task that is under way, or submit the next one, or end it."""
        task = await tasks.get(session, row.task_id) if row.task_id else None
        if task is not None and task.state not in TASK_END_STATES:
            await repairs.go_on_later(session, row, self._pause, tested=True, tried=tried, attempt=0)
            return
        if task is not None:
            failure = "" if task.failure is None else f" ({task.failure[:200]})"
            score = "" if task.score is None else f", scored {task.score:g}"
            tried.append(f"task {task.id} wrote no skill for it: it {task.state}{failure}{score}")
        limit = projects.settings_of(await projects.by_id(session, skill.project_id)).skill_repairs_per_day
        if not _only_reads(skill):
            reason = f"{tried[0]}; it changes something, so no task may repeat its work" if tried else ""
        elif row.tries >= _MAX_TRIES:
            reason = f"{row.tries} tasks did not repair it"
        elif not limit:
            await _end(session, row, RepairOutcome.LEFT, [*tried, "skill_repairs_per_day of the project is 0"])
            return
        elif await repairs.tasks_today(session, skill.project_id) >= limit:
            await repairs.go_on_later(session, row, _LATER, tested=True, tried=tried, task_id=None, attempt=0)
            return
        else:
            new = await self._submit(session, skill)
            progress = {"tested": True, "tried": tried, "tries": row.tries + 1, "task_id": new.id, "attempt": 0}
            await repairs.go_on_later(session, row, self._pause, **progress)
            return
        skill.held = False
        await _move(session, skill, SkillState.RETIRED, rev, reason)
        skill.former = row.was  # to which a person, or a rollback to the former document, restores it
        await _end(session, row, RepairOutcome.RETIRED, [*tried, reason])

    async def _submit(self, session: AsyncSession, skill: tables.Skill) -> tables.Task:
        maker = await session.get(tables.Task, skill.task_id) if skill.task_id else None
        new = tasks.NewTask(
            instruction=skill.instruction,
            scenario=skill.scenario,
            key_id=maker.key_id if maker else None,
            principal=skill.principal,
            priority=_PRIORITY,
            variables=maker.variables if maker else {},
            check_code=maker.check_code if maker else None,
            repairs=skill.id,
            pinned=True,
        )
        limits = Limits.defaults(self._executor.settings)
        task = await tasks.submit(session, skill.project_id, new, limits)
        about = {"skill": str(skill.id), "name": skill.name, "version": skill.version, "task": str(task.id)}
        action = AuditAction.SKILL_REPAIR
        await audit.add(session, skill.project_id, None, moves.CHANGES, action, about)
        return task


def _said(tested: RecordedTest) -> str:
    if tested.failure is not None:
        return f"tested on recorded calls: {tested.failure}"
    if not tested.calls:
        return "no recorded call could test it"
    return f"tested on {tested.calls} recorded calls: the same calls, and the same results"


def _only_reads(skill: tables.Skill) -> bool:
    """As its manifest says: one of an earlier version says nothing."""
    manifest = stored_manifest(skill)
    return all(each.safe or api.startswith("api_docs.") for api, each in manifest.operations.items())


async def _successor(session: AsyncSession, row: tables.SkillRepair, skill: tables.Skill) -> tables.Skill | None:
    """A newer version that is offered, or what the task that was to repair it wrote."""
    live = await moves.live_versions(session, skill.project_id, skill.name)
    newer = [each for each in live if each.version > skill.version and not each.held]
    if newer:
        return newer[0]
    task = await tasks.get(session, row.task_id) if row.task_id else None
    if task is None or task.state is not TaskState.DONE or (task.score is not None and task.score < GOOD):
        return None
    written = await skills.made_by(session, task.id)
    return next((each for each in written if each.state in LIVE_SKILLS and each.id != skill.id), None)


async def _move(session: AsyncSession, skill: tables.Skill, state: SkillState, rev: int, reason: str) -> None:
    await moves.move(session, skill, state, rev, actor=moves.CHANGES, reason=reason)


async def _end(session: AsyncSession, row: tables.SkillRepair, outcome: RepairOutcome, tried: list[str]) -> None:
    await repairs.finish(session, row, outcome, tried)
    telemetry.SKILL_REPAIRS.labels(outcome).inc()
    log.info("a skill that an API change touched", skill=str(row.skill_id), outcome=outcome, tried=tried)

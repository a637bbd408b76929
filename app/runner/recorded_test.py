"""Tests a skill on recorded calls against APIs that have changed: nothing is sent.

It runs twice on each call of it that tasks recorded. On the documents that the task had, it has to make the
recorded calls again. On the present ones, which check all arguments, and with the answers that they still allow,
it has to make the same calls and return the same.
"""

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
from sqlalchemy import select

from app.apis.calls.gateway import Gateway
from app.apis.calls.recorded_calls import projected
from app.apis.calls.skill_guard import GuardedSkill, SkillGuard
from app.apis.catalog import Catalog, Operation
from app.base.values import Call, SkillCall, Trajectory
from app.db import tables
from app.runner.execute import TaskExecutor
from app.sandbox.protocol import Function
from app.skills.admission import stored_manifest
from app.skills.keeping import call_of, repeatable

_TASKS = 3  # the latest ones that used it
_CALLS = 3  # of each


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
            got = await _run(executor, row, present, skill, call, _as_now(made, former, present))
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


def _as_now(made: Sequence[Call], former: Catalog, present: Catalog) -> list[Call]:
    """The calls with the answers that the present documents allow."""
    return [_projected(call, _find(former, call.api), _find(present, call.api)) for call in made]


def _projected(call: Call, old: Operation | None, new: Operation | None) -> Call:
    if old is None or new is None or call.error is not None or old.returns == new.returns:
        return call
    return msgspec.structs.replace(call, result=projected(call.result, old.returns, new.returns))


def _find(catalog: Catalog, api: str) -> Operation | None:
    app, _, name = api.partition(".")
    return catalog.apps[app].operations.get(name) if app in catalog.apps else None

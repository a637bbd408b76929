"""The scored tasks of a project that say all in their instructions: what exams are made of."""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import Select, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from app.base.values import GOOD
from app.db import tables
from app.db.queries import in_array
from app.db.results import executed, proven

_READ = 20_000  # tasks, newest first
_LOOKED_AT = 5_000  # of those without a scenario: what they called
_BATCH = 200
_COLUMNS = ("id", "instruction", "scenario", "variables", "check_code", "score", "finished_at")

_task, _placed, _skill, _trajectory = tables.Task, tables.PlacedTask, tables.Skill, tables.Trajectory


class UnlabelledTask(msgspec.Struct, frozen=True, kw_only=True):
    """A scored task without a scenario, and what shows which others are like it."""

    id: UUID
    instruction: str
    slots: frozenset[str] = frozenset()  # words of the instruction that its skills took as arguments
    operations: frozenset[str] = frozenset()  # that answered
    solved: bool = True
    kind: str | None = None  # if it was placed before


class _Call(msgspec.Struct):
    api: str
    error: str | None = None


class _Turn(msgspec.Struct):
    calls: tuple[_Call, ...] = ()


class _Record(msgspec.Struct):
    """What is read of a trajectory: without its tokens that takes a quarter of the time."""

    turns: tuple[_Turn, ...] = ()


def scored(project_id: UUID) -> Select[Any]:
    """Newest first."""
    return (
        select(*(getattr(_task, name) for name in _COLUMNS))
        .where(_task.project_id == project_id, proven().is_not(None), _task.skill_run.is_(None))
        .where(_task.conversation == "")  # the instruction says all
        .where(executed())
        .order_by(_task.finished_at.desc(), _task.id)
        .limit(_READ)
    )


async def unlabelled(session: AsyncSession, project_id: UUID) -> list[UnlabelledTask]:
    """The latest scored tasks without a scenario whose trajectories were kept, oldest first."""
    latest = scored(project_id).subquery()
    query = select(latest.c.id, latest.c.instruction, latest.c.score, _placed.kind)
    query = query.outerjoin(_placed, _placed.task_id == latest.c.id).where(latest.c.scenario.is_(None))
    newest = query.order_by(latest.c.finished_at.desc(), latest.c.id).limit(_LOOKED_AT)
    rows = (await session.execute(newest)).all()[::-1]
    slots = await _slots(session, project_id) if rows else {}
    found = []
    for start in range(0, len(rows), _BATCH):
        some = rows[start : start + _BATCH]
        operations = await _operations(session, [row.id for row in some])
        found += [
            UnlabelledTask(
                id=row.id,
                instruction=row.instruction,
                slots=frozenset(slots.get(row.id, ())),
                operations=operations[row.id],
                solved=row.score >= GOOD,
                kind=row.kind,
            )
            for row in some
            if row.id in operations
        ]
    return found


async def place(session: AsyncSession, kinds: Mapping[UUID, str]) -> None:
    """Keep the kinds of tasks without a scenario; one that was placed before stays where it is."""
    there = select(_task.id).where(in_array(_task.id, kinds)).with_for_update(read=True, key_share=True)
    rows = [{"task_id": task_id, "kind": kinds[task_id]} for task_id in await session.scalars(there)]
    if rows:
        await session.execute(insert(_placed).on_conflict_do_nothing(), rows)


async def kinds_of(session: AsyncSession, task_ids: Collection[UUID]) -> dict[UUID, str]:
    """Of the tasks that were placed."""
    query = select(_placed.task_id, _placed.kind).where(in_array(_placed.task_id, task_ids))
    return {row.task_id: row.kind for row in await session.execute(query)}


async def _slots(session: AsyncSession, project_id: UUID) -> dict[UUID, set[str]]:
    """Of the tasks that wrote skills."""
    written = select(_skill.task_id, _skill.slots).where(_skill.project_id == project_id)
    found: dict[UUID, set[str]] = defaultdict(set)
    for task_id, words in await session.execute(written):
        if task_id is not None:
            found[task_id].update(words)
    return found


async def _operations(session: AsyncSession, task_ids: Sequence[UUID]) -> dict[UUID, frozenset[str]]:
    """Of the tasks whose trajectories were kept."""
    query = select(_trajectory.task_id, _trajectory.record).where(in_array(_trajectory.task_id, task_ids))
    return {
        task_id: frozenset(
            call.api
            for turn in msgspec.msgpack.decode(record, type=_Record).turns
            for call in turn.calls
            if call.error is None
        )
        for task_id, record in await session.execute(query)
    }

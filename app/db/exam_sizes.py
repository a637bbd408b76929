"""How much the exams in the database can examine."""

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from typing import Literal, TypeAlias
from uuid import UUID

import msgspec
from sqlalchemy import and_, func, select
from sqlalchemy.ext.asyncio import AsyncSession

from app.base.values import GOOD, Stop
from app.db import learning, tables
from app.db.queries import in_array
from app.projects.settings import kind_of, sets_of
from app.run_settings import MIN_JUDGED, MIN_KINDS, MIN_SCENARIOS

Ground: TypeAlias = Literal["recorded", "staging"]


class ExamSize(msgspec.Struct, frozen=True, kw_only=True):
    """How much an exam examines. A scenario has up to three tasks of one kind: of one label or, without labels, of
    instructions that are alike, where `holdout_percent` tells kinds apart, and else of one instruction.
    """

    tasks: int = 0
    kinds: int = 0
    scenarios: int = 0
    checks: int = 0  #: tasks with a check
    logged: int = 0  #: tasks that were served
    checked_kinds: int = 0  #: with a task that has a check
    checked_scenarios: int = 0  #: of tasks with a check
    solved_kinds: int = 0  #: with a task that was solved and has its record
    solved_scenarios: int = 0  #: of such tasks
    learned: int = 0  #: tasks of kinds that active releases had learned from before they were held out

    @property
    def decides_on(self) -> list[Ground]:
        """On what the gate can try enough of it."""
        judged: dict[Ground, tuple[int, int]] = {
            "recorded": (self.solved_kinds, self.solved_scenarios),
            "staging": (self.checked_kinds, self.checked_scenarios),
        }
        needed = max(MIN_KINDS, MIN_JUDGED * self.kinds)
        return [ground for ground, (kinds, sets) in judged.items() if kinds >= needed and sets >= MIN_SCENARIOS]


async def of(session: AsyncSession, exam_ids: Collection[UUID]) -> dict[UUID, ExamSize]:
    exam, member, task, record = tables.Exam, tables.ExamTask, tables.Task, tables.Trajectory
    placed = tables.PlacedTask
    is_solved = and_(task.stop == Stop.COMPLETED, task.score >= GOOD, record.id.is_not(None))
    query = (
        select(
            member.exam_id,
            exam.project_id,
            member.instruction,
            func.coalesce(member.scenario, placed.kind).label("label"),
            member.task_id,
            member.check_code.is_not(None).label("has_check"),
            func.coalesce(is_solved, False).label("is_solved"),
        )
        .join(exam, exam.id == member.exam_id)
        .outerjoin(task, task.id == member.task_id)
        .outerjoin(record, record.task_id == member.task_id)
        .outerjoin(placed, placed.task_id == member.task_id)
        .where(in_array(member.exam_id, exam_ids))
    )
    by_exam: dict[UUID, list[_Member]] = defaultdict(list)
    for row in (await session.execute(query)).mappings():
        found = _Member(**row)
        by_exam[found.exam_id].append(found)
    projects = {each.project_id for members in by_exam.values() for each in members}
    learned = await learning.served_kinds(session, projects)
    return {each: _size(by_exam[each], learned) for each in exam_ids}


class _Member(msgspec.Struct, frozen=True, kw_only=True):
    """A task of an exam."""

    exam_id: UUID
    project_id: UUID
    instruction: str
    label: str | None  # its scenario, or the kind where it was placed
    task_id: UUID | None
    has_check: bool
    is_solved: bool

    @property
    def kind(self) -> str:
        return kind_of(self.instruction, self.label)


def _size(members: Collection[_Member], learned: dict[UUID, set[str]]) -> ExamSize:
    kinds = Counter(each.kind for each in members)
    checked = Counter(each.kind for each in members if each.has_check)
    solved = Counter(each.kind for each in members if each.is_solved)
    return ExamSize(
        tasks=len(members),
        kinds=len(kinds),
        scenarios=_scenarios(kinds),
        checks=checked.total(),
        logged=sum(each.task_id is not None for each in members),
        checked_kinds=len(checked),
        checked_scenarios=_scenarios(checked),
        solved_kinds=len(solved),
        solved_scenarios=_scenarios(solved),
        learned=sum(each.kind in learned[each.project_id] for each in members),
    )


def _scenarios(kinds: Mapping[str, int]) -> int:
    return sum(map(sets_of, kinds.values()))

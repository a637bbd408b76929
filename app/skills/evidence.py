"""The evidence for and against a skill: its uses by principal, its replays, and how its scenario fared. And for an
operation: whether tasks that succeeded have called it.
"""

from collections.abc import Collection, Sequence
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import (
    ColumnElement,
    CompoundSelect,
    Select,
    Subquery,
    Uuid,
    case,
    exists,
    false,
    func,
    literal,
    or_,
    select,
    union,
    union_all,
)
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from app.base.values import GOOD
from app.db import tables
from app.db.queries import in_array
from app.db.results import independent, proven

ENOUGH_WITHHELD = 10  # tasks from which a skill was withheld; from here on only they are compared
_LATEST = 5_000  # tasks that each question reads, scored or not: a popular skill has any number
MOST_TASKS = 1_000  # that are looked through for calls, the latest: no index has these by API

_task, _offer, _withheld, _replay = tables.Task, tables.SkillOffer, tables.WithheldSkill, tables.SkillReplay


class Outcomes(msgspec.Struct, frozen=True):
    """Numbers of scored tasks."""

    successes: int = 0
    failures: int = 0

    @property
    def mostly_good(self) -> bool:
        return self.successes > self.failures

    @property
    def total(self) -> int:
        return self.successes + self.failures

    @property
    def rate(self) -> float | None:
        """The share of successes; None without tasks."""
        return self.successes / self.total if self.total else None


class SkillEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """What is known about a skill by its latest tasks. Uses are those in which it returned, without the one that
    wrote it.

    `offered` are the tasks that were offered it, `withheld` those that would have been, which chance decided.
    """

    maker_score: float | None = None  #: of the task that wrote it
    others: bool = False  #: the project's latest tasks are of other principals, too
    uses: dict[str, Outcomes] = {}  #: by principal
    replays_matched: int = 0
    replays_failed: int = 0
    violations: int = 0
    with_it: Outcomes = Outcomes()  #: tasks of its scenario since it was written that used it
    without_it: Outcomes = Outcomes()  #: the others
    offered: Outcomes = Outcomes()
    withheld: Outcomes = Outcomes()

    @property
    def is_randomized(self) -> bool:
        """Whether its effect is that of `offered` compared with `withheld`.

        Tasks of its scenario that did not use it chose so: they are compared only while few are withheld.
        """
        return self.withheld.total >= ENOUGH_WITHHELD or not self.without_it.total


async def add_replay(session: AsyncSession, task_id: UUID, skill_id: UUID, matched: bool) -> None:
    """Record a replay on the calls of a task. The first one counts. None is recorded of a task that is erased."""
    there = select(_task.id, literal(skill_id), literal(matched)).where(_task.id == task_id)
    rows = there.with_for_update(read=True, key_share=True)
    new = insert(_replay).from_select(["task_id", "skill_id", "matched"], rows)
    await session.execute(new.on_conflict_do_nothing())


async def matched_often(session: AsyncSession, skill_ids: Collection[UUID], tasks: int) -> set[UUID]:
    """The skills whose replays matched on at least so many tasks, and on all."""
    counted = (
        select(_replay.skill_id)
        .where(in_array(_replay.skill_id, skill_ids))
        .group_by(_replay.skill_id)
        .having(func.count() >= tasks, func.bool_and(_replay.matched))
    )
    return set(await session.scalars(counted))


async def of_skill(session: AsyncSession, skill: tables.Skill) -> SkillEvidence:
    """The evidence as of now."""
    maker = await session.get(_task, skill.task_id) if skill.task_id else None
    author = None if maker is None else maker.key_id
    maker_score = await session.scalar(select(independent(author)).where(_task.id == skill.task_id))
    counted = select(_replay.matched, func.count().label("tasks")).where(_replay.skill_id == skill.id)
    replays = {row.matched: row.tasks for row in await session.execute(counted.group_by(_replay.matched))}
    several, others = await _others(session, skill, author)
    with_it, without_it = await _of_scenario(session, skill)
    offered, withheld = await _by_chance(session, skill)
    return SkillEvidence(
        maker_score=maker_score,
        others=others,
        uses=await _uses(session, skill, author, several=several),
        replays_matched=replays.get(True, 0),
        replays_failed=replays.get(False, 0),
        violations=skill.violations,
        with_it=with_it,
        without_it=without_it,
        offered=offered,
        withheld=withheld,
    )


async def latest_outcomes(session: AsyncSession, skill: tables.Skill, tasks: int) -> Outcomes:
    """Of the latest tasks that wrote it, used it, or on whose calls it matched another version of its name.

    A task without a score counts, as a failure, if the skill only raised in it, and the agent chose to call it.
    """
    raised = exists().where(
        _offer.task_id == _task.id, _offer.skill_id == skill.id, _offer.calls > 0, _offer.returned == 0
    )
    called = select(_called(skill).c.task_id)
    used = union(called, _matched(skill), select(literal(skill.task_id, Uuid))).subquery()
    query = (
        select(func.coalesce(proven(), 0))
        .join(used, used.c.task_id == _task.id)
        .where(_task.finished_at.is_not(None), or_(proven().is_not(None), raised & _task.skill_run.is_(None)))
        .order_by(_task.finished_at.desc(), _task.id)
        .limit(tasks)
    )
    good = [score >= GOOD for score in await session.scalars(query)]
    return Outcomes(sum(good), len(good) - sum(good))


async def touched_by(session: AsyncSession, task_id: UUID) -> list[UUID]:
    """The skills whose evidence a task's score is part of: those it wrote, used, or was replayed with."""
    wrote = select(tables.Skill.id).where(tables.Skill.task_id == task_id)
    used = select(_offer.skill_id).where(_offer.task_id == task_id, _offer.calls > 0)
    replayed = select(_replay.skill_id).where(_replay.task_id == task_id)
    return list(await session.scalars(union(wrote, used, replayed)))


async def in_probation(session: AsyncSession, project_id: UUID, names: Collection[str]) -> Sequence[tables.Skill]:
    """The versions of these names that are on probation, newest first."""
    skill = tables.Skill
    query = (
        select(skill)
        .where(skill.project_id == project_id, skill.name.in_(names), skill.state == tables.SkillState.PROBATION)
        .order_by(skill.version.desc())
    )
    return (await session.scalars(query)).all()


async def _others(session: AsyncSession, skill: tables.Skill, author: UUID | None) -> tuple[bool, bool]:
    """Whether other keys than the author's submit tasks, and whether there are tasks of other principals."""
    latest = (
        select(_task.principal, _task.key_id)
        .where(_task.project_id == skill.project_id)
        .order_by(_task.created_at.desc())
        .limit(_LATEST)
    ).subquery()
    foreign = latest.c.key_id != author if author else false()
    other = latest.c.principal != skill.principal
    own = latest.c.key_id == author if author else false()
    found = select(func.bool_or(foreign), func.bool_or(other), func.bool_or(other & own.is_not(True)))
    several, all_named, named_by_others = (await session.execute(found)).one()
    return bool(several), bool(named_by_others if several else all_named)


async def _uses(
    session: AsyncSession, skill: tables.Skill, author: UUID | None, *, several: bool
) -> dict[str, Outcomes]:
    """By principal. If several keys submit tasks, all that the author's key names are one: the skill's own."""
    named: ColumnElement[str] = _task.principal.expression
    if several:
        named = case((_task.key_id == author, skill.principal), else_=named)
    used = (
        select(named.label("principal"), independent(author).label("score"))
        .where(_task.id.in_(_used_in(skill)), _task.id.is_distinct_from(skill.task_id))
        .subquery()
    )
    counts = _good_and_bad(used.c.score)
    rows = await session.execute(select(used.c.principal, *counts).group_by(used.c.principal))
    return {principal: Outcomes(good, bad) for principal, good, bad in rows}


async def _of_scenario(session: AsyncSession, skill: tables.Skill) -> tuple[Outcomes, Outcomes]:
    """Scored tasks of its scenario that came since it was written, with it and without it."""
    if skill.scenario is None:
        return Outcomes(), Outcomes()
    latest = (
        select(_task.id, proven().label("score"))
        .where(_task.project_id == skill.project_id, _task.scenario == skill.scenario)
        .where(_task.created_at >= skill.created_at, _task.id.is_distinct_from(skill.task_id))
        .order_by(_task.created_at.desc())
        .limit(_LATEST)
    ).subquery()
    used = latest.c.id.in_(_used_in(skill))
    rows = await session.execute(select(used, *_good_and_bad(latest.c.score)).group_by(used))
    found = {bool(with_it): Outcomes(good, bad) for with_it, good, bad in rows}
    return found.get(True, Outcomes()), found.get(False, Outcomes())


async def _by_chance(session: AsyncSession, skill: tables.Skill) -> tuple[Outcomes, Outcomes]:
    """Scored tasks that were offered it, and those from which it was withheld."""
    arms = [
        select(row.task_id, row.created_at, literal(withheld).label("withheld"))
        .where(row.skill_id == skill.id)
        .order_by(row.created_at.desc())
        .limit(_LATEST)
        .subquery()
        for row, withheld in ((_offer, False), (_withheld, True))
    ]
    both = union_all(*map(select, arms)).subquery()
    latest = select(both).order_by(both.c.created_at.desc()).limit(_LATEST).subquery()
    rows = await session.execute(
        select(latest.c.withheld, *_good_and_bad(proven()))
        .join(_task, _task.id == latest.c.task_id)
        .where(_task.finished_at.is_not(None), _task.skill_run.is_(None))
        .group_by(latest.c.withheld)
    )
    found = {withheld: Outcomes(*counts) for withheld, *counts in rows}
    return found.get(False, Outcomes()), found.get(True, Outcomes())


def _used_in(skill: tables.Skill) -> CompoundSelect[UUID]:
    """Tasks in which it returned, or on whose calls it matched another version of its name."""
    called = _called(skill)
    return union(select(called.c.task_id).where(called.c.returned > 0), _matched(skill))


def _called(skill: tables.Skill) -> Subquery:
    """The offers of it that the agent called."""
    calls = select(_offer).where(_offer.skill_id == skill.id, _offer.calls > 0)
    return calls.order_by(_offer.created_at.desc()).limit(_LATEST).subquery()


def _matched(skill: tables.Skill) -> Select[UUID]:
    return select(_replay.task_id).where(_replay.skill_id == skill.id, _replay.matched)


def _good_and_bad(score: ColumnElement[Any]) -> tuple[ColumnElement[int], ColumnElement[int]]:
    """SQL: how many of a group's rows have such scores. Rows without one are neither."""
    return func.count().filter(score >= GOOD), func.count().filter(score < GOOD)


async def has_called(session: AsyncSession, project_id: UUID, api: str) -> bool:
    """Whether one of the project's latest tasks that a person, a check or a verifier scored as a success has
    called this "app.operation", and the call returned. Events that were deleted are not seen.
    """
    task, event = tables.Task, tables.TaskEvent
    good = (
        select(task.id)
        .where(task.project_id == project_id, task.score >= GOOD, proven() >= GOOD)
        .order_by(task.created_at.desc(), task.id.desc())
        .limit(MOST_TASKS)
        .subquery()
    )
    data: Any = event.data
    made = exists().where(
        event.task_id == good.c.id, event.kind == "call", data["api"].astext == api, data["error"].astext.is_(None)
    )
    return await session.scalar(select(good.c.id).where(made).limit(1)) is not None

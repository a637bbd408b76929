"""The rows of the library: skills with what they did, in an order that a person chose."""

from collections.abc import Callable, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy.ext.asyncio import AsyncSession

from app.api.skill_value_view import SkillEffect
from app.db import skill_records, skills, tables
from app.db.skill_records import SkillRecords
from app.db.skill_uses import SkillStats
from app.release import one_look
from app.release.confidence_sequence import Interval

ROWS = 50


class Order(StrEnum):
    """What the library is sorted by: largest first."""

    SAVED = "saved"  # tokens, in all tasks together
    VALUE = "value"  # what is certain of it: the lower end of the interval
    USES = "uses"
    SUCCESS = "success"
    LAST_USE = "last_use"
    NEWEST = "newest"


class LibraryRow(msgspec.Struct, frozen=True, kw_only=True):
    """`saved` are generated tokens, of all tasks that were offered the skill."""

    skill: tables.Skill
    stats: SkillStats
    last_used_at: datetime | None
    value: Interval | None
    saved: Interval | None
    tasks: int  # behind these: offered it, and not
    without: int


class LibraryPage(msgspec.Struct, frozen=True, kw_only=True):
    """`best` is the skill that saves most, if one is known to save anything."""

    rows: Sequence[LibraryRow]
    total: int
    number: int  # of this page, from 1
    last: int
    best: LibraryRow | None


async def read_library(session: AsyncSession, only: skills.SkillFilter, order: Order, number: int) -> LibraryPage:
    """A page beyond the last one is the last one."""
    assert only.project_id is not None
    measured = Measured(await skill_records.of_project(session, only.project_id))
    ids = measured.sort(await skills.ids(session, only), order)
    last = max(1, -(-len(ids) // ROWS))
    number = min(max(1, number), last)
    shown = ids[(number - 1) * ROWS : number * ROWS]
    best = measured.best()
    known = {row.id: row for row in await skills.of_ids(session, {*shown, *([best] if best else [])})}
    return LibraryPage(
        rows=[measured.row(known[each]) for each in shown if each in known],
        total=len(ids),
        number=number,
        last=last,
        best=measured.row(known[best]) if best in known else None,
    )


class Measured:
    """What the skills of a project did, and what they are worth."""

    def __init__(self, records: SkillRecords) -> None:
        self._records = records
        self._saved = {each: self._read_saved(each) for each in records.compared}

    def best(self) -> UUID | None:
        """The skill that saves most, of those that are known to save anything."""
        certain = {each: saved.mean for each, saved in self._saved.items() if saved and saved.low > 0}
        return max(certain, key=lambda each: certain[each], default=None)

    def sort(self, ids: Sequence[UUID], order: Order) -> Sequence[UUID]:
        """The largest first. Equal ones stay in their order."""
        key: Callable[[UUID], Any] | None = {
            Order.SAVED: self._mean_saved,
            Order.VALUE: self._least_value,
            Order.USES: self._records.uses,
            Order.SUCCESS: self._success,
            Order.LAST_USE: self._last_use,
            Order.NEWEST: None,
        }[order]
        return ids if key is None else sorted(ids, key=key, reverse=True)

    def row(self, skill: tables.Skill) -> LibraryRow:
        return LibraryRow(
            skill=skill,
            stats=self._records.stats(skill.id),
            last_used_at=self._records.last_used_at(skill.id),
            value=self._value(skill.id),
            saved=self._saved.get(skill.id),
            tasks=self._records.with_it(skill.id).score.number,
            without=self._records.without_it(skill.id).score.number,
        )

    def _read_saved(self, skill_id: UUID) -> Interval | None:
        with_it, without = self._records.with_it(skill_id).tokens, self._records.without_it(skill_id).tokens
        costs = one_look.difference(with_it, without)
        return None if costs is None else less(costs, with_it.number)

    def _value(self, skill_id: UUID) -> Interval | None:
        return SkillEffect.of(self._records.with_it(skill_id), self._records.without_it(skill_id)).score

    def _mean_saved(self, skill_id: UUID) -> tuple[float, int]:
        """What saves nothing is sorted by its uses."""
        saved = self._saved.get(skill_id)
        return (saved.mean if saved else 0.0), self._records.uses(skill_id)

    def _least_value(self, skill_id: UUID) -> float:
        value = self._value(skill_id) if skill_id in self._records.compared else None
        return value.low if value else -1.0

    def _success(self, skill_id: UUID) -> tuple[float, int]:
        """Of equal shares, that of most uses is the most certain."""
        stats = self._records.stats(skill_id)
        return (stats.successes / stats.uses if stats.uses else -1.0), stats.uses

    def _last_use(self, skill_id: UUID) -> float:
        last = self._records.last_used_at(skill_id)
        return last.timestamp() if last else 0.0


def less(costs: Interval, tasks: int) -> Interval:
    """What is saved in so many tasks, if each costs so much more.

    >>> less(Interval(-2, -3, 1), 10)
    Interval(mean=20, low=-10, high=30)
    """
    return Interval(-costs.mean * tasks, -costs.high * tasks, -costs.low * tasks)

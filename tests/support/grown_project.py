"""A server whose project has been at work for three months: 30 releases, 2,000 skills, 10,000 tasks, as rows."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from random import Random
from uuid import UUID, uuid4

from sqlalchemy import insert
from sqlalchemy.ext.asyncio import AsyncSession

from app.base.values import Json, Stop
from app.db import queries, tables
from app.db.tables import ReleaseState
from tests.support.grown_releases import grow_releases
from tests.support.grown_runs import grow_examination, grow_runs
from tests.support.grown_skills import GrownSkill, grow_skills

_TASKS, _SKILLS = 10_000, 2_000
_DAYS = 90
_UNSCORED = 12  # the latest tasks
_AT_ONCE = 2_000  # rows of an insert
_WITHHELD = 0.1
_CANARY_SHARE = 0.2


@dataclass
class GrownProject:
    """Release 28 is active and watched, 30 is a canary; `best` is the skill that saves most."""

    id: UUID
    releases: dict[int, UUID]
    best: str
    runs: dict[str, UUID]  # by state


async def grow(session: AsyncSession, project: tables.Project) -> GrownProject:
    """The caller commits."""
    chance = Random(7)
    now = await queries.now(session)
    runs = await grow_runs(session, project.id, now, chance)
    releases = await grow_releases(session, project.id, now, runs["done"], chance)
    runs["examined"] = await grow_examination(session, project.id, releases[:3], now)
    grown = await grow_skills(session, project.id, releases, _SKILLS, now, chance)
    await _work(session, project.id, releases, grown, now, _TASKS, chance)
    numbers = {each.number: each.id for each in releases}
    return GrownProject(project.id, numbers, grown[0].name, runs)


async def _work(
    session: AsyncSession,
    project_id: UUID,
    releases: list[tables.Release],
    skills: list[GrownSkill],
    now: datetime,
    count: int,
    chance: Random,
) -> None:
    """Tasks of all days, each offered a skill or two, or withheld from them."""
    known = [each for each in releases if each.activated_at is not None]
    served = sorted(known, key=lambda each: each.activated_at or now, reverse=True)
    canary = next(each for each in releases if each.state is ReleaseState.CANARY)
    tasks: list[dict[str, Json]] = []
    offers: list[dict[str, Json]] = []
    withheld: list[dict[str, Json]] = []
    for number in range(count):
        began = now - timedelta(days=_DAYS) * (1 - number / count)
        release = next(each for each in served if each.activated_at and each.activated_at <= began)
        if canary.canary_at is not None and began > canary.canary_at and chance.random() < _CANARY_SHARE:
            release = canary
        fitting = _fitting(skills, number, chance)
        without = chance.random() < _WITHHELD
        task = _task(project_id, release, fitting[0], began, without, chance)
        if number >= count - _UNSCORED:
            task["score"] = None
        tasks.append(task)
        for position, skill in enumerate(fitting, start=1):
            edge = {"task_id": task["id"], "skill_id": skill.id}
            used = int(position == 1 and chance.random() < 0.85)
            more = {"position": position, "ranks": {"query_ngram": position}, "calls": used, "returned": used}
            withheld.append(edge) if without else offers.append(edge | more | {"created_at": began})
    for table, rows in ((tables.Task, tasks), (tables.SkillOffer, offers), (tables.WithheldSkill, withheld)):
        for start in range(0, len(rows), _AT_ONCE):
            await session.execute(insert(table), rows[start : start + _AT_ONCE])


def _fitting(skills: list[GrownSkill], number: int, chance: Random) -> list[GrownSkill]:
    """Half of the work is done with twenty skills."""
    first = number // 2 % 20 if number % 2 else chance.randrange(len(skills))
    second = (number * 7) % len(skills)
    return [skills[first]] if number % 3 or first == second else [skills[first], skills[second]]


def _task(
    project_id: UUID, release: tables.Release, skill: GrownSkill, began: datetime, without: bool, chance: Random
) -> dict[str, Json]:
    success = 0.45 + 0.01 * release.number + (0 if without else skill.gain)
    tokens = chance.gauss(900, 200) - (0 if without else skill.saving)
    return {
        "id": uuid4(),
        "project_id": project_id,
        "release_id": release.id,
        "instruction": f"{skill.instruction} of {chance.choice(_PEOPLE)}",
        "scenario": skill.scenario,
        "variables": {},
        "state": tables.TaskState.DONE,
        "stop": Stop.COMPLETED,
        "score": float(chance.random() < success),
        "checked": True,
        "turns": max(1, round(tokens / 180)),
        "generated_tokens": max(40, round(tokens)),
        "calls": 3,
        "attempt": 1,
        "created_at": began,
        "started_at": began,
        "finished_at": began + timedelta(seconds=chance.uniform(3, 60)),
    }


_PEOPLE = ("Iris", "Tom", "Anneliese", "Bao", "Chidi", "Dana", "Emre", "Fatima")

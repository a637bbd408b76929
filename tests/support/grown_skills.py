"""Skills of a project that has been at work for long: some that help much, many that help little."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise, product
from random import Random
from uuid import UUID, uuid4

from sqlalchemy import insert
from sqlalchemy.ext.asyncio import AsyncSession

from app.base.values import Json
from app.db import tables
from app.db.tables import SkillState

_VERBS = ("archive", "count", "forward", "find", "label", "list", "move", "sum", "close", "export")
_THINGS = ("mails", "invoices", "notes", "orders", "tickets", "files", "meetings", "contacts", "payments", "books")
_ASPECTS = ("of_person", "of_week", "by_label", "by_status", "over_limit")
_SOURCE = '''def {name}(who: str, limit: int = {limit}) -> int:
    """{instruction}, and return how many there were."""
    found = []
    page = 0
    while rows := apis.{app}.list_{app}(owner=who, page=page):
        found += [row for row in rows if row["amount"] <= limit]
        page += 1
    for row in found:
        apis.{app}.update_{app}(id=row["id"], status="{verb}d")
    return len(found)
'''
_OUT = (SkillState.SUPERSEDED, SkillState.RETIRED)


@dataclass(frozen=True)
class GrownSkill:
    """`gain` is added to the share of successes, `saving` taken from the tokens."""

    id: UUID
    name: str
    instruction: str
    scenario: str
    gain: float
    saving: float


async def grow_skills(
    session: AsyncSession,
    project_id: UUID,
    releases: list[tables.Release],
    count: int,
    now: datetime,
    chance: Random,
) -> list[GrownSkill]:
    """The first is worth most. One in ten is a version of the one before."""
    names = ["_".join(words) for words in product(_VERBS, _THINGS, _ASPECTS)]
    writers = await _writers(session, project_id, releases[0], now)
    rows: list[dict[str, Json]] = []
    for number in range(count):
        row = _row(names[number % len(names)], number // len(names) + 1, number, count, now)
        row |= {"project_id": project_id, "release_id": releases[0].id, "task_id": writers[number % len(writers)]}
        rows.append(row)
    await session.execute(insert(tables.Skill), rows)
    await _add_sets(session, releases, rows)
    project = await session.get_one(tables.Project, project_id)
    project.skill_rev = count
    return [_grown(row, number, chance) for number, row in enumerate(rows)]


def _grown(row: dict[str, Json], number: int, chance: Random) -> GrownSkill:
    gain, saving = (0.3, 450.0) if number == 0 else (chance.uniform(-0.05, 0.2), chance.uniform(-50, 200))
    return GrownSkill(row["id"], row["name"], row["instruction"], row["scenario"], gain, saving)


def _row(name: str, version: int, number: int, count: int, now: datetime) -> dict[str, Json]:
    verb, app = name.split("_")[:2]
    instruction = f"{verb} the {name.removeprefix(f'{verb}_').replace('_', ' ')}"
    source = _SOURCE.format(
        name=name, verb=verb, app=app, instruction=instruction.capitalize(), limit=version * 50
    )
    allowed = {
        f"{app}.list_{app}": {
            "method": "GET",
            "safe": True,
            "arguments": {"owner": ["parameter"], "page": ["number"]},
        },
        f"{app}.update_{app}": {
            "method": "PATCH",
            "safe": False,
            "arguments": {"id": [f"result:{app}.list_{app}"], "status": ["constant"]},
        },
    }
    state, reason, held = _state(number)
    return {
        "id": uuid4(),
        "name": name,
        "version": version,
        "state": state,
        "reason": reason,
        "held": held,
        "signature": f"{name}(who: str, limit: int) -> int",
        "source": source,
        "apis": sorted(allowed),
        "manifest": {"operations": allowed},
        "instruction": instruction,
        "slots": [],
        "scenario": f"{app}-{verb}",
        "principal": ("", "ann", "bob")[number % 3],
        "taint": "apis.mail.list_mails" if state is SkillState.QUARANTINED else "",
        "rev": number + 1,
        "created_at": now - timedelta(days=88) + timedelta(days=80) * (number / count),
    }


def _state(number: int) -> tuple[SkillState, str, bool]:
    if number % 17 == 9:
        reason = "it was written after text from outside: apis.mail.list_mails"
        return SkillState.QUARANTINED, reason, False
    if number % 41 == 30:
        return SkillState.QUARANTINED, "it may do more than the present version: it calls mail.send_mail", True
    if number % 23 == 11:
        return SkillState.RETIRED, "its name was retired", False
    if number < 60:
        return SkillState.ACTIVE, "the evidence is for it", False
    return SkillState.PROBATION, "it has to prove itself", False


async def _writers(session: AsyncSession, project_id: UUID, release: tables.Release, now: datetime) -> list[UUID]:
    began = now - timedelta(days=89)
    rows: list[dict[str, Json]] = [
        {
            "id": uuid4(),
            "project_id": project_id,
            "release_id": release.id,
            "instruction": f"archive the mails of person {number}",
            "variables": {},
            "state": tables.TaskState.DONE,
            "score": 1.0,
            "attempt": 1,
            "created_at": began,
            "started_at": began,
            "finished_at": began + timedelta(seconds=20),
        }
        for number in range(50)
    ]
    await session.execute(insert(tables.Task), rows)
    return [row["id"] for row in rows]


async def _add_sets(session: AsyncSession, releases: list[tables.Release], rows: list[dict[str, Json]]) -> None:
    """What each release that no longer serves was offered at its end, when the next one was made."""
    for release, after in pairwise(releases):
        if release.activated_at is None or release.state is tables.ReleaseState.ACTIVE:
            continue
        offered = [row for row in rows if row["created_at"] <= after.created_at and row["state"] not in _OUT]
        marked = [f"{row['id']} {row['state']}" for row in offered if not row["held"]]
        name = f"skills-{release.number}"
        session.add(tables.SkillSet(hash=name, skills=[each.removesuffix(" active") for each in marked]))
        await session.flush()
        release.skills = name

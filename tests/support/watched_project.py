"""A project whose second release was promoted by the gate and is watched, and its tasks."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import insert

from app.base.values import Json, Stop
from app.db import queries, tables
from app.db.database import Sessions
from app.db.tables import SkillState, TaskState
from app.projects import audit
from app.projects import store as projects
from app.releases import watch
from app.releases.reconciler import ReleaseReconciler
from app.skills import store as skills
from tests.support.canary_project import Project
from tests.support.ledger_project import until

PROMPT = "the prompt's hash"
WEBHOOK: dict[str, Json] = {
    "url": "http://hooks.test/",
    "secret": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
}


@dataclass
class WatchedProject:
    """Release 1 served tasks that scored 0.7 on average, and release 2 has replaced it."""

    project: Project
    before: UUID
    watched: UUID

    @property
    def sessions(self) -> Sessions:
        return self.project.sessions

    def reconciler(self) -> ReleaseReconciler:
        """As of an API process."""
        return ReleaseReconciler(self.sessions, self.project.promoter, PROMPT, pause=0.05, idle=0.05)

    async def release(self, number: int = 2) -> tables.Release:
        return await self.project.release(number)

    async def watch(self) -> dict[str, Any]:
        """The watch in the evidence of release 2."""
        found: dict[str, Any] = ((await self.release()).evidence or {})["watch"]
        return found

    async def served(self, ones: int, zeros: int, times: int = 1, scenario: str = "mail") -> None:
        """Tasks of release 2."""
        await scored(self.project, self.watched, ones, zeros, times, scenario)

    async def until_decided(self) -> tables.Release:
        async def is_decided() -> bool:
            return (await self.release()).watched_against is None

        await until(is_decided)
        return await self.release()

    async def learn(self, release_id: UUID, name: str = "greet", source: str = "x") -> UUID:
        """A skill that a task of the release wrote."""
        made = skills.NewSkill(
            name=name, signature="f()", source=source, apis=[], instruction="", release_id=release_id
        )
        async with self.sessions.begin() as session:
            return (await skills.add(session, self.project.id, made)).id

    async def standing(self, skill_id: UUID) -> tuple[SkillState, str]:
        async with self.sessions() as session:
            skill = await skills.get(session, skill_id)
            return skill.state, skill.reason

    async def actions(self) -> list[tuple[str, str]]:
        """Changes of releases in the audit log, oldest first."""
        async with self.sessions() as session:
            found = (await audit.page(session, self.project.id, limit=50)).items
        return [(each.actor, each.action) for each in reversed(found) if each.release_id is not None]


async def scored(
    project: Project,
    release_id: UUID,
    ones: int,
    zeros: int,
    times: int = 1,
    scenario: str | None = "mail",
    instruction: str = "say hello",
) -> None:
    """So many tasks of a kind with scores of 1 and 0, evenly mixed, so many times, one after the other."""
    async with project.sessions.begin() as session:
        now = await queries.now(session)
        values = {
            "project_id": project.id,
            "release_id": release_id,
            "instruction": instruction,
            "scenario": scenario,
            "state": TaskState.DONE,
            "stop": Stop.COMPLETED,
            "checked": True,
            "turns": 2,
            "started_at": now,
        }
        whole = ones + zeros
        scores = [float((at + 1) * ones // whole - at * ones // whole) for at in range(whole)] * times
        ended = (now + timedelta(microseconds=place) for place in range(len(scores)))
        rows = [{**values, "score": score, "finished_at": at} for score, at in zip(scores, ended, strict=True)]
        await session.execute(insert(tables.Task), rows)


async def promote(project: Project) -> WatchedProject:
    """Promote release 2 as the gate does."""
    before = (await project.release(1)).id
    await project.promoter.activate(project.candidate, "gate", skills="keep", on_activated=watch.begin)
    return WatchedProject(project, before, project.candidate)


async def change_settings(project: Project, **patch: Json) -> None:
    async with project.sessions.begin() as session:
        await projects.change_settings(session, project.id, patch)

"""A project with a candidate release, for tests of canaries: finished tasks, and a promoter."""

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import func, update

from app.base.values import Stop
from app.db import tables
from app.db.database import Sessions
from app.db.tables import TaskState
from app.projects import audit
from app.releases import canary
from app.releases import store as releases
from app.releases.canary import CanaryAction, CanaryDecision, CanaryRules
from app.releases.promotion import Promoter
from app.tasks import queue
from tests.support.recording_swapper import RecordingSwapper
from tests.support.rows import LEASE, project_row, task_row


@dataclass
class Project:
    """One project: release 1 is active, release 2 is a candidate."""

    sessions: Sessions
    id: UUID
    candidate: UUID
    servers: RecordingSwapper = field(default_factory=RecordingSwapper)

    @property
    def promoter(self) -> Promoter:
        return Promoter(self.sessions, self.servers, "the prompt's hash")

    async def release(self, number: int = 2) -> tables.Release:
        async with self.sessions() as session:
            return next(each for each in await releases.of_project(session, self.id) if each.number == number)

    async def propose(self, model: str = "cafe") -> UUID:
        async with self.sessions.begin() as session:
            return (await releases.propose(session, self.id, model)).id

    async def claimed(self, count: int) -> list[tables.Task]:
        """Claim so many new tasks."""
        async with self.sessions.begin() as session:
            for _ in range(count):
                await task_row(session, self.id)
            tasks = [await queue.claim(session, "me", LEASE) for _ in range(count)]
        return [task for task in tasks if task is not None]

    async def ended(self, release_id: UUID, score: float | None, count: int = 1, **columns: Any) -> list[UUID]:
        """Add so many finished tasks that were pinned to the release, one after the other."""
        values = {
            "state": TaskState.DONE,
            "stop": Stop.COMPLETED,
            "score": score,
            "checked": score is not None,
            "turns": 2,
            "generated_tokens": 100,
            "started_at": func.clock_timestamp(),
        } | columns
        made = []
        async with self.sessions.begin() as session:
            for place in range(count):
                task = await task_row(session, self.id)
                finished = func.clock_timestamp() + timedelta(microseconds=place)
                whole = {"release_id": release_id, "finished_at": finished} | values
                await session.execute(update(tables.Task).where(tables.Task.id == task.id).values(whole))
                made.append(task.id)
        return made


async def open_project(sessions: Sessions) -> Project:
    async with sessions.begin() as session:
        project = await project_row(session)
        candidate = await releases.propose(session, project.id, "f00d")
    return Project(sessions, project.id, candidate.id)


async def begin(project: Project, percent: float = 50.0) -> tables.Release:
    return await canary.begin(project.promoter, project.sessions, project.candidate, percent, "key ops")


async def evaluate(project: Project, rules: CanaryRules | None = None) -> CanaryDecision:
    async with project.sessions() as session:
        release = await releases.get(session, project.candidate)
        return (await canary.evaluate(session, release, rules or CanaryRules())).decision


async def apply_decision(project: Project) -> CanaryAction:
    return (await canary.apply_decision(project.promoter, project.sessions, project.candidate)).decision.action


async def entries(project: Project) -> list[tables.AuditEntry]:
    """Of the audit log, newest first."""
    async with project.sessions() as session:
        return (await audit.page(session, project.id, limit=9)).items

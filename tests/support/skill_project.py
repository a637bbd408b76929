"""A project whose tasks write and use one skill, for tests of its states."""

from collections.abc import Sequence
from uuid import UUID

import msgspec
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from app.apis.calls.skill_guard import AllowedOperation, SkillManifest
from app.base.values import Json, ScoreSource, Stop
from app.db import tables
from app.db.tables import SkillState, TaskState
from app.projects import audit
from app.projects import store as projects
from app.skills import admission, evidence, offers
from app.skills import moves as moves
from app.skills import store as skills
from app.skills.admission import admit, serving
from app.tasks import feedback
from app.tasks import store as tasks
from tests.support.rows import offer_of, record_offers

NARROW = SkillManifest({"mail.list": AllowedOperation("GET", True, {})})
WIDE = SkillManifest({**NARROW.operations, "supervisor.show_passwords": AllowedOperation("GET", True, {})})


class SkillProject:
    """A project whose tasks write and use one skill."""

    def __init__(self, session: AsyncSession, project_id: UUID) -> None:
        self.session = session
        self.id = project_id
        self.scenario: str | None = "s"
        self.key: UUID | None = None  # that submits tasks

    async def policy(self, name: str) -> None:
        await projects.change_settings(self.session, self.id, {"skills": name})

    async def task(self, principal: str = "ann", score: float | None = None) -> tables.Task:
        """A task that has ended."""
        new = tasks.NewTask(instruction="go", scenario=self.scenario, key_id=self.key, principal=principal)
        row = await tasks.submit(self.session, self.id, new)
        row.state, row.stop, row.score = TaskState.DONE, Stop.COMPLETED, score
        row.started_at = row.finished_at = row.created_at
        await self.session.flush()
        return row

    async def write(
        self,
        source: str = "one",
        *,
        principal: str = "ann",
        taint: str = "",
        manifest: SkillManifest = NARROW,
        score: float | None = None,
        release_id: UUID | None = None,
    ) -> tables.Skill:
        task = await self.task(principal, score)
        new = skills.NewSkill(
            name="greet",
            signature="greet()",
            source=source,
            apis=list(manifest.operations),
            instruction="go",
            scenario=self.scenario,
            task_id=task.id,
            release_id=release_id,
            principal=principal,
            taint=taint,
            manifest=msgspec.to_builtins(manifest),
        )
        return await admit(self.session, self.id, new)

    async def use(
        self,
        skill: tables.Skill,
        principal: str,
        score: float = 1.0,
        *,
        replayed: bool = True,
        scored_by: UUID | None = None,
        check: float | None = None,
    ) -> None:
        """A task that used the skill, and its scores: of its check, and of a person, `scored_by` a key or not."""
        task = await self.task(principal, check)
        task.score_source = None if check is None else ScoreSource.CHECK
        await record_offers(self.session, task.id, [offer_of(skill)])
        [(offer, _)] = await offers.to_task(self.session, task.id)
        offer.calls = offer.returned = 1
        if replayed:
            await evidence.add_replay(self.session, task.id, skill.id, True)
        await feedback.add(self.session, task.id, score, scored_by=scored_by)
        await admission.scored(self.session, task.id, score)
        await self.session.refresh(skill)

    async def withhold(self, skill: tables.Skill, score: float) -> None:
        """A task that had to do without the skill by chance."""
        task = await self.task(score=score)
        self.session.add(tables.WithheldSkill(task_id=task.id, skill_id=skill.id))
        await self.session.flush()

    async def offered(self, principal: str) -> int | None:
        """The version that the principal's tasks are offered."""
        found = serving(await moves.live_versions(self.session, self.id, "greet"), principal)
        return found.version if found else None

    async def states(self) -> list[tuple[int, SkillState]]:
        return [(each.version, each.state) for each in await skills.versions(self.session, self.id, "greet")]

    async def audited(self) -> list[tuple[Json, ...]]:
        """Version, former and new state, and reason of each move, oldest first."""
        entries = (await audit.page(self.session, self.id, limit=50)).items
        moves = [each for each in entries if each.action == tables.AuditAction.SKILL_MOVED]
        return [tuple(each.detail[name] for name in ("version", "from", "to", "reason")) for each in moves[::-1]]


async def changed_since(session: AsyncSession, project_id: UUID, rev: int) -> Sequence[tables.Skill]:
    """Changed skills of any state, in the order of the changes."""
    query = (
        select(tables.Skill)
        .where(tables.Skill.project_id == project_id, tables.Skill.rev > rev)
        .order_by(tables.Skill.rev, tables.Skill.version)
        .execution_options(populate_existing=True)
    )
    return (await session.scalars(query)).all()

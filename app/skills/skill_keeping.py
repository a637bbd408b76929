"""Keeps the functions that a task wrote as skills, with their manifest and provenance."""

import asyncio
from collections.abc import Sequence
from uuid import UUID

import structlog

from app.apis.catalog import Catalog
from app.base.secrets import SecretValues
from app.base.values import Offer, Trajectory
from app.db import lease, offers, results, skills, tables
from app.db.database import Sessions, reading
from app.db.tables import LIVE_SKILLS, SkillState
from app.skills.extract import Draft
from app.skills.library import Library
from app.skills.provenance import SkillOrigin, taints_of
from app.skills.validate_drafts import validate_drafts
from app.skills.written_manifest import manifests_of

log = structlog.get_logger(__name__)

_HOLDS_SECRET = "it holds a secret that this task has met"


class SkillKeeping:
    """Decides which functions of a task become skills."""

    def __init__(self, sessions: Sessions, library: Library) -> None:
        self._sessions = sessions
        self._library = library

    async def keep(
        self, row: tables.Task, owner: str, catalog: Catalog, trajectory: Trajectory, secrets: SecretValues
    ) -> None:
        """Store the functions that the task wrote and that pass the checks; a resumed task stores each once.

        Raises ConflictError if another runner has the task.
        """
        validated = await asyncio.to_thread(validate_drafts, trajectory, catalog)
        kept = [draft.name for draft in validated.kept]
        said = secrets.mask_fields({"kept": kept, "refused": validated.refused})
        log.debug("skills of a task", task=str(row.id), **said)
        if not kept:
            return
        async with reading(self._sessions) as session:
            already = {skill.name for skill in await skills.made_by(session, row.id)}
            shown = await offers.to_task(session, row.id)
        drafts = without_secrets(validated.kept, secrets)
        if refused := [draft for draft in validated.kept if draft not in drafts]:
            await self._refuse(row, refused, secrets)
        drafts = [draft for draft in drafts if draft.name not in already]
        if not drafts:
            return
        unproven = [skill.name for _, skill in shown if _last_live(skill) is SkillState.QUARANTINED]
        provenance = SkillOrigin(
            task_id=row.id,
            release_id=row.release_id,
            scenario=row.scenario,
            principal=row.principal,
            manifests=await asyncio.to_thread(manifests_of, drafts, trajectory, catalog),
            taints=await asyncio.to_thread(taints_of, drafts, trajectory, catalog, unproven),
            catalog=catalog,
        )
        stored = await self._library.save(
            row.project_id, drafts, provenance, claim=lambda session: lease.hold(session, row.id, owner)
        )
        await self._report(row.id, stored)

    async def _report(self, task_id: UUID, stored: Sequence[Offer]) -> None:
        async with self._sessions.begin() as session:
            for offer in stored:
                await results.append(session, task_id, "skill", offers.skill_event("written", offer))

    async def _refuse(self, row: tables.Task, drafts: Sequence[Draft], secrets: SecretValues) -> None:
        """Report skills that hold a secret, without it."""
        async with self._sessions.begin() as session:
            for draft in drafts:
                data = {"status": "refused", "name": secrets.mask(draft.name), "reason": _HOLDS_SECRET}
                log.warning("a skill was refused", task=str(row.id), name=data["name"], reason=_HOLDS_SECRET)
                await results.append(session, row.id, "skill", data)


def without_secrets(drafts: Sequence[Draft], secrets: SecretValues) -> list[Draft]:
    """The drafts that hold no secret of the task, in any part that is stored."""
    return [draft for draft in drafts if secrets.mask_value(draft) == draft]


def _last_live(skill: tables.Skill) -> SkillState | None:
    """The state of a skill, or the one that it left when it was taken out meanwhile."""
    return skill.state if skill.state in LIVE_SKILLS else skill.former

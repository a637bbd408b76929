"""A skill in responses: its source, its origin, and how it has been used."""

from datetime import datetime
from typing import Self
from uuid import UUID

import msgspec
from sqlalchemy.ext.asyncio import AsyncSession

from app.api.access import project_names
from app.api.columns import columns
from app.db import models, offers
from app.db.offers import SkillStats
from app.records import Offer


class SkillSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A skill in a list. `task_id` is the task that wrote it, `apis` all operations that it may call."""

    id: UUID
    project: str
    name: str
    version: int
    state: models.SkillState
    signature: str
    apis: list[str]
    instruction: str
    scenario: str | None
    task_id: UUID | None
    created_at: datetime

    @classmethod
    def of(cls, skill: models.Skill, project: str) -> "SkillSummary":
        return SkillSummary(project=project, **columns(skill, SkillSummary, "project"))


class SkillPage(msgspec.Struct, frozen=True):
    """Newest first. `next_cursor` is null on the last page."""

    skills: list[SkillSummary]
    next_cursor: str | None


class SkillView(SkillSummary, frozen=True, kw_only=True):
    """A skill with its source, which is empty if the skill was deleted."""

    source: str
    release_id: UUID | None
    embedder: str | None
    stats: SkillStats

    @classmethod
    def full(cls, skill: models.Skill, project: str, stats: SkillStats) -> "SkillView":
        return SkillView(
            project=project,
            source=skill.source,
            release_id=skill.release_id,
            embedder=skill.embedder,
            stats=stats,
            **columns(skill, SkillSummary, "project"),
        )


class SkillMatch(msgspec.Struct, frozen=True, kw_only=True):
    """A search result. `ranks` is its rank, from 1, in each retrieval list that was fused."""

    id: UUID
    name: str
    version: int
    signature: str
    instruction: str
    source: str
    ranks: dict[str, int]

    @classmethod
    def of(cls, offer: Offer) -> Self:
        return cls(
            id=offer.skill_id,
            name=offer.name,
            version=offer.version,
            signature=offer.signature,
            instruction=offer.instruction,
            source=offer.source,
            ranks=offer.ranks,
        )


async def view_skill(session: AsyncSession, skill: models.Skill) -> SkillView:
    names = await project_names(session)
    return SkillView.full(skill, names[skill.project_id], (await offers.stats(session, [skill.id]))[skill.id])

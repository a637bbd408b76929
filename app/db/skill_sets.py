"""Restores the set of skills that a release served with."""

from collections.abc import Collection
from uuid import UUID

import msgspec
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from app.db import models, skills
from app.db.in_array import in_array
from app.db.models import SkillState


class RestoredSkills(msgspec.Struct, frozen=True):
    """The changes of a project's skills when an earlier set was restored."""

    restored: list[models.Skill]  # active again
    superseded: list[models.Skill]  # by a restored version of their name
    withdrawn: list[models.Skill]  # of other names; the agent may write these again
    deleted: list[models.Skill]  # of the set, but permanently deleted


async def restore(session: AsyncSession, project_id: UUID, skill_ids: Collection[UUID]) -> RestoredSkills:
    """Make exactly these skills of the project active, except deleted ones."""
    rev = await skills.next_rev(session, project_id)
    skill, wanted = models.Skill, set(skill_ids)
    rows = await session.scalars(
        select(skill)
        .where(skill.project_id == project_id, in_array(skill.id, wanted) != (skill.state == SkillState.ACTIVE))
        .order_by(skill.name, skill.version)
        .execution_options(populate_existing=True)
    )
    changing = rows.all()
    back = [row for row in changing if row.id in wanted and row.state is not SkillState.DELETED]
    away = [row for row in changing if row.id not in wanted]
    names = {row.name for row in back}
    for row in away:
        row.state, row.rev = SkillState.SUPERSEDED, rev  # not retired, which only a person does
    await session.flush()  # first, because of each name only one version may be active
    for row in back:
        row.state, row.rev = SkillState.ACTIVE, rev
    await session.flush()
    return RestoredSkills(
        restored=back,
        superseded=[row for row in away if row.name in names],
        withdrawn=[row for row in away if row.name not in names],
        deleted=[row for row in changing if row.state is SkillState.DELETED],
    )

"""Where skills come from and where they go, read for `lineage`."""

from collections import defaultdict
from collections.abc import Sequence
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncSession

from app.console.lineage import LineageSkill, Version, VersionUse
from app.db import skill_uses, skills, tables


async def read_lineages(session: AsyncSession, project_id: UUID, names: Sequence[str]) -> list[LineageSkill]:
    """Of all versions of these names, in their order."""
    versions: dict[str, list[tables.Skill]] = defaultdict(list)
    for each in await skills.of_names(session, project_id, names):
        versions[each.name].append(each)
    ids = [each.id for name in names for each in versions[name]]
    uses: dict[UUID, list[VersionUse]] = defaultdict(list)
    for found in await skill_uses.by_scenario(session, ids):
        uses[found.skill_id].append(VersionUse(found.scenario, found.stats))
    return [
        LineageSkill(name, [_version(each, uses[each.id]) for each in versions[name]])
        for name in names
        if versions[name]
    ]


def _version(skill: tables.Skill, uses: Sequence[VersionUse]) -> Version:
    return Version(
        id=skill.id,
        number=skill.version,
        state=skill.state,
        task_id=skill.task_id,
        instruction=skill.instruction,
        uses=uses,
    )

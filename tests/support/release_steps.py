"""Changes of a project's release, as the API and the promoter make them."""

from sqlalchemy.ext.asyncio import AsyncSession

from app.base.values import Json
from app.db import tables
from app.releases import manifest
from app.releases import store as releases
from app.releases.manifest import SkillsMode


async def activate(
    session: AsyncSession, release: tables.Release, prompt: str = "p", keep: SkillsMode = "restore"
) -> dict[str, Json]:
    """As the promoter does it."""
    former = await releases.active(session, release.project_id)
    await releases.activate(session, release.id)
    return await manifest.record_activation(session, release, former, prompt, skills=keep)

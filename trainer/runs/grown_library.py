"""The skills that a project's tasks are offered now, for examinations under the conditions of serving."""

from collections import defaultdict
from uuid import UUID

import msgspec

from app.apis.builtin import with_builtins
from app.db import skill_changes, skills
from app.db.database import Sessions
from app.release import manifest
from app.release.catalogs import Catalogs
from app.skills.admission import stored_manifest
from app.skills.indexed_rows import indexed
from app.skills.skill_index import IndexedSkill
from app.skills.visibility import SkillVersion, newest_visible, owners_for


async def grown_skills(sessions: Sessions, project_id: UUID) -> list[IndexedSkill]:
    """Of each name the version that tasks of nobody in particular are offered, with its source.

    Without skills of operations that are no longer what they were, which no task is offered either.
    """
    async with sessions() as session:
        embedder = await session.scalar(skill_changes.common_embedder(project_id))
    rows = [indexed(row) for row in await skill_changes.read_changes(sessions, project_id, 0, embedder)]
    visible = _visible(rows)
    async with sessions.begin() as session:
        sources = await skill_changes.sources(session, [each.offer.skill_id for each in visible])
        served = await manifest.begin_serving(session, project_id, None, None)
        stored = await skills.of_ids(session, list(sources))
    apis = with_builtins(await Catalogs(sessions).of(served.documents))
    obsolete = {skill.id for skill in stored if stored_manifest(skill).not_in(apis)}
    return [
        msgspec.structs.replace(
            each, offer=msgspec.structs.replace(each.offer, source=sources[each.offer.skill_id])
        )
        for each in visible
        if each.offer.skill_id in sources and each.offer.skill_id not in obsolete
    ]


def _visible(rows: list[IndexedSkill]) -> list[IndexedSkill]:
    versions: dict[str, list[SkillVersion]] = defaultdict(list)
    for each in rows:
        offer = each.offer
        versions[offer.name].append(SkillVersion(offer.skill_id, offer.version, each.owner, each.reach))
    seen = {newest_visible(of_name, owners_for("", None)) for of_name in versions.values()}
    return [each for each in rows if each.offer.skill_id in seen]

"""The skills that a project's tasks are offered now, for examinations under the conditions of serving."""

from collections import defaultdict
from collections.abc import Sequence
from uuid import UUID

import msgspec

from app.apis.builtin import with_builtins
from app.db import projects, skill_changes, skills, tables
from app.db.database import Sessions
from app.release import manifest as release_manifest
from app.release.catalogs import Catalogs
from app.skills.admission import has_proved_itself, stored_manifest
from app.skills.in_memory_library import GrownSkill
from app.skills.indexed_rows import indexed
from app.skills.skill_index import IndexedSkill
from app.skills.visibility import SkillVersion, newest_visible, owners_for


async def grown_skills(sessions: Sessions, project_id: UUID) -> list[GrownSkill]:
    """Of each name the version that tasks of nobody in particular are offered, with its source.

    Without skills of operations that are no longer what they were, which no task is offered either.
    """
    async with sessions() as session:
        embedder = await session.scalar(skill_changes.common_embedder(project_id))
    rows = [indexed(row) for row in await skill_changes.read_changes(sessions, project_id, 0, embedder)]
    visible = _visible(rows)
    async with sessions.begin() as session:
        sources = await skill_changes.sources(session, [each.offer.skill_id for each in visible])
        served = await release_manifest.begin_serving(session, project_id, None, None)
        stored = await skills.of_ids(session, list(sources))
    apis = with_builtins(await Catalogs(sessions).of(served.documents))
    manifests = {skill.id: manifest for skill in stored if not (manifest := stored_manifest(skill)).not_in(apis)}
    proven = await _proven(sessions, project_id, [skill for skill in stored if skill.id in manifests])
    return [
        GrownSkill(
            indexed=msgspec.structs.replace(each, offer=msgspec.structs.replace(each.offer, source=sources[id_])),
            manifest=manifests[id_],
            proven=id_ in proven,
        )
        for each in visible
        if (id_ := each.offer.skill_id) in sources and id_ in manifests
    ]


async def _proven(sessions: Sessions, project_id: UUID, stored: Sequence[tables.Skill]) -> set[UUID]:
    """Those that are offered although a new version is written; none where each of these is offered at once."""
    async with sessions() as session:
        if projects.settings_of(await projects.by_id(session, project_id)).skills == "open":
            return set()
        return {skill.id for skill in stored if await has_proved_itself(session, skill)}


def _visible(rows: list[IndexedSkill]) -> list[IndexedSkill]:
    versions: dict[str, list[SkillVersion]] = defaultdict(list)
    for each in rows:
        offer = each.offer
        versions[offer.name].append(SkillVersion(offer.skill_id, offer.version, each.owner, each.reach))
    seen = {newest_visible(of_name, owners_for("", None)) for of_name in versions.values()}
    return [each for each in rows if each.offer.skill_id in seen]

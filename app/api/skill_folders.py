"""Routes that export and import skills as folders of the Agent Skills format."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Annotated, Any
from uuid import UUID

import msgspec
from litestar import Controller, get, post
from litestar.di import NamedDependency
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import FromQuery, JSONBody, QueryParameter
from litestar.response import Stream
from sqlalchemy.ext.asyncio import AsyncSession

from app.api.skill_import_view import ImportReport, ImportRequest
from app.apis import store as apis
from app.apis.catalog import Catalog
from app.apis.documents.reader import DocumentReader
from app.apis.documents.routes import read_api
from app.apis.presentation import outline
from app.db import releases, skill_uses, skills, tables
from app.db.database import Sessions
from app.db.tables import SkillState
from app.projects.authorization import find_project
from app.skills.admission import stored_manifest
from app.skills.agent_skills.import_folders import check_all, read_all, store_all
from app.skills.agent_skills.skill_folder import SkillFolder
from app.skills.agent_skills.write_folder import FolderProvenance, write_folder
from app.web.access import Caller, Db
from app.web.fields import ProjectName
from app.web.problem import problems

_MEDIA_TYPE = "text/x-ndjson"
_PAGE = 100
_OFFERED_TO_ALL = (SkillState.ACTIVE, SkillState.PROBATION)
_STREAM = ResponseSpec(
    Any,
    description="One JSON object per line: `id`, `name`, `version` and `state` of a skill, and its `folder`: the "
    "name, and the text of each of its `files` by path",
    media_type=_MEDIA_TYPE,
    generate_examples=False,
)


class ExportedSkill(msgspec.Struct, frozen=True, kw_only=True):
    """One line of an export."""

    id: UUID
    name: str
    version: int
    state: SkillState
    folder: SkillFolder


class SkillFolderController(Controller):
    path = "/skills"
    tags = ("Skills",)
    opt = {"scope": "skills"}  # noqa: RUF012

    @get(
        "/export",
        summary="Export skills as Agent Skills",
        media_type=_MEDIA_TYPE,
        responses={200: _STREAM, **problems(400, 401, 403, 404)},
    )
    async def export_folders(
        self,
        access: Caller,
        sessions: NamedDependency[Sessions],
        project: ProjectName = None,
        in_state: Annotated[
            SkillState | None, QueryParameter(name="state", description="default: those that are offered to all")
        ] = None,
        name: FromQuery[str | None] = None,
        scenario: FromQuery[str | None] = None,
    ) -> Stream:
        """Of each name one version: the active one, else the newest. A folder has a `SKILL.md` and the Python in
        `scripts/`; deleted skills have none.
        """
        async with sessions() as session:
            owner = await find_project(session, access, project)
        states = _OFFERED_TO_ALL if in_state is None else (in_state,)
        only = [
            skills.SkillFilter(project_id=owner.id, state=state, name=name, scenario=scenario) for state in states
        ]
        return Stream(_lines(sessions, only), media_type=_MEDIA_TYPE)

    @post(
        "/import",
        status_code=200,
        summary="Import Agent Skills",
        responses=problems(400, 401, 403, 404, 413),
    )
    async def import_folders(
        self,
        data: JSONBody[ImportRequest],
        session: Db,
        access: Caller,
        document_reader: NamedDependency[DocumentReader],
    ) -> ImportReport:
        """Each folder is checked as a function that the agent wrote, and refused on its own. What passes is
        quarantined and held: no task is offered it before it is approved.
        """
        project = await find_project(session, access, data.project)
        project_id = project.id
        await session.commit()
        read = await asyncio.to_thread(read_all, data.folders)
        named = {api.partition(".")[0] for each in read.read.values() for api in each.draft.apis}
        catalog = await _catalog(session, document_reader, project_id, named)
        checked = await asyncio.to_thread(check_all, read, catalog)
        stored = await store_all(session, project_id, checked, access.actor)
        await session.commit()
        return ImportReport.of([folder.name for folder in data.folders], stored, checked.refused)


async def _catalog(session: AsyncSession, reader: DocumentReader, project_id: UUID, named: set[str]) -> Catalog:
    """The outlines of these APIs, of those that exist. Ends the transaction."""
    rows = [row for row in await apis.of_project(session, project_id) if row.name in named]
    await session.commit()
    return Catalog(
        {row.name: outline(row.name, (await read_api(reader, session, row, row.bind)).traits) for row in rows}
    )


async def _lines(sessions: Sessions, filters: Sequence[skills.SkillFilter]) -> AsyncIterator[bytes]:
    seen: set[str] = set()
    for only in filters:
        cursor: str | None = None
        while True:
            async with sessions() as session:
                page = await skills.page(session, only, cursor=cursor, limit=_PAGE)
                provenance = await _provenance(session, page.items)
            new = [each for each in page.items if each.source and each.name not in seen]
            newest = list({each.name: each for each in new[::-1]}.values())[::-1]
            seen |= {each.name for each in newest}
            yield await asyncio.to_thread(b"".join, (_line(each, provenance[each.id]) for each in newest))
            cursor = page.cursor
            if cursor is None:
                break


async def _provenance(session: AsyncSession, rows: Sequence[tables.Skill]) -> dict[UUID, FolderProvenance]:
    stats = await skill_uses.stats(session, [each.id for each in rows])
    ids = {each.release_id for each in rows if each.release_id}
    numbers = {each: (await releases.get(session, each)).number for each in ids}
    return {
        each.id: FolderProvenance(
            release=numbers[each.release_id] if each.release_id else None,
            uses=stats[each.id].uses,
            successes=stats[each.id].successes,
        )
        for each in rows
    }


def _line(skill: tables.Skill, provenance: FolderProvenance) -> bytes:
    folder = write_folder(skill, stored_manifest(skill), provenance)
    line = ExportedSkill(id=skill.id, name=skill.name, version=skill.version, state=skill.state, folder=folder)
    return msgspec.json.encode(line) + b"\n"

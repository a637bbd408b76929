"""Routes for the documents of APIs that are fetched again, and for what changed in them."""

from collections.abc import Mapping
from datetime import datetime
from typing import Final, Self
from uuid import UUID

import httpx
import msgspec
from litestar import Controller, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath
from sqlalchemy.ext.asyncio import AsyncSession

from app.apis.document_reader import DocumentReader
from app.base.errors import ConflictError
from app.db import api_changes, apis, skill_repairs, tables
from app.db.database import Sessions
from app.db.tables import RepairOutcome
from app.projects.authorization import find_project
from app.release.api_refresh import refresh_api
from app.web.access import Access, Caller, Db
from app.web.fields import ProjectName
from app.web.problem import problems

NOTHING: Final[Mapping[RepairOutcome | None, list[UUID]]] = {}


class ApiChangeView(msgspec.Struct, frozen=True, kw_only=True):
    """The difference between two versions of a document. Operations by name; `skills` were quarantined for it, and
    since then restored, repaired or retired. The page of a skill says why.

    One that is not `applied` asks for less supervision of the operations `eased`: register the API again if that
    is right.
    """

    created_at: datetime
    digest: str
    applied: bool
    added: list[str]
    removed: list[str]
    changed: list[str]
    eased: list[str]
    skills: list[UUID]
    restored: list[UUID] = []
    repaired: list[UUID] = []
    retired: list[UUID] = []

    @classmethod
    def of(cls, row: tables.ApiChange, skills: Mapping[RepairOutcome | None, list[UUID]] = NOTHING) -> Self:
        return cls(
            created_at=row.created_at,
            digest=row.digest,
            applied=row.applied,
            added=row.added,
            removed=row.removed,
            changed=row.changed,
            eased=row.eased,
            skills=list(map(UUID, row.skills)),
            restored=skills.get(RepairOutcome.RESTORED, []),
            repaired=skills.get(RepairOutcome.REPAIRED, []),
            retired=skills.get(RepairOutcome.RETIRED, []),
        )


class RefreshView(msgspec.Struct, frozen=True):
    """The change, if there is one; or why the document could not be fetched or read."""

    change: ApiChangeView | None
    failure: str | None


class ApiChangeController(Controller):
    path = "/apis/{name:str}"
    tags = ("APIs",)
    opt = {"scope": "tasks"}  # noqa: RUF012

    @get("/changes", summary="List the changes of an API's document", responses=problems(400, 401, 403, 404))
    async def list_changes(
        self, name: FromPath[str], session: Db, access: Caller, project: ProjectName = None
    ) -> list[ApiChangeView]:
        """The latest hundred, newest first: of documents that were fetched again, every SAGE_API_REFRESH_HOURS, or
        registered again."""
        owner = await find_project(session, access, project)
        row = await apis.get(session, owner.id, name, document=False)
        changes = await api_changes.of_api(session, row.id)
        skills = await skill_repairs.outcomes(session, [each.id for each in changes])
        return [ApiChangeView.of(each, skills[each.id]) for each in changes]

    @post(
        "/refresh",
        opt={"scope": "admin"},
        status_code=200,
        summary="Fetch the document of an API again",
        responses=problems(400, 401, 403, 404, 409),
    )
    async def refresh(
        self,
        name: FromPath[str],
        session: Db,
        access: Caller,
        sessions: NamedDependency[Sessions],
        http_client: NamedDependency[httpx.AsyncClient],
        document_reader: NamedDependency[DocumentReader],
        project: ProjectName = None,
    ) -> RefreshView:
        """Now, and as on schedule. 409 for a document that was uploaded."""
        owner = await find_project(session, access, project)
        return await refresh_document(session, access, sessions, owner, name, document_reader, http_client)


async def refresh_document(
    session: AsyncSession,
    access: Access,
    sessions: Sessions,
    owner: tables.Project,
    name: str,
    document_reader: DocumentReader,
    http_client: httpx.AsyncClient,
) -> RefreshView:
    """Raises NotFoundError, ConflictError for a document that was uploaded."""
    row = await apis.get(session, owner.id, name, document=False)
    if row.source == "upload":
        raise ConflictError(f"the document of {name} was uploaded: send the new one to POST /v1/apis")
    await session.commit()
    change = await refresh_api(sessions, document_reader, http_client, row.id, access.actor)
    row = await apis.get(session, owner.id, name, document=False)
    return RefreshView(None if change is None else ApiChangeView.of(change), row.check_failure)

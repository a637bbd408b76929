"""Routes for what APIs ask their callers for: credentials by security scheme, for all tasks or a principal's."""

from collections.abc import Sequence
from typing import Annotated, Any
from uuid import UUID

import httpx
from litestar import Controller, delete, get, put
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody, QueryParameter
from sqlalchemy.ext.asyncio import AsyncSession

from app.api.api_consent import ConsentView, CredentialPlace, connect_api
from app.api.api_reading import read_api
from app.api.credential_view import CredentialView
from app.api.submission import Principal
from app.apis.document_reader import DocumentReader
from app.credentials.credential import Credential
from app.credentials.prepared import prepare
from app.db import api_credentials, apis, tables
from app.db.tables import AuditAction
from app.projects import audit
from app.projects.authorization import find_project
from app.web.access import Access, Caller, Db
from app.web.fields import ProjectName
from app.web.problem import problems

OfPrincipal = Annotated[Principal, QueryParameter(description="whose; without one, those for all tasks")]


class CredentialController(Controller):
    path = "/apis/{name:str}"
    tags = ("APIs",)
    opt = {"scope": "admin"}  # noqa: RUF012

    @get("/credentials", summary="List the credentials of an API", responses=problems(400, 401, 403, 404))
    async def list_credentials(
        self,
        name: FromPath[str],
        session: Db,
        access: Caller,
        document_reader: NamedDependency[DocumentReader],
        project: ProjectName = None,
    ) -> list[CredentialView]:
        """Those of all principals. Values are never shown."""
        owner = await find_project(session, access, project)
        row = await apis.get(session, owner.id, name, document=False)
        rows: Sequence[tables.ApiCredential] = await api_credentials.of_api(session, row.id)
        schemes = (await read_api(document_reader, session, row, row.bind)).schemes
        return [CredentialView.stored(each, schemes.get(each.scheme)) for each in rows]

    @put(
        "/credentials/{scheme:str}",
        summary="Store credentials of an API",
        responses=problems(400, 401, 403, 404, 409),
    )
    async def store_credentials(  # noqa: PLR0913 - the parameters of the route
        self,
        name: FromPath[str],
        scheme: FromPath[str],
        data: JSONBody[Credential],
        session: Db,
        access: Caller,
        http_client: NamedDependency[httpx.AsyncClient],
        document_reader: NamedDependency[DocumentReader],
        *,
        project: ProjectName = None,
        principal: OfPrincipal = "",
    ) -> CredentialView:
        """For a security scheme of the document, or, with `place`, for one that it does not declare. Encrypted.

        Effective from the next task on."""
        owner = await find_project(session, access, project)
        place = CredentialPlace(name, scheme, principal)
        return await store_credential(session, access, owner, place, data, http_client, document_reader)

    @delete(
        "/credentials/{scheme:str}",
        summary="Delete credentials of an API",
        responses=problems(400, 401, 403, 404),
    )
    async def delete_credentials(
        self,
        name: FromPath[str],
        scheme: FromPath[str],
        session: Db,
        access: Caller,
        project: ProjectName = None,
        principal: OfPrincipal = "",
    ) -> None:
        """Tasks that begin from then on do without."""
        owner = await find_project(session, access, project)
        await delete_credential(session, access, owner, CredentialPlace(name, scheme, principal))

    @get("/authorize", summary="Connect an API by OAuth", responses=problems(400, 401, 403, 404, 409))
    async def authorize(  # noqa: PLR0913 - the parameters of the route
        self,
        name: FromPath[str],
        session: Db,
        access: Caller,
        public_url: NamedDependency[str],
        http_client: NamedDependency[httpx.AsyncClient],
        document_reader: NamedDependency[DocumentReader],
        scheme: Annotated[str | None, QueryParameter(description="needed if there are several")] = None,
        *,
        project: ProjectName = None,
        principal: OfPrincipal = "",
    ) -> ConsentView:
        """The address at which a person consents. It leads back to `/oauth/callback` of this server, which stores
        the tokens: register that address with the API's authorization server. Of an MCP server whose authorization
        server permits it, a client is registered if none is stored."""
        owner = await find_project(session, access, project)
        place = CredentialPlace(name, scheme or "", principal)
        return await connect_api(session, owner, place, public_url, http_client, document_reader)


async def store_credential(
    session: AsyncSession,
    access: Access,
    owner: tables.Project,
    place: CredentialPlace,
    data: Credential,
    http_client: httpx.AsyncClient,
    document_reader: DocumentReader,
) -> CredentialView:
    """Raises NotFoundError, InvalidError that names the field, ConflictError if the API is moved meanwhile."""
    name, scheme, principal = place
    row = await apis.get(session, owner.id, name, document=False)
    seen = apis.place_of(row)
    app = await read_api(document_reader, session, row, row.bind)
    prepared = await prepare(scheme, data, app.schemes, app.default_url, http_client)
    row = await apis.hold(session, owner.id, name, seen)
    stored = await prepared.store(session, row.id, principal)
    await _audit(session, owner.id, access, AuditAction.SECRET_STORED, name, scheme, principal)
    await session.commit()
    return CredentialView.stored(stored, app.schemes.get(scheme))


async def delete_credential(
    session: AsyncSession, access: Access, owner: tables.Project, place: CredentialPlace
) -> None:
    """Raises NotFoundError."""
    name, scheme, principal = place
    row = await apis.get(session, owner.id, name, document=False)
    await api_credentials.delete(session, row.id, scheme, principal)
    await _audit(session, owner.id, access, AuditAction.SECRET_DELETED, name, scheme, principal)
    await session.commit()


async def _audit(
    session: AsyncSession, project: UUID, access: Any, action: AuditAction, api: str, scheme: str, principal: str
) -> None:
    detail = {"name": f"{api}.{scheme}", "principal": principal}
    await audit.add(session, project, None, access.actor, action, detail)

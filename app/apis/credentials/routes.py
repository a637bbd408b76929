"""Routes for what APIs ask their callers for: credentials by security scheme, for all tasks or a principal's.

A person's consent begins here, and ends here: authorization servers send them back to this server as a client.
"""

from datetime import datetime
from html import escape
from typing import Annotated, NamedTuple
from uuid import UUID

import httpx
import msgspec
from litestar import Controller, MediaType, Response, delete, get, put
from litestar.di import NamedDependency
from litestar.params import FromPath, FromQuery, JSONBody, QueryParameter
from sqlalchemy.ext.asyncio import AsyncSession

from app.apis import store as apis
from app.apis.credentials import store as credentials
from app.apis.credentials.consent import (
    CALLBACK_PATH,
    DOCUMENT_PATH,
    asked_for,
    begin_consent,
    client_metadata,
    end_consent,
    new_client,
    refuse_consent,
)
from app.apis.credentials.credential import Credential
from app.apis.credentials.requests import CredentialView
from app.apis.credentials.schemes import OAUTH_KINDS, SecurityScheme
from app.apis.credentials.stored_credentials import prepare
from app.apis.documents.reader import DocumentReader
from app.apis.documents.stored import read_api
from app.apis.mcp.document import OAUTH
from app.base.errors import AppError, InvalidError
from app.db import tables
from app.db.database import Sessions
from app.db.tables import AuditAction
from app.projects import audit
from app.projects.authorization import find_project
from app.tasks.requests import Principal
from app.web.access import Access, Caller, Db
from app.web.fields import ProjectName
from app.web.problem import CHANGE, READ

_CLIENT = ("client_id", "client_secret", "client_auth", "client_scopes")
OfPrincipal = Annotated[Principal, QueryParameter(description="whose; without one, those for all tasks")]
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; base-uri 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
}


class ConsentView(msgspec.Struct, frozen=True):
    """The address that a person opens to consent, once, until `expires_at`."""

    url: str
    expires_at: datetime


class CredentialPlace(NamedTuple):
    """What a credential is stored for: an API, one of its schemes, and "" or a principal."""

    api: str
    scheme: str
    principal: str = ""


async def connect_api(
    session: AsyncSession,
    owner: tables.Project,
    place: CredentialPlace,
    base_url: str,
    http_client: httpx.AsyncClient,
    document_reader: DocumentReader,
) -> ConsentView:
    """Where a person consents. `base_url` is that of this server; the only scheme need not be named.

    Raises NotFoundError, InvalidError, TokenError, and ConflictError if the API is moved meanwhile.
    """
    base_url = base_url.rstrip("/")
    row = await apis.get(session, owner.id, place.api, document=False)
    seen = apis.place_of(row)
    usable = await credentials.usable(session, row.id, place.principal)
    hint = ""
    if place.scheme in ("", OAUTH) and OAUTH not in usable:
        app = await read_api(document_reader, session, row, row.bind)
        known = app.schemes.get(OAUTH)
        made = None if known is None else await new_client(http_client, known, known.scopes, base_url)
        if made is not None:
            prepared = await prepare(OAUTH, made, app.schemes, app.default_url, http_client)
            row = await apis.hold(session, owner.id, place.api, seen)
            await prepared.store(session, row.id, "")
        elif known is not None and known.reads_documents:
            hint = "; or set SAGE_PUBLIC_URL to an https address, where its authorization server finds one"
    found = await _to_connect(session, row, place, hint)
    credential = asked_for(session, found)
    registered = credential.client_scopes  # None: for any
    if registered is not None and not set(credential.scopes or ()) <= set(registered):
        known = (await read_api(document_reader, session, row, row.bind)).schemes.get(found.scheme)
        credential = await _registered_again(http_client, known, credential, base_url)
        row = await apis.hold(session, owner.id, place.api, seen)
        found = await _to_connect(session, row, place)
    await apis.hold(session, owner.id, place.api, seen)
    callback = f"{base_url}{CALLBACK_PATH}"
    url, expires_at = await begin_consent(session, found, credential, place.principal, callback)
    await session.commit()
    return ConsentView(url, expires_at)


async def _registered_again(
    client: httpx.AsyncClient, scheme: SecurityScheme | None, credential: Credential, base_url: str
) -> Credential:
    """With another client, which may ask for the scopes. The one before stays until a person consents."""
    made = None if scheme is None else await new_client(client, scheme, credential.scopes or (), base_url)
    if made is None:
        return credential  # the authorization server decides
    return msgspec.structs.replace(credential, **{field: getattr(made, field) for field in _CLIENT})


async def _to_connect(
    session: AsyncSession, row: tables.Api, place: CredentialPlace, hint: str = ""
) -> tables.ApiCredential:
    """The principal's own, or else those for all tasks: the client is the same."""
    rows = await credentials.usable(session, row.id, place.principal)
    found = {name: each for name, each in rows.items() if each.kind in OAUTH_KINDS}
    scheme = place.scheme or (next(iter(found)) if len(found) == 1 else "")
    if scheme not in found:
        stored = ", ".join(sorted(found)) or "none"
        raise InvalidError(
            f"scheme: credentials of OAuth are stored for {stored}; store a `client_id` first: "
            f"PUT /v1/apis/{row.name}/credentials/{scheme or '{scheme}'}{hint}"
        )
    return found[scheme]


class CredentialController(Controller):
    path = "/apis/{name:str}"
    tags = ("APIs",)
    opt = {"scope": "admin"}  # noqa: RUF012

    @get("/credentials", summary="List the credentials of an API", responses=READ)
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
        rows = await credentials.of_api(session, row.id)
        schemes = (await read_api(document_reader, session, row, row.bind)).schemes
        return [CredentialView.stored(each, schemes.get(each.scheme)) for each in rows]

    @put("/credentials/{scheme:str}", summary="Store credentials of an API", responses=CHANGE)
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

    @delete("/credentials/{scheme:str}", summary="Delete credentials of an API", responses=READ)
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

    @get("/authorize", summary="Connect an API by OAuth", responses=CHANGE)
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
    await _audit(session, owner.id, access, AuditAction.SECRET_STORED, place)
    await session.commit()
    return CredentialView.stored(stored, app.schemes.get(scheme))


async def delete_credential(
    session: AsyncSession, access: Access, owner: tables.Project, place: CredentialPlace
) -> None:
    """Raises NotFoundError."""
    row = await apis.get(session, owner.id, place.api, document=False)
    await credentials.delete(session, row.id, place.scheme, place.principal)
    await _audit(session, owner.id, access, AuditAction.SECRET_DELETED, place)
    await session.commit()


async def _audit(
    session: AsyncSession, project: UUID, access: Access, action: AuditAction, place: CredentialPlace
) -> None:
    detail = {"name": f"{place.api}.{place.scheme}", "principal": place.principal}
    await audit.add(session, project, None, access.actor, action, detail)


@get(DOCUMENT_PATH, include_in_schema=False)
async def client_document(public_url: NamedDependency[str]) -> dict[str, str | list[str]]:
    """Describes this server to authorization servers that read Client ID Metadata Documents."""
    about = client_metadata(public_url)
    return {"client_id": f"{public_url}{DOCUMENT_PATH}", **about, "token_endpoint_auth_method": "none"}


@get(CALLBACK_PATH, include_in_schema=False)
async def oauth_callback(
    sessions: NamedDependency[Sessions],
    http_client: NamedDependency[httpx.AsyncClient],
    attempt: Annotated[str, QueryParameter(name="state")] = "",
    code: FromQuery[str] = "",
    error: FromQuery[str] = "",
    iss: FromQuery[str] = "",
) -> Response[str]:
    """Stores the tokens, and says so."""
    if error or not code:
        reason = f"the authorization server refused: {error[:200] or 'no code'}"
        if error:
            await refuse_consent(sessions, attempt[:500], reason)
        return _page(400, "Not connected", f"{reason.capitalize()}.")
    try:
        await end_consent(sessions, http_client, attempt[:500], code[:4_000], iss[:2_000])
    except AppError as failure:
        return _page(failure.status, "Not connected", f"{failure}.")
    return _page(200, "Connected", "The tokens are stored. You can close this window.")


def _page(status: int, title: str, text: str) -> Response[str]:
    page = f"<!doctype html><html lang=en><title>{title}</title><h1>{title}</h1><p>{escape(text)}</p></html>"
    return Response(page, status_code=status, media_type=MediaType.HTML, headers=_HEADERS)

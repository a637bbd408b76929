"""What an MCP server offers, as the document that is stored for it: asked with the stored credentials, and again
once it has told that its tools changed.

How its callers get a token is told by the metadata of the server and of its authorization server.
"""

import asyncio
from collections.abc import Sequence
from typing import Final, TypeVar
from uuid import UUID

import httpx
import httpx2
import msgspec
from mcp.client.auth.utils import (
    build_oauth_authorization_server_metadata_discovery_urls,
    build_protected_resource_metadata_discovery_urls,
    extract_resource_metadata_from_www_auth,
    extract_scope_from_www_auth,
    get_client_metadata_scopes,
    issuers_match,
)
from mcp.shared.auth import OAuthMetadata, ProtectedResourceMetadata
from mcp.shared.auth_utils import check_resource_allowed
from pydantic import BaseModel, ValidationError
from sqlalchemy import case, func, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from app.apis import store as apis
from app.apis.calls.live_calls import lacking_scopes
from app.apis.credentials import store as credentials
from app.apis.credentials.credential import bearer
from app.apis.credentials.oauth import NO_ANSWER, answer
from app.apis.credentials.schemes import Authentication
from app.apis.credentials.stored_credentials import SecuredApi, StoredCredentials
from app.apis.documents.fetch import first_principal
from app.apis.mcp.calls import short
from app.apis.mcp.connection import AccessRefusedError, Exchange, McpConnection, McpServers, McpTarget
from app.apis.mcp.document import LIST_TEMPLATES, LIST_TOOLS, McpOAuth, bare_app
from app.base.errors import ApiDocumentError, HostError
from app.base.secrets import SecretValues
from app.base.values import Json
from app.db import tables
from app.db.database import Sessions
from app.db.queries import from_now

_SECONDS = 60.0  # in all
_PART_SECONDS = 30.0
_MAX_BYTES = 20 << 20  # of all pages
_PAGES = 500
_KEPT: Final = ("name", "title", "description", "inputSchema", "outputSchema", "annotations")
_GRANTS: Final = ["authorization_code", "refresh_token"]
M = TypeVar("M", bound=BaseModel)
MAX_TRIES: Final = 8  # of a refresh: about an hour
_api = tables.Api
_SOON_SECONDS = 1.0  # several changes in a row are one
_PAUSE_SECONDS = 30.0  # before the second try; each later one waits twice as long


async def fetch_listing(
    servers: McpServers, url: str, sent: Authentication | None = None, oauth: Json = None
) -> bytes:
    """The document of a server, as JSON; `oauth` is part of it.

    Raises ApiDocumentError if no MCP server is there, AccessRefusedError if it refuses what was `sent`.
    """
    sent, secrets = sent or Authentication(), SecretValues()
    headers = tuple(sorted(sent.headers.items()))
    secrets.add(*sent.secret_parts())
    try:
        async with (
            asyncio.timeout(_SECONDS),
            servers.connect(McpTarget(url, headers=headers), _PART_SECONDS) as opened,
        ):
            document = await _document(opened, url)
            return msgspec.json.encode(document if oauth is None else {**document, "oauth": oauth})
    except TimeoutError as error:
        raise ApiDocumentError(f"{url} takes longer than {_SECONDS:g} s to list its tools") from error
    except AccessRefusedError as error:
        raise AccessRefusedError(short(error.message, secrets.mask), error.status, error.challenge) from error
    except HostError as error:
        reason = short(error.message, secrets.mask)
        raise ApiDocumentError(f"{url} does not answer as an MCP server: {reason}") from error
    except (OverflowError, UnicodeEncodeError) as error:
        raise ApiDocumentError(f"{url} lists tools with values that JSON cannot hold") from error


async def _document(opened: McpConnection, url: str) -> dict[str, Json]:
    session = opened.session
    capabilities, about = session.server_capabilities, session.server_info
    ours = Exchange(_MAX_BYTES, _PART_SECONDS)
    has_tools = capabilities is not None and capabilities.tools is not None
    has_resources = capabilities is not None and capabilities.resources is not None
    return {
        "mcp": session.protocol_version,
        "url": url,
        "server": {} if about is None else {"name": about.name, "title": about.title, "version": about.version},
        "instructions": session.instructions,
        "tools": await _tools(opened, ours) if has_tools else [],
        "resources": has_resources,
        "templates": has_resources and await _has_templates(opened, ours),
    }


async def _tools(opened: McpConnection, ours: Exchange) -> list[Json]:
    found: list[Json] = []
    cursor: Json = None
    for _ in range(_PAGES):
        page = await opened.ask("tools/list", {} if cursor is None else {"cursor": cursor}, ours)
        listed = page.get("tools")
        if not isinstance(listed, list):
            raise HostError("ApiError", "its list of tools is none")
        found += map(_kept, listed)
        cursor = page.get("nextCursor")
        if cursor is None:
            return found
    raise HostError("ApiError", f"it lists more than {_PAGES} pages of tools")


def _kept(tool: Json) -> Json:
    """Without what changes nothing for the agent, such as icons."""
    return {name: tool[name] for name in _KEPT if name in tool} if isinstance(tool, dict) else tool


async def _has_templates(opened: McpConnection, ours: Exchange) -> bool:
    """Servers may have resources and know nothing of templates."""
    try:
        return bool((await opened.ask(LIST_TEMPLATES, {}, ours)).get("resourceTemplates"))
    except HostError:
        return False


async def discover(client: httpx.AsyncClient, url: str, challenge: str) -> McpOAuth:
    """`challenge` is the header WWW-Authenticate of the server's 401. Raises ApiDocumentError."""
    refusal = httpx2.Response(401, headers={"WWW-Authenticate": challenge} if challenge else {})
    named = extract_resource_metadata_from_www_auth(refusal)
    places = build_protected_resource_metadata_discovery_urls(named, url)
    resource = await _first(client, places, ProtectedResourceMetadata)
    if resource is None:
        raise ApiDocumentError(f"{url} asks for a token, and does not say how to get one: send `bearer_token`")
    if not check_resource_allowed(requested_resource=url, configured_resource=str(resource.resource)):
        raise ApiDocumentError(f"{url} names another resource as its own: {resource.resource}")
    issuer = str(resource.authorization_servers[0])
    places = build_oauth_authorization_server_metadata_discovery_urls(issuer, url)
    server = await _first(client, places, OAuthMetadata)
    if server is None:
        raise ApiDocumentError(f"the authorization server {issuer} of {url} has no metadata")
    if not issuers_match(str(server.issuer), issuer):
        raise ApiDocumentError(f"the authorization server {issuer} of {url} calls itself {server.issuer}")
    if "S256" not in (server.code_challenge_methods_supported or ()):
        raise ApiDocumentError(f"the authorization server {issuer} of {url} does not support PKCE with S256")
    scopes = get_client_metadata_scopes(extract_scope_from_www_auth(refusal), resource, server, _GRANTS)
    return McpOAuth(
        resource=str(resource.resource),
        issuer=str(server.issuer),
        authorization_url=str(server.authorization_endpoint),
        token_url=str(server.token_endpoint),
        registration_url=str(server.registration_endpoint or ""),
        reads_documents=server.client_id_metadata_document_supported is True,
        scopes=(scopes or "").split(),
    )


async def _first(client: httpx.AsyncClient, places: Sequence[str], model: type[M]) -> M | None:
    """The first metadata that there are."""
    for place in places:
        try:
            status, content = await answer(client, "GET", place, {"Accept": "application/json"})
            if status == 200:
                return model.model_validate_json(content)
        except (*NO_ANSWER, ValidationError):
            continue
    return None


async def first_listing(servers: McpServers, client: httpx.AsyncClient, url: str, token: str | None) -> bytes:
    """The document of a server, with a static token or none.

    Of one that asks for OAuth, it has no tools: they are listed once somebody has connected it. Raises
    ApiDocumentError.
    """
    try:
        return await fetch_listing(servers, url, None if token is None else bearer(token))
    except AccessRefusedError as refused:
        if token is not None or refused.status != 401:
            raise _refusal(url, refused) from refused
        oauth = await discover(client, url, refused.challenge)
    return msgspec.json.encode({"mcp": "", "url": url, "tools": [], "oauth": oauth})


async def connected_listing(
    sessions: Sessions,
    servers: McpServers,
    client: httpx.AsyncClient,
    api: SecuredApi,
    url: str,
    oauth: McpOAuth | None,
) -> bytes:
    """The document of a server, with what is stored for it: of all tasks, or else of the first principal.

    A token that is refused is renewed once. Raises ApiDocumentError.
    """
    async with sessions() as session:
        rows = await credentials.of_api(session, api.id)
    stored = StoredCredentials(sessions, client, [api], first_principal(rows))
    app = bare_app(api.name, oauth)
    listed = app.operations[LIST_TOOLS.name]
    try:
        try:
            return await fetch_listing(servers, url, await stored.of(app, listed), oauth)
        except AccessRefusedError as refused:
            reason = f"Response status code is {refused.status}"
            renew = refused.status == 401
            scopes = [] if renew else lacking_scopes(refused.challenge)
            if not await stored.refused(app, listed, reason, renew=renew, scopes=scopes):
                raise
        return await fetch_listing(servers, url, await stored.of(app, listed), oauth)
    except HostError as error:
        raise _refusal(url, error) from error


def _refusal(url: str, error: HostError) -> ApiDocumentError:
    return ApiDocumentError(f"{url} does not answer as an MCP server: {error.message}")


async def mark(session: AsyncSession, project_id: UUID, source: str) -> None:
    """The server at `source` has other tools now."""
    soon = from_now(_SOON_SECONDS)
    marked = update(_api).where(_api.project_id == project_id, _api.source == source)
    await session.execute(
        marked.values(refresh_at=func.least(func.coalesce(_api.refresh_at, soon), soon), refresh_tries=0)
    )


async def mark_connected(session: AsyncSession, api_id: UUID) -> None:
    """Somebody has consented: if the API is an MCP server, its tools can be listed now."""
    is_mcp = _api.document["mcp"].as_string().is_not(None)
    marked = update(_api).where(_api.id == api_id, is_mcp)
    await session.execute(marked.values(refresh_at=func.clock_timestamp(), refresh_tries=0))


async def claim_due(session: AsyncSession) -> tables.Api | None:
    """An API to refresh, without its document; for a time, nobody else gets it. Its `refresh_tries` count this."""
    due = (
        select(_api.id)
        .where(_api.refresh_at <= func.clock_timestamp())
        .order_by(_api.refresh_at)
        .limit(1)
        .with_for_update(skip_locked=True)
    )
    pause = func.make_interval(0, 0, 0, 0, 0, 0, _PAUSE_SECONDS * func.power(2, _api.refresh_tries))
    last = _api.refresh_tries + 1 >= MAX_TRIES
    claimed = update(_api).where(_api.id == due.scalar_subquery())
    claimed = claimed.values(
        refresh_at=case((last, None), else_=func.clock_timestamp() + pause), refresh_tries=_api.refresh_tries + 1
    )
    found = await session.scalar(claimed.returning(_api.id))
    if found is None:
        return None
    return await session.get(_api, found, populate_existing=True, options=[apis.WITHOUT_DOCUMENT])


async def done(session: AsyncSession, api_id: UUID, tries: int) -> None:
    """It was refreshed in the try of this number, unless it has been marked again since."""
    same = update(_api).where(_api.id == api_id, _api.refresh_tries == tries)
    await session.execute(same.values(refresh_at=None, refresh_tries=0))

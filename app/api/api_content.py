"""Gets the document of an API that is added: sent, fetched, or listed by an MCP server."""

from collections.abc import Mapping
from typing import NamedTuple
from uuid import UUID

import httpx
from litestar.di import NamedDependency
from msgspec import UNSET
from sqlalchemy.ext.asyncio import AsyncSession

from app.api.api_request import ApiRequest
from app.apis.address import has_name
from app.apis.document_reader import DocumentReader
from app.apis.mcp_oauth import McpOAuth, oauth_of
from app.base.errors import ApiDocumentError, InvalidError
from app.credentials.document_fetch import DocumentFetch, is_trusted
from app.credentials.mcp_listing import connected_listing, first_listing
from app.db import api_credentials, apis, manifests
from app.db.database import Sessions
from app.gateway.mcp_client.connection_pool import McpServers
from app.gateway.mcp_client.mcp_commands import SCHEME, McpCommand
from app.release import tool_documents


class ApiReaders(NamedTuple):
    """What APIs are fetched, read and tried with."""

    sessions: Sessions
    http_client: httpx.AsyncClient
    document_reader: DocumentReader
    mcp_commands: Mapping[str, McpCommand]


def api_readers(
    sessions: NamedDependency[Sessions],
    http_client: NamedDependency[httpx.AsyncClient],
    document_reader: NamedDependency[DocumentReader],
    mcp_commands: NamedDependency[Mapping[str, McpCommand]],
) -> ApiReaders:
    return ApiReaders(sessions, http_client, document_reader, mcp_commands)


async def content_of(
    data: ApiRequest, session: AsyncSession, project_id: UUID, readers: ApiReaders, fetch: DocumentFetch
) -> bytes:
    """Its text, not decoded; what has a URL is fetched by `fetch`. Ends the transaction.

    Raises ApiDocumentError, and InvalidError for fields that exclude one another.
    """
    token = await _token(data, session, project_id)
    connected = await _connected(data, session, project_id)
    await session.commit()  # no transaction is held while a document is fetched
    if data.mcp is None:
        return await _content(data, fetch)
    client = readers.http_client
    servers = McpServers(client, readers.mcp_commands)
    if connected is not None:
        return await connected_listing(readers.sessions, servers, client, *connected)
    return await first_listing(servers, client, data.mcp.rstrip("/"), token)


async def _token(data: ApiRequest, session: AsyncSession, project_id: UUID) -> str | None:
    """The bearer token for an MCP server. Raises InvalidError for fields that exclude one another."""
    if data.mcp is None:
        return None
    if data.url is not None or data.document is not UNSET or data.server is not None:
        raise InvalidError("send `mcp` without `url`, `document` and `server`: an MCP server describes itself")
    if data.mcp.startswith(SCHEME) and isinstance(data.bearer_token, str):
        raise InvalidError("bearer_token: a command takes none; give it its secrets in SAGE_MCP_COMMANDS")
    if data.bearer_token is not UNSET:
        return data.bearer_token
    row = await apis.find(session, project_id, data.name)
    origins = () if row is None else row.token_origins if data.token_origins is UNSET else data.token_origins
    if row is None or not is_trusted(data.mcp, row.secrets_for or row.source, origins):
        return None
    return apis.token_of(session, row)


async def _connected(
    data: ApiRequest, session: AsyncSession, project_id: UUID
) -> tuple[tool_documents.ApiDocument, str, McpOAuth] | None:
    """The API as it is, with its address, if it is the same MCP server and has a token by OAuth."""
    row = await apis.find(session, project_id, data.name)
    if row is None or row.source != (data.mcp or "").rstrip("/") or isinstance(data.bearer_token, str):
        return None
    oauth = oauth_of(await manifests.document(session, row.id, row.digest))
    rows = await api_credentials.of_api(session, row.id)
    if oauth is None or not any(each.authorized and each.value is not None for each in rows):
        return None
    return await tool_documents.api_document(session, row), row.source, oauth


async def _content(data: ApiRequest, fetch: DocumentFetch) -> bytes:
    """The text of the document, not decoded."""
    if (data.url is None) == (data.document is UNSET):
        raise InvalidError("send either `url`, `document` or `mcp`, and only one of them")
    if data.url is not None:
        if not data.url.lower().startswith(("http://", "https://")):  # a path would be a file of this machine
            raise ApiDocumentError("url: must begin with http:// or https://; send a file's text as `document`")
        if has_name(data.url):
            raise ApiDocumentError("url: must not have a name or password, since it is shown; send `credentials`")
        return await fetch(data.url)
    assert isinstance(data.document, str)  # see DocumentRequest
    return data.document.encode()

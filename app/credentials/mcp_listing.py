"""Lists the tools of MCP servers with the credentials that are stored for them."""

import httpx
import msgspec

from app.apis.credentials import bearer
from app.apis.mcp_oauth import LIST_TOOLS, McpOAuth, bare_app
from app.base.errors import ApiDocumentError, HostError
from app.credentials.document_fetch import first_principal
from app.credentials.mcp_discovery import discover
from app.credentials.stored_credentials import SecuredApi, StoredCredentials
from app.db import api_credentials
from app.db.database import Sessions
from app.gateway.mcp_client.connection_pool import McpServers
from app.gateway.mcp_client.exchange import AccessRefusedError
from app.gateway.mcp_client.tool_listing import fetch_listing
from app.gateway.scope_challenge import lacking_scopes


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
        rows = await api_credentials.of_api(session, api.id)
    credentials = StoredCredentials(sessions, client, [api], first_principal(rows))
    app = bare_app(api.name, oauth)
    listed = app.operations[LIST_TOOLS.name]
    try:
        try:
            return await fetch_listing(servers, url, await credentials.of(app, listed), oauth)
        except AccessRefusedError as refused:
            reason = f"Response status code is {refused.status}"
            renew = refused.status == 401
            scopes = [] if renew else lacking_scopes(refused.challenge)
            if not await credentials.refused(app, listed, reason, renew=renew, scopes=scopes):
                raise
        return await fetch_listing(servers, url, await credentials.of(app, listed), oauth)
    except HostError as error:
        raise _refusal(url, error) from error


def _refusal(url: str, error: HostError) -> ApiDocumentError:
    return ApiDocumentError(f"{url} does not answer as an MCP server: {error.message}")

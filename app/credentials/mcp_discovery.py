"""How the callers of an MCP server get a token: by the metadata of the server and its authorization server.

As the specification of MCP says: the challenge of a 401 leads to the metadata of the resource (RFC 9728), these to
those of the authorization server (RFC 8414, OpenID Connect Discovery).
"""

from collections.abc import Sequence
from typing import Final, TypeVar

import httpx
import httpx2
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

from app.apis.mcp_oauth import McpOAuth
from app.base.errors import ApiDocumentError, HostError
from app.base.untrusted_http import BodyError
from app.credentials.token_request import answer

_GRANTS: Final = ["authorization_code", "refresh_token"]

M = TypeVar("M", bound=BaseModel)


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
        except (httpx.HTTPError, httpx.InvalidURL, HostError, BodyError, TimeoutError, ValidationError):
            continue
    return None

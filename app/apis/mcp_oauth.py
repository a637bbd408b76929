"""How the callers of an MCP server get a token, as part of its document, and as a security scheme."""

from collections.abc import Mapping
from typing import Final

import msgspec

from app.apis.catalog import App, Operation
from app.apis.security_schemes import OAuthFlow, SecurityScheme
from app.base.errors import ApiDocumentError
from app.base.values import Json

OAUTH: Final = "oauth"
"""The name of the security scheme of a server that asks for tokens."""
LIST_TOOLS: Final = Operation(app="", name="list_tools", method="tools/list", path="", summary="")


class McpOAuth(msgspec.Struct, frozen=True, kw_only=True):
    """How a server's callers get a token: what it and its authorization server say of themselves."""

    resource: str
    issuer: str
    authorization_url: str
    token_url: str
    registration_url: str = ""
    reads_documents: bool = False
    scopes: list[str] = []


class _Secured(msgspec.Struct):
    oauth: McpOAuth | None = None


def oauth_of(content: bytes) -> McpOAuth | None:
    """Of a stored document, as JSON."""
    return msgspec.json.decode(content, type=_Secured).oauth


def bare_app(name: str, oauth: McpOAuth | None) -> App:
    """What is known of an app before its tools are listed."""
    schemes = {} if oauth is None else {OAUTH: _scheme(oauth)}
    security = tuple((each,) for each in schemes) or None
    return App(
        name=name,
        description="",
        server="",
        variables={},
        operations={LIST_TOOLS.name: msgspec.structs.replace(LIST_TOOLS, app=name)},
        schemes=schemes,
        security=security,
        digest="",
    )


def oauth_schemes(document: Mapping[str, Json]) -> dict[str, SecurityScheme]:
    """By name; none if the server asks for no token. Raises ApiDocumentError."""
    declared = document.get("oauth")
    if declared is None:
        return {}
    try:
        return {OAUTH: _scheme(msgspec.convert(declared, McpOAuth))}
    except msgspec.ValidationError as error:
        raise ApiDocumentError(f"oauth: {error}") from error


def _scheme(oauth: McpOAuth) -> SecurityScheme:
    flow = OAuthFlow(authorization_url=oauth.authorization_url, token_url=oauth.token_url)
    return SecurityScheme(
        name=OAUTH,
        kind="oauth2",
        prefix="Bearer",
        flows={"authorization_code": flow, "client_credentials": flow},
        scopes=tuple(oauth.scopes),
        resource=oauth.resource,
        issuer=oauth.issuer,
        registration_url=oauth.registration_url,
        reads_documents=oauth.reads_documents,
    )

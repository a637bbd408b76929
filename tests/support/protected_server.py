"""An MCP server of the SDK that asks for tokens, with an authorization server of its own beside it."""

import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
from mcp.server.auth.handlers.metadata import MetadataHandler
from mcp.server.auth.provider import (
    AccessToken,
    AuthorizationCode,
    AuthorizationParams,
    OAuthAuthorizationServerProvider,
    RefreshToken,
    construct_redirect_uri,
)
from mcp.server.auth.routes import build_metadata, cors_middleware
from mcp.server.auth.settings import AuthSettings, ClientRegistrationOptions, RevocationOptions
from mcp.server.mcpserver import MCPServer
from mcp.shared.auth import OAuthClientInformationFull, OAuthToken
from mcp_types import ToolAnnotations
from pydantic import AnyHttpUrl
from starlette.applications import Starlette
from starlette.routing import Route

from tests.support.listening_app import listening_app

SCOPE = "notes"
MORE = "notes:audit"  # the tool `audit` needs it, too
_METADATA = "/.well-known/oauth-authorization-server"


class Consents(OAuthAuthorizationServerProvider[AuthorizationCode, RefreshToken, AccessToken]):
    """Everybody consents at once. `asked` counts the requests for tokens by grant; `issuer` is what it calls
    itself when it sends a person back.
    """

    def __init__(self, documents: httpx.AsyncClient | None) -> None:
        self._documents = documents
        self.clients: dict[str, OAuthClientInformationFull] = {}
        self.codes: dict[str, AuthorizationCode] = {}
        self.access: dict[str, AccessToken] = {}
        self.refresh: dict[str, RefreshToken] = {}
        self.asked: Counter[str] = Counter()
        self.issuer = ""

    def expire(self) -> None:
        """Accept no access token that was issued so far."""
        self.access.clear()

    async def get_client(self, client_id: str) -> OAuthClientInformationFull | None:
        """Of a client that is a document, as it is read anew (Client ID Metadata Documents, section 4)."""
        if self._documents is None or not client_id.startswith("https://"):
            return self.clients.get(client_id)
        document = (await self._documents.get(client_id)).json()
        assert document["client_id"] == client_id
        self.clients[client_id] = OAuthClientInformationFull(**document, scope=f"{SCOPE} {MORE}")
        return self.clients[client_id]

    async def register_client(self, client_info: OAuthClientInformationFull) -> None:
        self.clients[client_info.client_id] = client_info

    async def authorize(self, client: OAuthClientInformationFull, params: AuthorizationParams) -> str:
        code = f"code-{len(self.codes)}-{'x' * 20}"
        self.codes[code] = AuthorizationCode(
            code=code,
            scopes=params.scopes or [],
            expires_at=time.time() + 60,
            client_id=client.client_id,
            code_challenge=params.code_challenge,
            redirect_uri=params.redirect_uri,
            redirect_uri_provided_explicitly=params.redirect_uri_provided_explicitly,
            resource=params.resource,
        )
        return construct_redirect_uri(str(params.redirect_uri), code=code, state=params.state, iss=self.issuer)

    async def load_authorization_code(
        self,
        client: OAuthClientInformationFull,  # noqa: ARG002
        authorization_code: str,
    ) -> AuthorizationCode | None:
        return self.codes.get(authorization_code)

    async def exchange_authorization_code(
        self, client: OAuthClientInformationFull, authorization_code: AuthorizationCode
    ) -> OAuthToken:
        self.asked["authorization_code"] += 1
        del self.codes[authorization_code.code]
        return self._issue(client, authorization_code.scopes, authorization_code.resource)

    async def load_refresh_token(
        self,
        client: OAuthClientInformationFull,  # noqa: ARG002
        refresh_token: str,
    ) -> RefreshToken | None:
        return self.refresh.get(refresh_token)

    async def exchange_refresh_token(
        self, client: OAuthClientInformationFull, refresh_token: RefreshToken, scopes: list[str]
    ) -> OAuthToken:
        self.asked["refresh_token"] += 1
        del self.refresh[refresh_token.token]
        return self._issue(client, scopes, refresh_token.resource)

    async def load_access_token(self, token: str) -> AccessToken | None:
        return self.access.get(token)

    async def revoke_token(self, token: AccessToken | RefreshToken) -> None:
        raise NotImplementedError

    def _issue(self, client: OAuthClientInformationFull, scopes: list[str], resource: str | None) -> OAuthToken:
        number = sum(self.asked.values())
        about: dict[str, Any] = {"client_id": client.client_id, "scopes": scopes, "resource": resource}
        access, refresh = f"access-t0ken-{number}", f"refresh-t0ken-{number}"
        self.access[access] = AccessToken(token=access, **about)
        self.refresh[refresh] = RefreshToken(token=refresh, **about)
        return OAuthToken(access_token=access, refresh_token=refresh, expires_in=3_600, scope=" ".join(scopes))


class ProtectedServer:
    """Its tools only read. `registers`: clients may register themselves; `documents` reads those of clients that
    are documents, if there may be any.
    """

    def __init__(self, *, registers: bool = True, documents: httpx.AsyncClient | None = None) -> None:
        self.consents = Consents(documents)
        self._reads_documents = documents is not None
        self.calls = 0
        self._registers = registers
        self._application: Starlette | None = None

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[str]:
        """Yields the URL of the endpoint."""

        async def app(scope: Any, receive: Any, send: Any) -> None:
            assert self._application is not None
            body, replay = await _read_body(receive) if scope["type"] == "http" else (b"", receive)
            if b'"tools/call"' in body and b'"audit"' in body and self._lacks_more(scope):
                await _refuse(send, f'Bearer error="insufficient_scope", scope="{MORE}", error_description="no"')
            else:
                await self._application(scope, replay, send)

        async with listening_app(app, lifespan="off", timeout_graceful_shutdown=0) as url:
            self._application = self._build(url)
            self.consents.issuer = url
            async with self._application.router.lifespan_context(self._application):
                yield f"{url}/mcp"

    def _lacks_more(self, scope: Any) -> bool:
        token = dict(scope["headers"]).get(b"authorization", b"").decode().removeprefix("Bearer ")
        return token in self.consents.access and MORE not in self.consents.access[token].scopes

    def _build(self, url: str) -> Starlette:
        settings: dict[str, Any] = {
            "issuer_url": url,
            "resource_server_url": f"{url}/mcp",
            "required_scopes": [SCOPE],
            "validate_token_resource": True,
            "client_registration_options": ClientRegistrationOptions(
                enabled=self._registers, valid_scopes=[SCOPE, MORE], default_scopes=[SCOPE]
            ),
        }
        server = MCPServer(
            "notes", auth=AuthSettings(**settings), auth_server_provider=self.consents, log_level="CRITICAL"
        )

        @server.tool(annotations=ToolAnnotations(read_only_hint=True))
        def count() -> int:
            """How often this was called."""
            self.calls += 1
            return self.calls

        @server.tool(annotations=ToolAnnotations(read_only_hint=True))
        def audit() -> str:
            """Who called this."""
            return "nobody else"

        application = server.streamable_http_app()
        if self._reads_documents:
            application.router.routes.insert(0, Route(_METADATA, self._metadata(url)))
        return application

    def _metadata(self, url: str) -> Any:
        """Those of the SDK's authorization server, which cannot say that it reads documents."""
        options = ClientRegistrationOptions(enabled=self._registers, valid_scopes=[SCOPE, MORE])
        known = build_metadata(AnyHttpUrl(url), None, options, RevocationOptions())
        known.client_id_metadata_document_supported = True
        return cors_middleware(MetadataHandler(known).handle, ["GET"])


async def _read_body(receive: Any) -> tuple[bytes, Any]:
    """The body of a request, and what gives its messages once more."""
    messages = [await receive()]
    while messages[-1].get("more_body"):
        messages.append(await receive())
    body = b"".join(each.get("body", b"") for each in messages)

    async def replay() -> Any:
        return messages.pop(0) if messages else await receive()

    return body, replay


async def _refuse(send: Any, challenge: str) -> None:
    headers = [(b"content-type", b"application/json"), (b"www-authenticate", challenge.encode())]
    await send({"type": "http.response.start", "status": 403, "headers": headers})
    await send({"type": "http.response.body", "body": b'{"error": "insufficient_scope"}'})

"""An API that asks for credentials in every way a document can declare, and its OAuth authorization server."""

import asyncio
import base64
import hashlib
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qs, urlencode

from litestar import Litestar, Request, Response, Router, get, post
from litestar.params import FromPath

from tests.support.listening_app import listening_app

CLIENT, SECRET = "the-client", "client s3cret/+"
KEY, PASSWORD = "k3y-0123456789", "pa55:w0rd"
WAYS = ("header_key", "query_key", "cookie_key", "basic", "bearer", "token", "client", "person", "openid", "login")
_BASIC = base64.b64encode(f"iris:{PASSWORD}".encode()).decode()


class SecuredService:
    """`issued` are the access tokens that it accepts, `asked` the requests to its token endpoint by grant.

    A token without the scope `required` is answered with 403, and one with a scope of `withheld` is not issued.
    """

    def __init__(self) -> None:
        self.issued: dict[str, str] = {}  # access token -> whose
        self.refresh_tokens: dict[str, str] = {}
        self.scopes: dict[str, list[str]] = {}  # of an access token
        self.required, self.withheld = "", ""
        self.codes: dict[str, tuple[str, str]] = {}  # code -> challenge and redirect URL
        self.asked: Counter[str] = Counter()
        self.lifetime = 3600
        self.writes = 0
        self.slow = 0.0  # seconds for a token
        self.begun = 0  # requests for tokens
        self.form_only = False  # whether it ignores a client's header
        self.url = ""
        self.asgi = Litestar([self._routes(), self._shown_document()], openapi_config=None, logging_config=None)

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[str]:
        """Serve on a socket; yields the URL."""
        async with listening_app(self.asgi, lifespan="off") as url:
            self.url = url
            yield url

    def consent(self, address: str) -> dict[str, str]:
        """What a person's browser brings back from an authorization address: state and code."""
        asked = {name: values[0] for name, values in parse_qs(address.partition("?")[2]).items()}
        assert (asked["client_id"], asked["response_type"], asked["code_challenge_method"]) == (
            CLIENT,
            "code",
            "S256",
        )
        code = f"code-{len(self.codes)}"
        self.codes[code] = asked["code_challenge"], asked["redirect_uri"]
        return {"state": asked["state"], "code": code, "callback": asked["redirect_uri"]}

    def expire(self) -> None:
        """Accept no access token that was issued so far."""
        self.issued.clear()

    def document(self) -> dict[str, Any]:
        """With a reading operation `who_<way>` for each way, and one that writes."""
        paths: dict[str, Any] = {
            f"/who/{way}": {
                "get": {"operationId": f"who_{way}", "security": [{way: []}], "responses": {"200": {}}}
            }
            for way in WAYS
        }
        paths["/write"] = {"post": {"operationId": "write", "security": [{"client": ["mail.write"]}]}}
        paths["/open"] = {"get": {"operationId": "open", "security": [], "responses": {"200": {}}}}
        flow = {"tokenUrl": f"{self.url}/token", "scopes": {"mail.read": "", "mail.write": ""}}
        consent = flow | {"authorizationUrl": "/authorize"}  # relative to the server
        key = {"type": "apiKey"}
        schemes = {
            "header_key": key | {"in": "header", "name": "X-Api-Key", "description": "from your profile"},
            "query_key": key | {"in": "query", "name": "api_key"},
            "cookie_key": key | {"in": "cookie", "name": "sid"},
            "basic": {"type": "http", "scheme": "basic"},
            "bearer": {"type": "http", "scheme": "bearer"},
            "token": {"type": "http", "scheme": "token"},
            "client": {"type": "oauth2", "flows": {"clientCredentials": flow}},
            "person": {"type": "oauth2", "flows": {"authorizationCode": consent}},
            "openid": {
                "type": "openIdConnect",
                "openIdConnectUrl": f"{self.url}/.well-known/openid-configuration",
            },
            "login": {"type": "oauth2", "flows": {"password": {"tokenUrl": "token", "scopes": {}}}},
        }
        return {
            "openapi": "3.1.0",
            "info": {"title": "Vault", "version": "1"},
            "servers": [{"url": self.url}],
            "components": {"securitySchemes": schemes},
            "paths": paths,
        }

    def _routes(self) -> Router:
        @get("/who/{way:str}")
        async def who(request: Request[Any, Any, Any], way: FromPath[str]) -> Response[Any]:
            user = self._user(request, way)
            if user is None:
                return Response({"message": "who are you?", "sent": dict(request.headers)}, status_code=401)
            answer = {"user": user, "query": request.url.query, "cookies": sorted(request.cookies)}
            return self._refusal(request) or Response(answer)

        @post("/write")
        async def write(request: Request[Any, Any, Any]) -> Response[Any]:
            if self._user(request, "client") is None:
                return Response({"message": "expired"}, status_code=401)
            self.writes += 1
            return Response({"writes": self.writes})

        @get("/open")
        async def open_to_all(request: Request[Any, Any, Any]) -> list[str]:
            return [*sorted({"authorization", "cookie", "x-api-key"} & set(request.headers)), request.url.query]

        @post("/token", status_code=200)
        async def token(request: Request[Any, Any, Any]) -> Response[Any]:
            self.begun += 1
            await asyncio.sleep(self.slow)
            form = {name: values[0] for name, values in parse_qs((await request.body()).decode()).items()}
            return self._token(form, request.headers.get("authorization", ""))

        @get("/.well-known/openid-configuration")
        async def discovery() -> dict[str, str]:
            return {
                "issuer": self.url,
                "authorization_endpoint": f"{self.url}/authorize",
                "token_endpoint": f"{self.url}/token",
            }

        return Router("/", route_handlers=[who, write, open_to_all, token, discovery])

    def _shown_document(self) -> Any:
        @get("/openapi.json")
        async def shown(request: Request[Any, Any, Any]) -> Response[Any]:
            if self._user(request, "client") is None:
                return Response({"message": "expired"}, status_code=401)
            return Response(self.document())

        return shown

    def _user(self, request: Request[Any, Any, Any], way: str) -> str | None:
        given = request.headers.get("authorization", "")
        static = {
            "header_key": request.headers.get("x-api-key") == KEY,
            "query_key": request.query_params.get("api_key") == KEY,
            "cookie_key": request.cookies.get("sid") == KEY,
            "basic": given == f"Basic {_BASIC}",
            "bearer": given == f"Bearer {KEY}",
            "token": given == f"Token {KEY}",
        }
        if way in static:
            return "iris" if static[way] else None
        return self.issued.get(given.removeprefix("Bearer "))

    def _refusal(self, request: Request[Any, Any, Any]) -> Response[Any] | None:
        """Of a token without the scope that is required."""
        token = request.headers.get("authorization", "").removeprefix("Bearer ")
        if not self.required or self.required in self.scopes.get(token, ()):
            return None
        challenge = f'Bearer error="insufficient_scope", scope="{self.required}"'
        return Response({}, status_code=403, headers={"WWW-Authenticate": challenge})

    def _token(self, form: dict[str, str], authorization: str) -> Response[Any]:
        grant = form["grant_type"]
        self.asked[grant] += 1
        user = {
            "client_credentials": self._of_client,
            "authorization_code": self._of_code,
            "refresh_token": self._of_refresh,
            "password": self._of_password,
        }[grant](form, authorization)
        if user is None:
            error = "invalid_client" if grant == "client_credentials" else "invalid_grant"
            return Response({"error": error, "error_description": f'no "{urlencode(form)}"'}, status_code=400)
        if self.withheld and self.withheld in form.get("scope", "").split():
            return Response({"error": "invalid_scope"}, status_code=400)
        number = sum(self.asked.values())
        self.scopes[f"access-{number}"] = form.get("scope", "").split()
        self.issued[f"access-{number}"] = user
        answer: dict[str, Any] = {
            "access_token": f"access-{number}",
            "token_type": "Bearer",
            "expires_in": self.lifetime,
        }
        if grant != "client_credentials":
            self.refresh_tokens = {f"refresh-{number}": user}  # each is good for one use
            answer["refresh_token"] = f"refresh-{number}"
        return Response(answer)

    def _of_client(self, form: dict[str, str], authorization: str) -> str | None:
        sent = base64.b64decode(authorization.removeprefix("Basic ") or "Og==").decode("latin1")
        by_header = sent == f"{CLIENT}:{SECRET}" and not self.form_only
        return "the client" if by_header or form.get("client_secret") == SECRET else None

    def _of_code(self, form: dict[str, str], _: str) -> str | None:
        challenge, redirect_url = self.codes.pop(form["code"], ("", ""))
        digest = hashlib.sha256(form["code_verifier"].encode()).digest()
        right = base64.urlsafe_b64encode(digest).decode().rstrip("=") == challenge
        return "a person" if right and form["redirect_uri"] == redirect_url else None

    def _of_refresh(self, form: dict[str, str], _: str) -> str | None:
        return self.refresh_tokens.pop(form["refresh_token"], None)

    def _of_password(self, form: dict[str, str], _: str) -> str | None:
        return form["username"] if form["password"] == PASSWORD else None

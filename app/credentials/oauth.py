"""Tokens of OAuth 2: by client credentials, password, refresh token, or consent with PKCE (RFC 6749, RFC 7636)."""

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import urljoin

import httpx
import msgspec
from authlib.common.security import generate_token
from authlib.oauth2 import OAuth2Error
from authlib.oauth2.client import OAuth2Client

from app.apis.security_schemes import Grant, OAuthFlow, SecurityScheme
from app.credentials.credential import Credential
from app.errors import AppError, HostError, InvalidError
from app.untrusted.http_body import BodyError, read_body

TOKEN_SECONDS: Final = 30.0  # for an answer of an authorization server
_MAX_ANSWER_BYTES: Final = 100_000
_FINAL: Final = {"invalid_grant", "invalid_client", "unauthorized_client", "access_denied"}
_FITS: Final[Mapping[Grant, tuple[str, ...]]] = {
    "authorization_code": ("client_id",),
    "client_credentials": ("client_id", "client_secret"),
    "password": ("username", "password"),
}


class TokenError(AppError):
    """An authorization server gave no token. If `final`, it will not give one until a person does something."""

    status = 502

    def __init__(self, message: str, *, final: bool = False) -> None:
        super().__init__(message)
        self.final = final


class Tokens(msgspec.Struct, frozen=True, kw_only=True):
    """An access token, and the refresh token that replaces the one before, if there is one."""

    access_token: str
    refresh_token: str | None
    expires_at: datetime | None  # None: not known


async def complete(
    name: str, credential: Credential, scheme: SecurityScheme, base: str, client: httpx.AsyncClient
) -> Credential:
    """The credential with its grant, its scopes and the addresses of the authorization server.

    They are stored, so that a document that changes later cannot send the client's secret elsewhere. Addresses may
    be relative to `base`. Raises InvalidError that names the field that is missing.
    """
    where = f"credentials.{name}"
    if credential.value is not None:
        return msgspec.structs.replace(credential, access_token=credential.value, value=None)
    flows = await _flows(where, credential, scheme, client)
    grant = credential.grant or _fitting(where, credential, flows)
    missing = [each for each in _FITS[grant] if getattr(credential, each) is None]
    if missing and credential.refresh_token is None:
        raise InvalidError(f"{where}: the grant {grant} needs {' and '.join(f'`{each}`' for each in missing)}")
    flow = flows.get(grant, OAuthFlow())
    scopes = list(scheme.scopes or flow.scopes) if credential.scopes is None else credential.scopes
    whole = msgspec.structs.replace(
        credential,
        grant=grant,
        scopes=scopes,
        token_url=credential.token_url or _absolute(flow.token_url or flow.refresh_url, base),
        authorization_url=credential.authorization_url or _absolute(flow.authorization_url, base),
        resource=credential.resource or scheme.resource or None,
        issuer=credential.issuer or scheme.issuer or None,
    )
    for field in ("token_url", "authorization_url"):
        if getattr(whole, field) is None and (field == "token_url" or grant == "authorization_code"):
            raise InvalidError(f"{where}: the document has no such address: give `{field}`")
    return whole


def authorization_address(credential: Credential, state: str, redirect_url: str) -> tuple[str, str]:
    """The address at which a person consents, and the verifier of PKCE to keep until then."""
    verifier = generate_token(64)
    session = _Session(credential, None, redirect_url)
    more = {"state": state, "code_verifier": verifier, **_resource(credential)}
    url, _ = session.create_authorization_url(credential.authorization_url, **more)
    return url, verifier


async def exchange(
    client: httpx.AsyncClient, credential: Credential, code: str, verifier: str, redirect_url: str
) -> Tokens:
    """The first tokens, for the code that the authorization server gave. Raises TokenError."""
    session = _Session(credential, client, redirect_url)
    arguments = {"grant_type": "authorization_code", "code": code, "code_verifier": verifier}
    asked = session.fetch_token(credential.token_url, **arguments, **_more(credential))
    return await _fetched(asked, credential)


async def renewed(client: httpx.AsyncClient, credential: Credential) -> Tokens:
    """New tokens, without a person. Raises TokenError, which is final if only a person can get them."""
    session = _Session(credential, client)
    if credential.token_url is not None and credential.refresh_token is not None:
        token = credential.refresh_token
        asked = session.refresh_token(credential.token_url, refresh_token=token, **_more(credential))
        return await _fetched(asked, credential)
    if credential.token_url is None or credential.grant in (None, "authorization_code"):
        raise TokenError("the access token is no longer accepted, and there is no refresh token", final=True)
    arguments: dict[str, str | None] = {"grant_type": credential.grant, **_more(credential)}
    if credential.grant == "password":
        arguments |= {"username": credential.username, "password": credential.password}
    return await _fetched(session.fetch_token(credential.token_url, **arguments), credential)


def _resource(credential: Credential) -> dict[str, str]:
    return {} if credential.resource is None else {"resource": credential.resource}


def _more(credential: Credential) -> dict[str, str]:
    """Of a request for tokens. Authorization servers of MCP want the client's id in the form in any case."""
    found = _resource(credential)
    if found and credential.client_id and credential.client_secret and credential.client_auth == "basic":
        found["client_id"] = credential.client_id
    return found


class _Session(OAuth2Client):  # type: ignore[misc] # without types
    """Authlib's client, over a client of httpx that is not its own."""

    def __init__(self, credential: Credential, client: httpx.AsyncClient | None, redirect_url: str = "") -> None:
        method = f"client_secret_{credential.client_auth}" if credential.client_secret else "none"
        super().__init__(
            client,
            client_id=credential.client_id,
            client_secret=credential.client_secret,
            token_endpoint_auth_method=method if credential.client_id else _anonymous,
            scope=" ".join(credential.scopes or ()) or None,
            redirect_uri=redirect_url or None,
            code_challenge_method="S256",
        )

    async def _fetch_token(self, url: str, body: str = "", *, headers: Any, auth: Any, **_: object) -> Any:
        return await self._token(url, body, headers, auth)

    async def _refresh_token(self, url: str, *, body: str, headers: Any, auth: Any, **_: object) -> Any:
        return await self._token(url, body, headers, auth)

    async def _token(self, url: str, body: str, headers: dict[str, str], auth: Any) -> Any:
        url, headers, body = auth.prepare("POST", url, dict(headers), body)
        status, content = await answer(self.session, "POST", url, headers, body)
        return self.parse_response_token(
            httpx.Response(status, content=content, request=httpx.Request("POST", url))
        )


def _anonymous(
    _: object, __: str, url: str, headers: dict[str, str], body: str
) -> tuple[str, dict[str, str], str]:
    """Of a client without an id: the password grant of many small servers."""
    return url, headers, body


async def _fetched(asking: Any, credential: Credential) -> Tokens:
    try:
        token = await asking
    except OAuth2Error as error:
        reason = f"{error.error}: {error.description}" if error.description else str(error.error)
        raise TokenError(_short(reason), final=error.error in _FINAL) from error
    except (httpx.HTTPError, httpx.InvalidURL, HostError, BodyError, TimeoutError, ValueError) as error:
        raise TokenError(_short(str(error) or type(error).__name__)) from error
    access = token.get("access_token")
    if not isinstance(access, str) or not access:
        raise TokenError("its answer has no `access_token`")
    refresh = token.get("refresh_token")
    seconds = token.get("expires_at")
    return Tokens(
        access_token=access,
        refresh_token=refresh if isinstance(refresh, str) else credential.refresh_token,
        expires_at=datetime.fromtimestamp(seconds, UTC) if isinstance(seconds, int) else None,
    )


async def answer(
    client: httpx.AsyncClient, method: str, url: str, headers: dict[str, str], body: str = ""
) -> tuple[int, bytes]:
    """The status and body of an authorization server's answer. Redirects are not followed."""
    request = httpx.Request(method, url, headers=headers, content=body.encode())
    async with asyncio.timeout(TOKEN_SECONDS):
        response = await client.send(request, stream=True, follow_redirects=False)
        try:
            return response.status_code, await read_body(response, _MAX_ANSWER_BYTES)
        finally:
            await response.aclose()


async def _flows(
    where: str, credential: Credential, scheme: SecurityScheme, client: httpx.AsyncClient
) -> Mapping[Grant, OAuthFlow]:
    """Those of the document, or of OpenID Connect's discovery."""
    if scheme.kind != "openid":
        return scheme.flows
    if credential.token_url is not None:
        return dict.fromkeys(_FITS, OAuthFlow())
    try:
        status, content = await answer(client, "GET", scheme.discovery_url, {"Accept": "application/json"})
        found = msgspec.json.decode(content, type=_Discovery)
    except (httpx.HTTPError, httpx.InvalidURL, HostError, BodyError, TimeoutError, msgspec.DecodeError) as error:
        reason = f"{scheme.discovery_url} cannot be read: {str(error) or type(error).__name__}"
        raise InvalidError(f"{where}: {reason}; give `token_url` and `authorization_url`") from error
    if status != 200:
        raise InvalidError(f"{where}: {scheme.discovery_url} answered with status {status}")
    flow = OAuthFlow(authorization_url=found.authorization_endpoint, token_url=found.token_endpoint)
    return dict.fromkeys(_FITS, flow)


class _Discovery(msgspec.Struct):
    """What is used of a provider's metadata (OpenID Connect Discovery 1.0, section 3)."""

    token_endpoint: str
    authorization_endpoint: str = ""


def _fitting(where: str, credential: Credential, flows: Mapping[Grant, OAuthFlow]) -> Grant:
    """The first one of the document that the given fields are enough for; with a password, that of a password."""
    order = sorted(flows, key=lambda grant: grant != "password" or credential.password is None)
    for grant in order:
        if all(getattr(credential, each) is not None for each in _FITS[grant]):
            return grant
    if credential.refresh_token or credential.access_token:
        return "authorization_code"
    ways = "; or ".join(
        f"{' and '.join(f'`{each}`' for each in fields)} for the grant {grant}"
        for grant, fields in _FITS.items()
        if grant in flows
    )
    raise InvalidError(f"{where}: give {ways or '`grant`, `token_url` and `client_id`'}; or a token as `value`")


def _absolute(url: str, base: str) -> str | None:
    return urljoin(f"{base}/", url) if url else None


def _short(text: str) -> str:
    return " ".join(text.split())[:300]

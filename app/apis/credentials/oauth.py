"""Requests to authorization servers: for tokens, and the address of a person's consent, with PKCE (RFC 7636)."""

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import httpx
import msgspec
from authlib.common.security import generate_token
from authlib.oauth2.client import OAuth2Client

from app.base.errors import AppError, HostError
from app.base.untrusted_http import BodyError, read_body
from app.credentials.credential import ClientAuth, Credential, CredentialText

TOKEN_SECONDS: Final = 30.0  # for an answer of an authorization server
NO_GRANT: Final = "invalid_grant"
_MAX_ANSWER_BYTES: Final = 100_000
_LONG: Final = 10 * 365 * 86_400.0  # seconds; no token is good for longer
_FINAL: Final = {NO_GRANT, "invalid_client", "unauthorized_client", "access_denied"}
_CLIENT_KNOWN: Final = {NO_GRANT, "invalid_scope", "unsupported_grant_type", "access_denied"}


class TokenError(AppError):
    """An authorization server gave no token. `code` is OAuth's name for the error, None if it did not answer."""

    status = 502

    def __init__(self, message: str, code: str | None = None) -> None:
        super().__init__(message)
        self.code = code

    @property
    def final(self) -> bool:
        """Whether there will be none until a person does something."""
        return self.code in _FINAL


class Tokens(msgspec.Struct, frozen=True, kw_only=True):
    """An access token, and the refresh token that replaces the one before, if there is one.

    `client_auth` is how the server recognized the client; None if it has no secret.
    """

    access_token: str
    refresh_token: str | None
    expires_at: datetime | None  # None: not known
    client_auth: ClientAuth | None


def authorization_address(credential: Credential, state: str, redirect_url: str) -> tuple[str, str]:
    """The address at which a person consents, and the verifier of PKCE to keep until then."""
    verifier = generate_token(64)
    session = _Session(credential, redirect_url=redirect_url)
    more = {"state": state, "code_verifier": verifier, **_resource(credential)}
    url, _ = session.create_authorization_url(credential.authorization_url, **more)
    return url, verifier


async def ask_for_tokens(
    client: httpx.AsyncClient, credential: Credential, arguments: Mapping[str, str | None], redirect_url: str = ""
) -> Tokens:
    """Tokens for a grant with these arguments, or for a refresh token. Raises TokenError.

    Unless the credential says how, the client's secret is sent in a header, and in the form if the server does not
    recognize the client: each of these is the only way of some servers (RFC 6749, section 2.3.1).
    """
    if credential.client_auth is not None or not credential.client_secret:
        return await _asked(client, credential, credential.client_auth or "basic", arguments, redirect_url)
    try:
        return await _asked(client, credential, "basic", arguments, redirect_url)
    except TokenError as error:
        if error.code is None or error.code in _CLIENT_KNOWN:
            raise
    return await _asked(client, credential, "post", arguments, redirect_url)


async def answer(
    client: httpx.AsyncClient, method: str, url: str, headers: dict[str, str], body: str = ""
) -> tuple[int, bytes]:
    """The status and body of an authorization server's answer. Redirects are not followed.

    Raises TimeoutError, BodyError, HostError, or an error of httpx.
    """
    request = httpx.Request(method, url, headers=headers, content=body.encode())
    async with asyncio.timeout(TOKEN_SECONDS):
        response = await client.send(request, stream=True, follow_redirects=False)
        try:
            return response.status_code, await read_body(response, _MAX_ANSWER_BYTES)
        finally:
            await response.aclose()


async def _asked(
    client: httpx.AsyncClient,
    credential: Credential,
    client_auth: ClientAuth,
    arguments: Mapping[str, str | None],
    redirect_url: str,
) -> Tokens:
    refreshing = "refresh_token" in arguments
    if refreshing:  # for what was granted, which may be less than was asked for (RFC 6749, section 6)
        credential = msgspec.structs.replace(credential, scopes=None)
    session = _Session(credential, client, client_auth, redirect_url)
    ask = session.refresh_token if refreshing else session.fetch_token
    try:
        status, content = await ask(credential.token_url, **arguments, **_more(credential, client_auth))
    except (httpx.HTTPError, httpx.InvalidURL, HostError, BodyError, TimeoutError) as error:
        raise TokenError(_short(str(error) or type(error).__name__)) from error
    if status >= 500:
        raise TokenError(f"its answer has the status {status}")
    try:
        found = msgspec.json.decode(content, type=_Answer, strict=False)
    except msgspec.DecodeError as error:
        raise TokenError(f"its answer, of status {status}, is none of OAuth: {_short(str(error))}", "") from error
    if found.error or not found.access_token:
        named = [each for each in (found.error, found.error_description) if each]
        reason = ": ".join(named) or f"its answer, of status {status}, has no `access_token`"
        raise TokenError(_short(reason), found.error)
    seconds = found.expires_in
    return Tokens(
        access_token=found.access_token,
        refresh_token=found.refresh_token or credential.refresh_token,
        expires_at=None if seconds is None else datetime.now(UTC) + timedelta(seconds=max(0, min(seconds, _LONG))),
        client_auth=client_auth if credential.client_secret else credential.client_auth,
    )


def _resource(credential: Credential) -> dict[str, str]:
    return {} if credential.resource is None else {"resource": credential.resource}


def _more(credential: Credential, client_auth: ClientAuth) -> dict[str, str]:
    """Of a request for tokens. Authorization servers of MCP want the client's id in the form in any case."""
    found = _resource(credential)
    if found and credential.client_id and credential.client_secret and client_auth == "basic":
        found["client_id"] = credential.client_id
    return found


class _Answer(msgspec.Struct):
    """Of a token endpoint (RFC 6749, sections 5.1 and 5.2), as servers send it: numbers may be texts."""

    access_token: CredentialText = ""
    refresh_token: CredentialText | None = None
    expires_in: float | None = None
    error: str = ""
    error_description: str | None = None


class _Session(OAuth2Client):  # type: ignore[misc] # without types
    """Authlib's client, over a client of httpx that is not its own. It returns answers as they are."""

    def __init__(
        self,
        credential: Credential,
        client: httpx.AsyncClient | None = None,
        client_auth: ClientAuth = "basic",
        redirect_url: str = "",
    ) -> None:
        method = f"client_secret_{client_auth}" if credential.client_secret else "none"
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

    async def _token(self, url: str, body: str, headers: dict[str, str], auth: Any) -> tuple[int, bytes]:
        url, headers, body = auth.prepare("POST", url, dict(headers), body)
        return await answer(self.session, "POST", url, headers, body)


def _anonymous(
    _: object, __: str, url: str, headers: dict[str, str], body: str
) -> tuple[str, dict[str, str], str]:
    """Of a client without an id: the password grant of many small servers."""
    return url, headers, body


def _short(text: str) -> str:
    return " ".join(text.split())[:300]

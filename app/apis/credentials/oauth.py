"""Tokens of OAuth 2: by client credentials, password, refresh token, or a person's consent (RFC 6749), with PKCE
(RFC 7636).
"""

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from urllib.parse import urljoin

import httpx
import msgspec
from authlib.common.security import generate_token
from authlib.oauth2.client import OAuth2Client

from app.apis.credentials.credential import ClientAuth, Credential, CredentialText
from app.apis.credentials.schemes import Grant, OAuthFlow, SecurityScheme
from app.base.errors import AppError, HostError, InvalidError
from app.base.untrusted_http import BodyError, read_body

TOKEN_SECONDS: Final = 30.0  # for an answer of an authorization server
NO_GRANT: Final = "invalid_grant"
_MAX_ANSWER_BYTES: Final = 100_000
_LONG: Final = 10 * 365 * 86_400.0  # seconds; no token is good for longer
_FINAL: Final = {NO_GRANT, "invalid_client", "unauthorized_client", "access_denied"}
_CLIENT_KNOWN: Final = {NO_GRANT, "invalid_scope", "unsupported_grant_type", "access_denied"}
NO_ANSWER: Final = (httpx.HTTPError, httpx.InvalidURL, HostError, BodyError, TimeoutError)
"""What `answer` raises."""
_FITS: Final[Mapping[Grant, tuple[str, ...]]] = {
    "authorization_code": ("client_id",),
    "client_credentials": ("client_id", "client_secret"),
    "password": ("username", "password"),
}


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
    """The status and body of an authorization server's answer. Redirects are not followed. Raises NO_ANSWER."""
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
    except NO_ANSWER as error:
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
        url, headers, body = auth.prepare("POST", url, dict(headers), body)
        return await answer(self.session, "POST", url, headers, body)

    _refresh_token = _fetch_token


def _anonymous(
    _: object, __: str, url: str, headers: dict[str, str], body: str
) -> tuple[str, dict[str, str], str]:
    """Of a client without an id: the password grant of many small servers."""
    return url, headers, body


def _short(text: str) -> str:
    return " ".join(text.split())[:300]


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
    scopes = " ".join(scheme.scopes or flow.scopes).split() if credential.scopes is None else credential.scopes
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
    return _storable(where, whole)


async def exchange(
    client: httpx.AsyncClient, credential: Credential, code: str, verifier: str, redirect_url: str
) -> Tokens:
    """The first tokens, for the code that the authorization server gave. Raises TokenError."""
    arguments = {"grant_type": "authorization_code", "code": code, "code_verifier": verifier}
    return await ask_for_tokens(client, credential, arguments, redirect_url)


async def renewed(client: httpx.AsyncClient, credential: Credential) -> Tokens:
    """New tokens, without a person. Raises TokenError, which is final if only a person can get them.

    A refresh token that is refused is no loss where the credentials themselves get another token.
    """
    needs_person = credential.grant in (None, "authorization_code")
    if credential.token_url is not None and credential.refresh_token is not None:
        try:
            return await ask_for_tokens(client, credential, {"refresh_token": credential.refresh_token})
        except TokenError as error:
            if needs_person or error.code is None:
                raise
    if credential.token_url is None or needs_person:
        raise TokenError("the access token is no longer accepted, and there is no refresh token", NO_GRANT)
    arguments: dict[str, str | None] = {"grant_type": credential.grant}
    if credential.grant == "password":
        arguments |= {"username": credential.username, "password": credential.password}
    return await ask_for_tokens(client, credential, arguments)


def _storable(where: str, credential: Credential) -> Credential:
    """As it is read again later. Raises InvalidError for what the document says and no request could."""
    try:
        return Credential.from_json(credential.to_json())
    except msgspec.ValidationError as error:
        reason, _, place = str(error).partition(" - at `$.")
        field = place.partition("[")[0].rstrip("`")
        remedy = f"the document's `{field}` cannot be used ({reason}): give `{field}`"
        raise InvalidError(f"{where}: {remedy}") from error


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
    except (*NO_ANSWER, msgspec.DecodeError) as error:
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

"""Tokens of OAuth 2: by client credentials, password, refresh token, or a person's consent (RFC 6749)."""

from collections.abc import Mapping
from typing import Final
from urllib.parse import urljoin

import httpx
import msgspec

from app.apis.security_schemes import Grant, OAuthFlow, SecurityScheme
from app.base.errors import HostError, InvalidError
from app.base.untrusted_http import BodyError
from app.credentials.credential import Credential
from app.credentials.token_request import NO_GRANT, TokenError, Tokens, answer, ask_for_tokens

_FITS: Final[Mapping[Grant, tuple[str, ...]]] = {
    "authorization_code": ("client_id",),
    "client_credentials": ("client_id", "client_secret"),
    "password": ("username", "password"),
}


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

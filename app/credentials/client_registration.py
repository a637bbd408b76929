"""Registers this server as a client where an authorization server lets clients do so themselves (RFC 7591)."""

from typing import Final, Literal

import httpx
import msgspec

from app.apis.security_schemes import SecurityScheme
from app.credentials.credential import Credential
from app.credentials.token_request import TokenError, answer
from app.errors import HostError
from app.untrusted.http_body import BodyError

_CREATED: Final = (200, 201)


async def register_client(client: httpx.AsyncClient, scheme: SecurityScheme, redirect_url: str) -> Credential:
    """The client that the authorization server has made of us. Raises TokenError."""
    wanted = {
        "client_name": "sage-server",
        "redirect_uris": [redirect_url],
        "grant_types": ["authorization_code", "refresh_token"],
        "response_types": ["code"],
        "application_type": "web",
        **({"scope": " ".join(scheme.scopes)} if scheme.scopes else {}),
    }
    headers = {"Accept": "application/json", "Content-Type": "application/json"}
    body = msgspec.json.encode(wanted).decode()
    try:
        status, content = await answer(client, "POST", scheme.registration_url, headers, body)
        made = msgspec.json.decode(content, type=_Registered) if status in _CREATED else None
    except (httpx.HTTPError, httpx.InvalidURL, HostError, BodyError, TimeoutError, msgspec.DecodeError) as error:
        reason = str(error) or type(error).__name__
        raise TokenError(f"{scheme.registration_url} registers no client: {reason[:300]}") from error
    if made is None:
        raise TokenError(f"{scheme.registration_url} registers no client: it answered with status {status}")
    in_form = made.token_endpoint_auth_method == "client_secret_post"
    how: Literal["basic", "post"] = "post" if in_form else "basic"
    return Credential(client_id=made.client_id, client_secret=made.client_secret or None, client_auth=how)


class _Registered(msgspec.Struct):
    """What is used of the answer (RFC 7591, section 3.2.1)."""

    client_id: str
    client_secret: str | None = None
    token_endpoint_auth_method: str | None = None

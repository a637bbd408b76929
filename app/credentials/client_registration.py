"""This server as a client of authorization servers that let clients introduce themselves: by a document, or by
registration (RFC 7591).
"""

from collections.abc import Sequence
from typing import Final, Literal

import httpx
import msgspec
from mcp.client.auth.utils import is_valid_client_metadata_url

from app.apis.security_schemes import SecurityScheme
from app.base.errors import HostError
from app.base.untrusted_http import BodyError
from app.credentials.credential import Credential, CredentialText
from app.credentials.token_request import TokenError, answer

_CREATED: Final = (200, 201)


DOCUMENT_PATH: Final = "/oauth/client.json"
"""Where this server describes itself as a client, under its public address."""
CALLBACK_PATH: Final = "/oauth/callback"


def client_metadata(base_url: str) -> dict[str, str | list[str]]:
    """This server as a client (RFC 7591, section 2). `base_url` is its public address."""
    return {
        "client_name": "sage-server",
        "redirect_uris": [f"{base_url}{CALLBACK_PATH}"],
        "grant_types": ["authorization_code", "refresh_token"],
        "response_types": ["code"],
        "application_type": "web",
    }


async def new_client(
    client: httpx.AsyncClient, scheme: SecurityScheme, scopes: Sequence[str], base_url: str
) -> Credential | None:
    """A client that nobody had to ask for; None if the authorization server takes none. Raises TokenError.

    It is a document at this server where the authorization server reads those (OAuth Client ID Metadata Document,
    whose address begins with https), or else one that is registered for the scopes.
    """
    document = f"{base_url}{DOCUMENT_PATH}"
    if scheme.reads_documents and is_valid_client_metadata_url(document):
        return Credential(client_id=document)
    if scheme.registration_url:
        return await _register(client, scheme, scopes, base_url)
    return None


async def _register(
    client: httpx.AsyncClient, scheme: SecurityScheme, scopes: Sequence[str], base_url: str
) -> Credential:
    """The client that the authorization server has made of us. Raises TokenError."""
    wanted = client_metadata(base_url) | ({"scope": " ".join(scopes)} if scopes else {})
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
    return Credential(
        client_id=made.client_id,
        client_secret=made.client_secret or None,
        client_auth=how,
        client_scopes=(made.scope or " ".join(scopes)).split() or None,
    )


class _Registered(msgspec.Struct):
    """What is used of the answer (RFC 7591, section 3.2.1)."""

    client_id: CredentialText
    client_secret: CredentialText | None = None
    token_endpoint_auth_method: str | None = None
    scope: str | None = None

"""A person's consent: sent to the authorization server with a state of their own, and back with a code.

Where clients may introduce themselves, this server does: by a document, or by registration.
"""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

import httpx
import msgspec
from authlib.common.security import generate_token
from mcp.client.auth.utils import is_valid_client_metadata_url, issuers_match
from sqlalchemy.ext.asyncio import AsyncSession

from app.apis import store as apis
from app.apis.credentials import oauth
from app.apis.credentials import store as credentials
from app.apis.credentials.credential import MAX_SCOPES, Credential, CredentialText
from app.apis.credentials.oauth import NO_ANSWER, TokenError, answer, authorization_address
from app.apis.credentials.schemes import SecurityScheme
from app.apis.credentials.stored_credentials import with_tokens, without_secrets
from app.apis.mcp import listing
from app.base.errors import InvalidError
from app.base.values import Json
from app.db import tables
from app.db.database import Sessions, keys_of, retry_while_unavailable
from app.projects import audit

_CREATED: Final = (200, 201)
_CONSENT_SECONDS: Final = 600.0  # until the address that a person opens is too old
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
    except (*NO_ANSWER, msgspec.DecodeError) as error:
        reason = str(error) or type(error).__name__
        raise TokenError(f"{scheme.registration_url} registers no client: {reason[:300]}") from error
    if made is None:
        raise TokenError(f"{scheme.registration_url} registers no client: it answered with status {status}")
    return Credential(
        client_id=made.client_id,
        client_secret=made.client_secret or None,
        client_auth="post" if made.token_endpoint_auth_method == "client_secret_post" else "basic",
        client_scopes=(made.scope or " ".join(scopes)).split() or None,
    )


class _Registered(msgspec.Struct):
    """What is used of the answer (RFC 7591, section 3.2.1)."""

    client_id: CredentialText
    client_secret: CredentialText | None = None
    token_endpoint_auth_method: str | None = None
    scope: str | None = None


def asked_for(session: AsyncSession, row: tables.ApiCredential) -> Credential:
    """The credential with the scopes that it has and those that it lacks, which a person is asked to grant."""
    credential = Credential.from_json(keys_of(session).decrypt(row.value or ""))
    if not row.wanted_scopes:
        return credential
    scopes = list(dict.fromkeys([*(credential.scopes or ()), *row.wanted_scopes]))
    return msgspec.structs.replace(credential, scopes=scopes[:MAX_SCOPES])


async def begin_consent(
    session: AsyncSession, row: tables.ApiCredential, credential: Credential, principal: str, redirect_url: str
) -> tuple[str, datetime]:
    """The address to open, and until when. Raises InvalidError if the credential has no such address.

    `credential` is stored once the person has consented. A principal keeps what it has until then.
    """
    if credential.authorization_url is None:
        raise InvalidError(f"scheme: {row.scheme} gets its tokens without a person (grant {credential.grant})")
    if row.principal != principal:  # its client, and no token of others
        credential = msgspec.structs.replace(credential, access_token=None, refresh_token=None)
        row = await credentials.put(
            session, row.api_id, row.scheme, principal, kind=row.kind, value=None, authorized=False
        )
    state = generate_token(48)
    url, verifier = authorization_address(credential, state, redirect_url)
    await credentials.begin_attempt(
        session,
        row.id,
        state=state,
        verifier=verifier,
        redirect_url=redirect_url,
        value=credential.to_json(),
        seconds=_CONSENT_SECONDS,
    )
    return url, datetime.now(UTC) + timedelta(seconds=_CONSENT_SECONDS)


async def end_consent(
    sessions: Sessions, client: httpx.AsyncClient, state: str, code: str, issuer: str = ""
) -> None:
    """Get and store the tokens. Raises InvalidError for a state that is unknown, was used, or is too old, and for
    an `issuer` that is not the one that was asked (RFC 9207).

    Raises TokenError if the authorization server gives none, and ConflictError if the API is moved meanwhile.
    """
    async with sessions.begin() as session:
        attempt = await credentials.take_attempt(session, state)
        row = None if attempt is None else await credentials.get(session, attempt.credential_id)
        if attempt is None or row is None:
            raise InvalidError("this address was used, or is too old: ask for another one")
        credential = asked_for(session, row) if attempt.value is None else Credential.from_json(attempt.value)
        credential_id, scheme, principal = row.id, row.scheme, row.principal
        api = await session.get_one(tables.Api, row.api_id, options=[apis.WITHOUT_DOCUMENT])
        project_id, name, place = api.project_id, api.name, apis.place_of(api)
    if issuer and credential.issuer and not issuers_match(issuer, credential.issuer):
        raise InvalidError(f"the answer is of {issuer[:200]}, and not of {credential.issuer}, which was asked")
    try:
        tokens = await oauth.exchange(client, credential, code, attempt.verifier, attempt.redirect_url)
    except TokenError as error:
        async with sessions.begin() as session:
            await credentials.fail_attempt(session, credential_id, without_secrets(str(error), credential))
        raise
    value = with_tokens(credential, tokens).to_json()

    async def store() -> None:
        async with sessions.begin() as session:
            held = await apis.hold(session, project_id, name, place)
            await credentials.end_attempt(session, credential_id, value=value, expires_at=tokens.expires_at)
            await listing.mark_connected(session, held.id)
            detail: dict[str, Json] = {"name": f"{name}.{scheme}", "principal": principal, "by": "consent"}
            await audit.add(session, project_id, None, "server", tables.AuditAction.SECRET_STORED, detail)

    await retry_while_unavailable(store)  # a code is good for one use


async def refuse_consent(sessions: Sessions, state: str, reason: str) -> None:
    """Record why the authorization server sent the person back without a code. An unknown state is ignored."""
    async with sessions.begin() as session:
        attempt = await credentials.take_attempt(session, state)
        if attempt is not None:
            await credentials.fail_attempt(session, attempt.credential_id, reason)

"""Begins a person's consent for an API, with the client that is stored or one that introduces itself."""

from datetime import datetime
from typing import NamedTuple

import httpx
import msgspec
from sqlalchemy.ext.asyncio import AsyncSession

from app.api.api_reading import read_api
from app.apis.document_reader import DocumentReader
from app.apis.mcp_oauth import OAUTH
from app.apis.security_schemes import SecurityScheme
from app.base.errors import InvalidError
from app.credentials.client_registration import CALLBACK_PATH, new_client
from app.credentials.consent import asked_for, begin_consent
from app.credentials.credential import Credential
from app.credentials.prepared import prepare
from app.db import api_credentials, apis, tables

_CLIENT = ("client_id", "client_secret", "client_auth", "client_scopes")


class ConsentView(msgspec.Struct, frozen=True):
    """The address that a person opens to consent, once, until `expires_at`."""

    url: str
    expires_at: datetime


class CredentialPlace(NamedTuple):
    """What a credential is stored for: an API, one of its schemes, and "" or a principal."""

    api: str
    scheme: str
    principal: str = ""


async def connect_api(
    session: AsyncSession,
    owner: tables.Project,
    place: CredentialPlace,
    base_url: str,
    http_client: httpx.AsyncClient,
    document_reader: DocumentReader,
) -> ConsentView:
    """Where a person consents. `base_url` is that of this server; the only scheme need not be named.

    Raises NotFoundError, InvalidError, TokenError, and ConflictError if the API is moved meanwhile.
    """
    base_url = base_url.rstrip("/")
    row = await apis.get(session, owner.id, place.api, document=False)
    seen = apis.place_of(row)
    usable = await api_credentials.usable(session, row.id, place.principal)
    hint = ""
    if place.scheme in ("", OAUTH) and OAUTH not in usable:
        app = await read_api(document_reader, session, row, row.bind)
        known = app.schemes.get(OAUTH)
        made = None if known is None else await new_client(http_client, known, known.scopes, base_url)
        if made is not None:
            prepared = await prepare(OAUTH, made, app.schemes, app.default_url, http_client)
            row = await apis.hold(session, owner.id, place.api, seen)
            await prepared.store(session, row.id, "")
        elif known is not None and known.reads_documents:
            hint = "; or set SAGE_PUBLIC_URL to an https address, where its authorization server finds one"
    found = await _to_connect(session, row, place, hint)
    credential = asked_for(session, found)
    if not _may_ask(credential):
        known = (await read_api(document_reader, session, row, row.bind)).schemes.get(found.scheme)
        credential = await _registered_again(http_client, known, credential, base_url)
        row = await apis.hold(session, owner.id, place.api, seen)
        found = await _to_connect(session, row, place)
    await apis.hold(session, owner.id, place.api, seen)
    callback = f"{base_url}{CALLBACK_PATH}"
    url, expires_at = await begin_consent(session, found, credential, place.principal, callback)
    await session.commit()
    return ConsentView(url, expires_at)


def _may_ask(credential: Credential) -> bool:
    """Whether the client is registered for the scopes."""
    return credential.client_scopes is None or set(credential.scopes or ()) <= set(credential.client_scopes)


async def _registered_again(
    client: httpx.AsyncClient, scheme: SecurityScheme | None, credential: Credential, base_url: str
) -> Credential:
    """With another client, which may ask for the scopes. The one before stays until a person consents."""
    made = None if scheme is None else await new_client(client, scheme, credential.scopes or (), base_url)
    if made is None:
        return credential  # the authorization server decides
    return msgspec.structs.replace(credential, **{field: getattr(made, field) for field in _CLIENT})


async def _to_connect(
    session: AsyncSession, row: tables.Api, place: CredentialPlace, hint: str = ""
) -> tables.ApiCredential:
    """The principal's own, or else those for all tasks: the client is the same."""
    rows = await api_credentials.usable(session, row.id, place.principal)
    found = {name: each for name, each in rows.items() if each.kind in ("oauth2", "openid")}
    scheme = place.scheme or (next(iter(found)) if len(found) == 1 else "")
    if scheme not in found:
        stored = ", ".join(sorted(found)) or "none"
        raise InvalidError(
            f"scheme: credentials of OAuth are stored for {stored}; store a `client_id` first: "
            f"PUT /v1/apis/{row.name}/credentials/{scheme or '{scheme}'}{hint}"
        )
    return found[scheme]

"""Fetches API documents with the credentials of the API, where their server shows them to nobody else.

Of a new document it also looks whether its server answers, and where else the API may be.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Final, TypeAlias
from urllib.parse import urlsplit

import httpx
import msgspec

from app.apis.catalog import App, Operation
from app.apis.credentials.credential import (
    Credential,
    Credentials,
    FixedCredentials,
    authentication,
    bearer,
    checked,
)
from app.apis.credentials.schemes import OAUTH_KINDS, Authentication, SecurityScheme, combined
from app.apis.credentials.stored_credentials import SecuredApi, StoredCredentials
from app.apis.documents.protocols import DocumentDeniedError, download
from app.apis.presentation import AppView
from app.apis.servers import origin, same_origin
from app.base.errors import ApiDocumentError, HostError, InvalidError
from app.base.secrets import SecretValues
from app.db import tables
from app.db.database import Sessions

_FETCH: Final = Operation(app="", name="fetch_document", method="GET", path="", summary="")
_TO_SEND: Final = (
    "send credentials of the API with the registration: `bearer_token`, or `credentials`, in which `place` and "
    "`name` say where a `value` goes as long as the document cannot be read"
)

FindCredentials: TypeAlias = Callable[[], Awaitable[tuple[Credentials, App]]]
"""Called once the server has refused. Raises ApiDocumentError, whose message completes "...: "."""

_SECONDS = 5.0


class DocumentFetch:
    """Fetches the document at `source`, and those that it refers to at the same origin.

    Credentials are sent after a refusal of their server, and to that origin alone; no error shows them.
    """

    def __init__(self, client: httpx.AsyncClient, source: str, find: FindCredentials) -> None:
        self._client = client
        self._source = source
        self._find = find
        self._found: tuple[Credentials, App] | None = None

    @property
    def needs_credentials(self) -> bool:
        """As far as it is known."""
        return self._found is not None

    async def __call__(self, url: str) -> bytes:
        """The text. Raises ApiDocumentError."""
        if not same_origin(url, self._source):
            return await download(self._client, url)
        if self._found is None:
            try:
                return await download(self._client, url)
            except DocumentDeniedError as refusal:
                self._found = await self._asked(refusal)
        try:
            return await self._with_credentials(url, *self._found)
        except HostError as error:
            raise ApiDocumentError(f"{url} needs the credentials of the API: {error.message}") from error

    async def _asked(self, refusal: DocumentDeniedError) -> tuple[Credentials, App]:
        self._check_place(refusal)
        try:
            return await self._find()
        except ApiDocumentError as error:
            raise ApiDocumentError(f"{refusal}: {error}") from refusal

    async def _with_credentials(self, url: str, credentials: Credentials, app: App) -> bytes:
        sent = await credentials.of(app, _FETCH)
        if not sent:
            raise ApiDocumentError(f"{url} is shown only with credentials of the API, and none are stored")
        try:
            return await self._authenticated(url, sent)
        except DocumentDeniedError as refusal:
            self._check_place(refusal)
            reason = "the document was refused"
            if not await credentials.refused(app, _FETCH, reason, renew=refusal.unknown):
                raise ApiDocumentError(f"{refusal}, also with the credentials of the API: check them") from refusal
        return await self._authenticated(url, await credentials.of(app, _FETCH))

    def _check_place(self, refusal: DocumentDeniedError) -> None:
        """Raises ApiDocumentError if another server refused, to which redirects have led."""
        if not same_origin(refusal.url, self._source):
            there = origin(refusal.url)
            reason = f"it leads to {there}, which gets no credentials: register the address there as `url`"
            raise ApiDocumentError(f"{refusal}: {reason}") from refusal

    async def _authenticated(self, url: str, sent: Authentication) -> bytes:
        hidden = SecretValues()
        hidden.add(*sent.secret_parts())
        try:
            return await download(self._client, url, authentication=sent)
        except DocumentDeniedError as refusal:
            raise DocumentDeniedError(hidden.mask(str(refusal)), refusal.url, unknown=refusal.unknown) from None
        except ApiDocumentError as error:
            raise ApiDocumentError(hidden.mask(str(error))) from None


def given(
    token: str | None, credentials: Mapping[str, Credential], schemes: Mapping[str, SecurityScheme]
) -> Authentication:
    """What of a registration can be sent before its document is read; falsy if there is nothing.

    `schemes` are those of the document that is replaced. OAuth has to have its token.
    """
    parts = [part for name, each in credentials.items() if (part := _part(name, each, schemes.get(name)))]
    if token is not None and not any("Authorization" in each.headers for each in parts):
        parts.append(bearer(token))
    return combined(parts)


def of_registration(sent: Authentication, app: str) -> tuple[Credentials, App]:
    """Raises ApiDocumentError if there is nothing to send."""
    if not sent:
        raise ApiDocumentError(_TO_SEND)
    return FixedCredentials(sent), _bare_app(app)


def of_api(
    sessions: Sessions,
    client: httpx.AsyncClient,
    api: SecuredApi,
    rows: Sequence[tables.ApiCredential],
    view: AppView,
) -> tuple[Credentials, App]:
    """What is stored for an API: of all tasks, or else of the first principal."""
    app = msgspec.structs.replace(_bare_app(api.name), schemes=view.schemes, security=view.security or None)
    return StoredCredentials(sessions, client, [api], first_principal(rows)), app


def first_principal(rows: Sequence[tables.ApiCredential]) -> str:
    """The first one, in the order of `store.of_api`, whose credentials can be sent; "" is all tasks."""
    return next((row.principal for row in rows if row.authorized and row.value is not None), "")


def is_trusted(source: str, server: str, token_origins: Collection[str]) -> bool:
    """Whether a document is where the credentials of its API may be sent."""
    return any(same_origin(source, each) for each in (server, *token_origins))


def check_server(before: str | None, now: AppView, token_origins: Collection[str], held: str) -> None:
    """Raises ApiDocumentError for a document that would lead secrets of its API, the `held` ones, elsewhere.

    `before` is the server that they were given for; None: that is not known any more.
    """
    if before != now.server and not is_trusted(now.server, before or "", token_origins):
        place = "" if before is None else f" in place of {before}"
        raise ApiDocumentError(
            f"it names another server now, {now.default_url}{place}, which would get {held}: register the API "
            f"again if that is right, with its secrets, or with the origin among its `token_origins`"
        )


def check_origin(source: str, server: str | None, token_origins: Collection[str]) -> None:
    """Raises ApiDocumentError if the credentials of an API may not be sent to where its document is.

    `server` is the API's, or None if only the document says it: then the document's server is trusted with it.
    """
    if server is not None and not is_trusted(source, server, token_origins):
        reason = f"gets no credentials of this API, which is at {server}: see `token_origins`"
        raise ApiDocumentError(f"{origin(source)} {reason}")


def _part(name: str, credential: Credential, scheme: SecurityScheme | None) -> Authentication | None:
    try:
        complete, kind = checked(name, credential, scheme)
    except InvalidError:  # told when the document is read
        return None
    if kind in OAUTH_KINDS and not (complete.value or complete.access_token):
        return None
    return authentication(scheme, complete)


def _bare_app(name: str) -> App:
    return App(name=name, description="", server="", variables={}, operations={}, digest="")


async def server_remark(client: httpx.AsyncClient, app: AppView, source: str | None) -> str | None:
    """What to tell about a server that does not answer, if there is another one to propose; else None.

    That is the first other one of the document that answers, or else the one that the document came from, at
    `source`. Any HTTP response counts as an answer.
    """
    base = app.default_url
    here = _origin(source)
    if "{" in base or _origin(base) == here:  # variables that each task gives; it has just answered
        return None
    if not app.other_servers and here is None:
        return None
    silence = await _silence(client, base)
    if silence is None:
        return None
    told = f"the document's server {base} does not answer ({silence})"
    found = await asyncio.gather(*(_silence(client, each) for each in app.other_servers))
    answering = next((each for each, none in zip(app.other_servers, found, strict=True) if none is None), None)
    if answering is not None:
        return f"{told}, but another one that it names does: send the document again with `server`: {answering}"
    others = f", nor do the {len(found)} others that it names" if len(found) > 1 else ""
    others = f", nor does {app.other_servers[0]}" if len(found) == 1 else others
    if here is None:
        return f"{told}{others}: if the API is elsewhere, send the document again with `server`"
    return (
        f"{told}{others}, and the document came from {here}: "
        f"if the API is there, send the document again with `server`: {here}{urlsplit(base).path}"
    )


def _origin(url: str | None) -> str | None:
    try:
        return None if url is None else origin(url)
    except ValueError:
        return None


async def _silence(client: httpx.AsyncClient, url: str) -> str | None:
    """Why a server does not answer; None if it does."""
    try:
        async with asyncio.timeout(_SECONDS), client.stream("GET", url, follow_redirects=False):
            return None
    except (TimeoutError, httpx.HTTPError, httpx.InvalidURL, UnicodeError, HostError) as error:
        return str(error) or f"no answer within {_SECONDS:g} seconds"

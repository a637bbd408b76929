"""Makes the calls of live APIs: with credentials, again after a `Retry-After`, recorded without secrets.

Tokens and bound secrets go only where their API trusts the server; credentials are renewed when the API no
longer accepts them, or wants more scopes (RFC 6750, section 3.1). Calls go out by HTTP, unless their protocol
has a sender of its own.
"""

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, Protocol

import httpx
import httpx2
import msgspec
from mcp.client.auth.utils import extract_field_from_www_auth, extract_scope_from_www_auth

from app.apis.calls.arguments import filled
from app.apis.calls.http_call import HttpCaller, Sending, WireRequest
from app.apis.calls.recorded_calls import KeptBytes
from app.apis.catalog import App, Operation
from app.apis.credentials.credential import Credentials, SecretStore
from app.apis.credentials.schemes import UNFIT_FOR_HEADERS, Authentication
from app.apis.documents.protocols import OutgoingRequest, encode
from app.apis.mcp.document import PROTOCOL
from app.apis.servers import address, origin
from app.apis.values import recordable
from app.base.errors import HostError, NoConnectionError, ShortageError
from app.base.processes import shortage_of
from app.base.retry_after import retry_after
from app.base.secrets import SecretValues
from app.base.values import Call, CallResponse, Json
from app.sandbox.protocol import Answer, RefusalError, stopped

_SCOPE: Final = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]{1,200}")  # RFC 6749, section 3.3
_MAX_SCOPES: Final = 100
_MAX_CHARS: Final = 4_000
_DENIED: Final = (401, 403)
_BUSY: Final = (429, 503)
_MENTIONED: Final = re.compile(r"retry[- ]after", re.IGNORECASE)
_LEAST_SECONDS: Final = 0.2


class RequestSecrets:
    """The secrets that the gateway adds to the requests of one rollout.

    `hidden` are those it has added, which not even the agent may see; they are added to `noted` as well.
    """

    def __init__(
        self,
        variables: Mapping[str, str],
        credentials: Credentials | None,
        store: SecretStore | None,
        noted: SecretValues,
    ) -> None:
        self.hidden = SecretValues()
        self._variables = variables
        self._credentials = credentials
        self._store = store  # of bound parameters
        self._noted = noted

    async def encode(self, app: App, operation: Operation, arguments: dict[str, Json]) -> OutgoingRequest:
        """The request, with the secrets of bound parameters, which only this method and the server see.

        Raises HostError for a call that cannot be sent.
        """
        if not operation.bound:
            return encode(app, operation, arguments)
        if self._store is None or not self._trusts(app, operation):
            raise HostError("PermissionError", f"{operation.api} needs a secret, and none may be sent there")
        values = {each.parameter.name: await self._store.value(each.secret) for each in operation.bound}
        self._hide(*values.values())
        try:
            return encode(app, *filled(operation, arguments, values))
        except HostError as error:
            raise HostError(error.kind, self.hidden.mask(error.message)) from None

    async def authentication(self, app: App, operation: Operation) -> Authentication:
        """The credentials of the API. Raises HostError if the operation's server may not get them."""
        if self._credentials is None:
            return Authentication()
        authentication = await self._credentials.of(app, operation)
        if authentication and not self._trusts(app, operation):
            reason = (
                f"is at another server, {operation.server or app.server}, which may not get the token of this API"
            )
            raise HostError("ApiError", f"{operation.api} {reason}: its owner can allow that with `token_origins`")
        self._hide(*authentication.secret_parts())
        if not authentication.fits_headers:
            raise HostError("ApiError", f"the credentials of {app.name} {UNFIT_FOR_HEADERS}")
        return authentication

    async def refused(
        self, app: App, operation: Operation, reason: str, *, renew: bool, scopes: Sequence[str] = ()
    ) -> bool:
        """As `Credentials.refused`."""
        return self._credentials is not None and await self._credentials.refused(
            app, operation, self.hidden.mask(reason), renew=renew, scopes=scopes
        )

    def _trusts(self, app: App, operation: Operation) -> bool:
        """Whether the operation's server may get the API's credentials: a document could send them elsewhere."""
        if operation.server is None and app.trusted:
            return True
        try:
            there = origin(address(app, operation.server or app.server, self._variables))
            if there in map(origin, app.token_origins):
                return True
            return app.trusted and there == origin(address(app, app.server, self._variables))
        except ValueError:
            return False

    def _hide(self, *texts: str) -> None:
        self.hidden.add(*texts)
        self._noted.add(*texts)


def lacking_scopes(challenge: str) -> list[str]:
    """Of the header WWW-Authenticate of a 403. Empty if it is about something else, or names none.

    >>> lacking_scopes('Bearer error="insufficient_scope", scope="notes notes.audit"')
    ['notes', 'notes.audit']
    >>> lacking_scopes('Bearer error="invalid_token", scope="notes"'), lacking_scopes("")
    ([], [])
    """
    if not challenge or not challenge.isprintable() or not challenge.isascii() or len(challenge) > _MAX_CHARS:
        return []
    refusal = httpx2.Response(403, headers={"WWW-Authenticate": challenge})
    if extract_field_from_www_auth(refusal, "error") != "insufficient_scope":
        return []
    named = (extract_scope_from_www_auth(refusal) or "").split()
    return list(dict.fromkeys(filter(_SCOPE.fullmatch, named)))[:_MAX_SCOPES]


class Caller(Protocol):
    """As `HttpCaller`."""

    async def send(self, request: WireRequest) -> Answer: ...


class AuthenticatedCaller:
    """For the calls of one rollout. `special` send for protocols that are more than single HTTP requests."""

    def __init__(
        self, http: HttpCaller, secrets: RequestSecrets, special: Mapping[str, Caller] | None = None
    ) -> None:
        self._http = http
        self._secrets = secrets
        self._special = special or {}

    async def send(
        self, app: App, operation: Operation, url: str, request: OutgoingRequest, sending: Sending | None = None
    ) -> Answer:
        """The parsed response. Raises HostError for every failure.

        When the API answers 401 to credentials that can be renewed, or 403 to a token that can get the scopes it
        lacks, they are renewed, and a call that only reads is sent again, once. Another call is not repeated; its
        error says that it may be.
        """
        try:
            return await self._once(app, operation, url, request, sending)
        except RefusalError as refusal:
            if refusal.status not in _DENIED:
                raise
            renew = refusal.status == 401
            scopes = [] if renew else lacking_scopes(refusal.challenge)
            status = f"Response status code is {refusal.status}"  # the rest may repeat a secret of the task
            if not await self._secrets.refused(app, operation, status, renew=renew, scopes=scopes):
                if not scopes:
                    raise
                reason = f"{refusal.message} (a person has to grant the scopes {' '.join(scopes)})"
                raise RefusalError(self.mask(reason), refusal.response) from refusal
            if not operation.safe:
                reason = f"{refusal.message} (the credentials have been renewed since: call it again)"
                raise RefusalError(reason, refusal.response) from refusal
        return await self._once(app, operation, url, request, sending)

    def mask(self, text: str) -> str:
        """The text without the credentials that were sent."""
        return self._secrets.hidden.mask(text)

    async def _once(
        self, app: App, operation: Operation, url: str, request: OutgoingRequest, sending: Sending | None
    ) -> Answer:
        authentication = await self._secrets.authentication(app, operation)
        try:
            address = authentication.url(url)
        except httpx.InvalidURL as error:
            raise HostError("ApiError", f"the call cannot be sent: {error}") from error
        outgoing = WireRequest(
            operation.method,
            address,
            authentication.merged(request.headers),
            request.content,
            self._secrets.hidden.mask,
            sending,
            authentication.certificate,
            operation.safe,
            request.approved,
            operation.answers,
        )
        return await self._caller(app).send(outgoing)

    def _caller(self, app: App) -> Caller:
        """Raises HostError for an MCP server where none is opened, as in a training world."""
        if app.protocol == PROTOCOL and PROTOCOL not in self._special:
            raise HostError("ApiError", f"{app.name} is an MCP server, and none is called here")
        return self._special.get(app.protocol, self._http)


class Patience:
    """The seconds from now on in which the waits of all calls have to end."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._end = time.monotonic() + seconds

    async def send(self, once: Callable[[], Awaitable[Answer]], *, repeatable: bool) -> tuple[Answer, int]:
        """The answer and the attempts that it took. The clock of the sandbox stands still during the waits.

        Raises RefusalError, with `Retry-After` in its text.
        """
        attempts = 0
        while True:
            attempts += 1
            try:
                return await once(), attempts
            except RefusalError as error:
                seconds = self._wait(error) if repeatable else None
                if seconds is None:
                    raise self._refused(error, attempts) from error
                with stopped():
                    await asyncio.sleep(seconds)

    def _wait(self, error: RefusalError) -> float | None:
        """The seconds to wait; None if the call is not to be repeated."""
        asked = retry_after(error.response.headers) if error.status in _BUSY else None
        seconds = None if asked is None else max(asked, _LEAST_SECONDS)
        return seconds if seconds is not None and time.monotonic() + seconds <= self._end else None

    def _refused(self, error: RefusalError, attempts: int) -> RefusalError:
        asked = error.response.headers.get("retry-after")
        message = error.message
        if self._seconds and asked and error.status in _BUSY and not _MENTIONED.search(message):
            message += f" (Retry-After: {asked[:100]})"
        return RefusalError(message, msgspec.structs.replace(error.response, attempts=attempts))


class LiveCalls:
    """The calls of one rollout. `kept` gets the bytes that they return."""

    def __init__(
        self, caller: AuthenticatedCaller, secrets: RequestSecrets, patience: Patience, kept: KeptBytes
    ) -> None:
        self._caller = caller
        self._secrets = secrets
        self._patience = patience
        self._kept = kept
        self.unreachable: str | None = None  # the latest failure to connect to a server

    async def make(
        self,
        call: Call,
        app: App,
        operation: Operation,
        url: str,
        request: OutgoingRequest,
        sending: Sending | None = None,
    ) -> Call:
        """The call with its result or error, as the journal records it. Raises ShortageError if the host has run
        out of what a connection needs.
        """
        response: CallResponse | None = None
        started = time.perf_counter()
        try:
            once = partial(self.ask, app, operation, url, request, sending)
            answer, attempts = await self._patience.send(once, repeatable=operation.safe)
            result, error = recordable(answer.value), None
            self._kept.add(result, answer.value)
            if answer.status is not None:  # a protocol may have none
                headers = dict(answer.headers)
                response = CallResponse(
                    status=answer.status, headers=headers, attempts=attempts, remark=answer.remark
                )
        except HostError as raised:
            if isinstance(raised, NoConnectionError):
                if (shortage := shortage_of(raised)) is not None:  # none of the agent's business, and not sent
                    raise ShortageError(shortage) from raised
                self.unreachable = raised.message
            result, error = None, f"{raised.kind}: {raised.message}"
            response = raised.response if isinstance(raised, RefusalError) else None
        seconds = time.perf_counter() - started
        return msgspec.structs.replace(call, result=result, error=error, response=response, seconds=seconds)

    async def ask(
        self, app: App, operation: Operation, url: str, request: OutgoingRequest, sending: Sending | None = None
    ) -> Answer:
        """The answer, without the secrets that were sent. Raises HostError, without them as well."""
        hidden = self._secrets.hidden
        try:
            answer = await self._caller.send(app, operation, url, request, sending)
        except HostError as error:
            error.message = hidden.mask(error.message)
            if isinstance(error, RefusalError):
                error.response = hidden.mask_value(error.response)
            raise
        value = answer.value
        masked = hidden.mask_bytes(value) if isinstance(value, bytes) else hidden.mask_value(value)
        return replace(answer, value=masked, headers=hidden.mask_value(answer.headers))

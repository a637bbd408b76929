"""Makes the calls of live APIs: with credentials, again after a `Retry-After`, recorded without secrets."""

import time
from dataclasses import replace
from functools import partial

import msgspec

from app.apis.binary_values import recordable
from app.apis.catalog import App, Operation
from app.apis.protocol import OutgoingRequest
from app.base.errors import HostError, NoConnectionError, ShortageError
from app.base.processes import shortage_of
from app.base.values import Call, CallResponse
from app.gateway.authenticated_caller import AuthenticatedCaller
from app.gateway.http_call import REDIRECTS
from app.gateway.kept_bytes import KeptBytes
from app.gateway.request_secrets import RequestSecrets
from app.gateway.retry_after import Patience
from app.gateway.wire_request import Sending
from app.sandbox.protocol import Answer, RefusalError


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


def is_unknown(call: Call) -> bool:
    """Whether a call has failed without having been refused: what it was to change may be changed or not."""
    status = call.response.status if call.error is not None and call.response is not None else 0
    return 200 <= status < 300 or status in REDIRECTS


def error_of(call: Call) -> HostError:
    """What a failed call raises."""
    kind, _, text = str(call.error).partition(": ")
    return HostError(kind, text) if call.response is None else RefusalError(text, call.response)

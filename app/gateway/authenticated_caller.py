"""Sends requests with the credentials of their API, and renews these when the API no longer accepts them."""

import httpx

from app.apis.catalog import App, Operation
from app.apis.protocol import OutgoingRequest
from app.base.errors import HostError
from app.gateway.callers import Callers
from app.gateway.request_secrets import RequestSecrets
from app.gateway.scope_challenge import lacking_scopes
from app.gateway.wire_request import Sending, WireRequest
from app.sandbox.protocol import Answer, RefusalError

_DENIED = (401, 403)


class AuthenticatedCaller:
    """For the calls of one rollout."""

    def __init__(self, callers: Callers, secrets: RequestSecrets) -> None:
        self._callers = callers
        self._secrets = secrets

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
        return await self._callers.of(app).send(outgoing)

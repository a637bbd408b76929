"""Adds tokens and bound secrets to requests, each only where its API trusts the server, and knows what to hide."""

from collections.abc import Mapping, Sequence

from app.apis.address import address, origin
from app.apis.api_documents import encode
from app.apis.authentication import UNFIT_FOR_HEADERS, Authentication
from app.apis.bound_parameters import filled
from app.apis.catalog import App, Operation
from app.apis.credentials import Credentials, SecretStore
from app.apis.protocol import OutgoingRequest
from app.base.errors import HostError
from app.base.secrets import SecretValues
from app.base.values import Json


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
            raise HostError("ApiError", _untrusted(app, operation))
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


def _untrusted(app: App, operation: Operation) -> str:
    server = operation.server or app.server
    return (
        f"{operation.api} is at another server, {server}, which may not get the token of this API: "
        "its owner can allow that with `token_origins`"
    )

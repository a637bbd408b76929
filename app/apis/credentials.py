"""Credentials of APIs, added by the gateway and never seen by the agent's code, and their removal from records."""

import re
from collections.abc import Sequence
from typing import Final, Protocol

import msgspec

from app.apis.authentication import Authentication
from app.apis.catalog import App, Operation
from app.base.secrets import MASK, is_ordinary, is_telling
from app.base.values import Call, Json

_PLAIN: Final = re.compile(r"[A-Za-z]{1,32}([_ -][A-Za-z]{1,32}){0,4}")  # a name that is itself no secret


class Credentials(Protocol):
    async def of(self, app: App, operation: Operation) -> Authentication:
        """What to send with a call of an operation; falsy if there is nothing to send.

        Raises HostError if there should be, but it cannot be had.
        """
        ...

    async def refused(
        self, app: App, operation: Operation, reason: str, *, renew: bool, scopes: Sequence[str] = ()
    ) -> bool:
        """Record that the API did not accept what `of` gave, or that its token lacks `scopes`.

        With `renew` or `scopes`, ask for other credentials if possible.

        Returns whether there are others now. Raises HostError if it failed to renew them.
        """
        ...


class SecretStore(Protocol):
    async def value(self, name: str) -> str:
        """The value of a stored secret. Raises HostError that names it if there is none."""
        ...


class Unrenewed:
    """For credentials that stay what they are."""

    async def refused(
        self,
        app: App,  # noqa: ARG002
        operation: Operation,  # noqa: ARG002
        reason: str,  # noqa: ARG002
        *,
        renew: bool,  # noqa: ARG002
        scopes: Sequence[str] = (),  # noqa: ARG002
    ) -> bool:
        """There are no others."""
        return False


class FixedCredentials(Unrenewed):
    """Fulfils `Credentials` with the same for every operation."""

    def __init__(self, sent: Authentication) -> None:
        self._sent = sent

    async def of(self, app: App, operation: Operation) -> Authentication:  # noqa: ARG002
        return self._sent


def bearer(token: str) -> Authentication:
    """A token in the header `Authorization` (RFC 6750)."""
    return Authentication(headers={"Authorization": f"Bearer {token}"})


def mask(value: Json) -> Json:
    """The same value with the values of sensitive names (password, token, ...) replaced by ***.

    >>> mask({"user": "iris", "password": "1234", "auth": {"access_token": "ab"}})
    {'user': 'iris', 'password': '***', 'auth': {'access_token': '***'}}
    """
    if isinstance(value, list):
        return [mask(each) for each in value]
    if isinstance(value, dict):
        return {name: "***" if is_telling(name) and each else mask(each) for name, each in value.items()}
    return value


def mask_call(call: Call) -> Call:
    """The same call without passwords and tokens. All values that an API with a sensitive name returns are.

    >>> call = Call(seq=0, turn=0, api="supervisor.show_passwords", arguments={}, result={"mail": "1234"})
    >>> mask_call(call).result
    {'mail': '***'}
    """
    result = _mask_leaves(call.result) if is_telling(call.api) else mask(call.result)
    response = call.response and msgspec.structs.replace(call.response, body=mask(call.response.body))
    return msgspec.structs.replace(call, arguments=mask(call.arguments), result=result, response=response)


def _mask_leaves(value: Json) -> Json:
    """The same value with *** for all but what ordinary names hold, so that code that picks from it still can."""
    if isinstance(value, list):
        return [_mask_leaves(each) for each in value]
    if isinstance(value, dict) and all(map(_PLAIN.fullmatch, value)):
        return {name: mask(each) if is_ordinary(name) else _mask_leaves(each) for name, each in value.items()}
    return value if value is None or isinstance(value, bool) else MASK

"""Credentials of APIs, added by the gateway and never seen by the agent's code, and their removal from records."""

from collections.abc import Collection, Mapping
from typing import Protocol

import msgspec

from app.errors import HostError
from app.records import Call, Json
from app.security.secret_values import is_telling


class Credentials(Protocol):
    async def headers(self, app: str) -> dict[str, str]:
        """The headers to send with every call to an app; {} if it needs none."""
        ...


class SecretStore(Protocol):
    async def value(self, name: str) -> str:
        """The value of a stored secret. Raises HostError that names it if there is none."""
        ...


class BearerTokens:
    """One static token per app. Those of `unreadable` apps are stored, but cannot be decrypted."""

    def __init__(self, tokens: Mapping[str, str], unreadable: Collection[str] = ()) -> None:
        self._tokens = dict(tokens)
        self._unreadable = frozenset(unreadable)

    async def headers(self, app: str) -> dict[str, str]:
        """Raises HostError for an app whose token is unreadable."""
        if app in self._unreadable:
            raise HostError("ApiError", f"the server cannot read its token for {app}: check SAGE_SECRET_KEY")
        return {"Authorization": f"Bearer {self._tokens[app]}"} if app in self._tokens else {}


def secret_parts(headers: Mapping[str, str]) -> list[str]:
    """The texts to remove from answers: each header value, and the part after its scheme; longest first.

    >>> secret_parts({"Authorization": "Bearer abc"})
    ['Bearer abc', 'abc']
    """
    parts = {part for value in headers.values() for part in (value, value.rpartition(" ")[2]) if part}
    return sorted(parts, key=len, reverse=True)


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
    """The same call without passwords and tokens; the whole result of an API with a sensitive name is one.

    >>> call = Call(seq=0, turn=0, api="supervisor.show_passwords", arguments={}, result={"mail": "1234"})
    >>> mask_call(call).result
    '***'
    """
    result = mask({call.api: call.result})[call.api]
    return msgspec.structs.replace(call, arguments=mask(call.arguments), result=result)

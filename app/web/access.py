"""The key that a request came with, and the limits on keys. Every route under /v1 names the scope it needs in its
`opt`.
"""

import ipaddress
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from hashlib import sha256
from typing import Any, Generic, TypeAlias, TypeVar
from uuid import UUID

import msgspec
from litestar import Request
from litestar.connection import ASGIConnection
from litestar.di import NamedDependency
from sqlalchemy.ext.asyncio import AsyncSession

from app.base.errors import ForbiddenError, LimitError

Connection = ASGIConnection[Any, Any, Any, Any]
ANY_KEY = ""  # the scope of routes that need a key with any scopes


class Access(msgspec.Struct, frozen=True):
    """The key that a request was authenticated with."""

    key_id: UUID
    name: str
    scopes: frozenset[str]
    project_id: UUID | None  # None: all projects
    has_ended: Callable[[], Awaitable[bool]]
    """Whether the key was revoked since, or the session of the console has ended. One query; whatever answers for
    long asks before each further part of the answer. False while the database does not answer.
    """

    @property
    def actor(self) -> str:
        """The name of this key in the audit log."""
        return f"key {self.name}"

    def allows(self, scope: str) -> bool:
        return scope in self.scopes or "admin" in self.scopes or scope == ANY_KEY

    def require(self, scope: str) -> None:
        """Raises ForbiddenError."""
        if not self.allows(scope):
            raise ForbiddenError(f"this key lacks the scope {scope!r}; ask an administrator for a key that has it")

    def sees(self, project_id: UUID) -> bool:
        return self.project_id in (None, project_id)


Caller: TypeAlias = NamedDependency[Access]
Db: TypeAlias = NamedDependency[AsyncSession]


async def provide_access(request: Request[Any, Any, Any]) -> Access:
    access: Access = request.state["access"]
    return access


_KNOWN_KEYS = 10_000
_FAILURES_PER_MINUTE = 20  # requests with unknown keys, from one address to one process


class KeyGate:
    """Refuses unknown keys of an address that sent too many, before they cost a query.

    Keys that were valid before go on working from there: one client must not lock out the others behind its
    address. Nor can it have a key counted as failed that is not.
    """

    def __init__(self) -> None:
        self._known: OrderedDict[bytes, None] = OrderedDict()
        self._failures = TokenBuckets[str]()
        self._requests = TokenBuckets[UUID]()

    def admit(self, address: str, secret: str) -> None:
        """Raises LimitError for a key that was never valid, from an address that sent too many others."""
        if _digest(secret) in self._known:
            return
        if seconds := self._failures.wait(_network(address), _FAILURES_PER_MINUTE):
            what = "unknown keys from this address"
            raise _limit_error("failed_keys_per_minute", _FAILURES_PER_MINUTE, what, seconds)

    def failed(self, address: str, secret: str) -> None:
        """The key is unknown or was revoked."""
        self._known.pop(_digest(secret), None)
        self._failures.charge(_network(address), _FAILURES_PER_MINUTE)  # several may have been admitted at once

    def passed(self, secret: str, key_id: UUID, per_minute: int | None) -> None:
        """The key is valid. Raises LimitError if it has sent too many requests."""
        self._known[_digest(secret)] = None
        self._known.move_to_end(_digest(secret))
        if len(self._known) > _KNOWN_KEYS:
            self._known.popitem(last=False)
        if per_minute and (seconds := self._requests.take(key_id, per_minute)):
            what, setting = "requests with this key", "SAGE_LIMIT_REQUESTS_PER_MINUTE"
            raise _limit_error("requests_per_minute", per_minute, what, seconds, setting)


def _digest(secret: str) -> bytes:
    return sha256(secret.encode("utf-8", "replace")).digest()


def _network(address: str) -> str:
    """The network that one client controls: an IPv4 address, or an IPv6 network of 64 bits.

    >>> _network("192.0.2.7"), _network("2001:db8:1:2:3::4"), _network("unix")
    ('192.0.2.7', '2001:db8:1:2::/64', 'unix')
    """
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    if parsed.version == 4:
        return str(parsed)
    return str(parsed.ipv4_mapped or ipaddress.ip_network((parsed, 64), strict=False))


def _limit_error(name: str, value: int, what: str, seconds: float, setting: str = "") -> LimitError:
    """`setting` raises the limit, if one does."""
    advice = f", or raise {setting}" if setting else ""
    message = f"more than {value:,} {what} in a minute: wait {seconds:.0f} s{advice}"
    return LimitError(message, name=name, value=value, setting=setting, retry_after=seconds)


K = TypeVar("K", bound=Hashable)


class TokenBuckets(Generic[K]):
    """A bucket for each key, which holds the tokens of one minute. The least recently used ones are forgotten."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, size: int = 10_000) -> None:
        self._clock = clock
        self._size = size
        self._buckets: OrderedDict[K, tuple[float, float]] = OrderedDict()  # tokens, and when there were so many

    def wait(self, key: K, per_minute: int) -> float:
        """The seconds until the bucket has a token; 0 if it has one."""
        tokens, _ = self._filled(key, per_minute)
        return max(0.0, (1 - tokens) * 60 / per_minute)

    def take(self, key: K, per_minute: int) -> float:
        """Take a token and return 0, or return the seconds until there is one."""
        seconds = self.wait(key, per_minute)
        if seconds == 0:
            self.charge(key, per_minute)
        return seconds

    def charge(self, key: K, per_minute: int) -> None:
        """Take a token even if there is none, which lengthens the wait by up to a minute."""
        tokens, now = self._filled(key, per_minute)
        self._buckets[key] = max(tokens - 1, -float(per_minute)), now
        self._buckets.move_to_end(key)
        if len(self._buckets) > self._size:
            self._buckets.popitem(last=False)

    def _filled(self, key: K, per_minute: int) -> tuple[float, float]:
        now = self._clock()
        tokens, since = self._buckets.get(key, (float(per_minute), now))
        return min(float(per_minute), tokens + (now - since) * per_minute / 60), now

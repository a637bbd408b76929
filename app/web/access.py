"""Limits on keys: failed ones of an address, and the requests of each. They count in this process only."""

import ipaddress
from collections import OrderedDict
from hashlib import sha256
from uuid import UUID

from app.api.token_buckets import TokenBuckets
from app.errors import LimitError

_KNOWN_KEYS = 10_000


class KeyGate:
    """Refuses unknown keys of an address that sent too many, before they cost a query.

    Keys that were valid before go on working from there: one client must not lock out the others behind its
    address. Nor can it have a key counted as failed that is not.
    """

    def __init__(self) -> None:
        self._known: OrderedDict[bytes, None] = OrderedDict()
        self._failures = TokenBuckets[str]()
        self._requests = TokenBuckets[UUID]()

    def admit(self, address: str, secret: str, per_minute: int) -> None:
        """Raises LimitError for a key that was never valid, from an address that sent too many others."""
        if not per_minute or _digest(secret) in self._known:
            return
        if seconds := self._failures.wait(_network(address), per_minute):
            raise _limit_error("failed_keys_per_minute", per_minute, "unknown keys from this address", seconds)

    def failed(self, address: str, secret: str, per_minute: int) -> None:
        """The key is unknown or was revoked."""
        self._known.pop(_digest(secret), None)
        if per_minute:
            self._failures.charge(_network(address), per_minute)  # several may have been admitted at once

    def passed(self, secret: str, key_id: UUID, per_minute: int | None) -> None:
        """The key is valid. Raises LimitError if it has sent too many requests."""
        self._known[_digest(secret)] = None
        self._known.move_to_end(_digest(secret))
        if len(self._known) > _KNOWN_KEYS:
            self._known.popitem(last=False)
        if per_minute and (seconds := self._requests.take(key_id, per_minute)):
            raise _limit_error("requests_per_minute", per_minute, "requests with this key", seconds)


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


def _limit_error(name: str, value: int, what: str, seconds: float) -> LimitError:
    setting = f"SAGE_LIMIT_{name.upper()}"
    message = f"more than {value:,} {what} in a minute: wait {seconds:.0f} s, or raise {setting}"
    return LimitError(message, name=name, value=value, setting=setting, retry_after=seconds)

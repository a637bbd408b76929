"""Connects to public addresses only, against server-side request forgery."""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Any, Final

import httpcore

from app.errors import HostError, NoConnectionError

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""All addresses of a host. Raises OSError, or UnicodeError for what is no host name."""

_GLOBAL_UNICAST: Final = ip_network("2000::/3")  # all that is assigned of IPv6 (RFC 4291, section 2.4)
_SPECIAL: Final = [  # of the registries of special-purpose addresses, those that Python may call global
    ip_network(text) for text in ("192.0.0.0/24", "192.88.99.0/24", "2001::/23", "2001:db8::/32", "3fff::/20")
]


async def resolve(host: str, port: int) -> list[str]:
    entries = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(entry[4][0]).partition("%")[0] for entry in entries]


class PublicNetwork(httpcore.AsyncNetworkBackend):
    """Looks a host up once for each connection, checks all its addresses and connects to the first of them.

    What the name resolves to later has no effect. Host header, TLS and the reuse of connections go by the name.
    """

    def __init__(self, resolve: Resolve = resolve, network: httpcore.AsyncNetworkBackend | None = None) -> None:
        self._resolve = resolve
        self._network = network or httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109  overrides
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Raises HostError, an ApiError, if any address of the host is not public."""
        address = await self._public_address(host, port)
        return await self._network.connect_tcp(str(address), port, timeout, local_address, socket_options)

    async def sleep(self, seconds: float) -> None:
        await self._network.sleep(seconds)

    async def _public_address(self, host: str, port: int) -> IPv4Address | IPv6Address:
        try:
            addresses = [ip_address(text) for text in await self._resolve(host, port)]
        except OSError as error:
            raise NoConnectionError(f"{host} cannot be found: {error.strerror}") from error
        except UnicodeError as error:  # no host name, such as `a..b`
            raise HostError("ApiError", f"{host} cannot be found: it is not a host name") from error
        for address in addresses:
            if not is_public(address):
                raise HostError(
                    "ApiError", f"{host} is at the private address {address}, which is closed to calls"
                )
        return addresses[0]


def is_public(address: IPv4Address | IPv6Address) -> bool:
    """Whether an address is global unicast. One that maps an IPv4 address (or is 6to4) counts as that address.

    The other translations (NAT64, Teredo, IPv4-compatible) count as private: where they lead is up to the network.

    >>> [is_public(ip_address(text)) for text in ("127.0.0.1", "::ffff:10.0.0.1", "64:ff9b::909:909", "9.9.9.9")]
    [False, False, False, True]
    """
    if isinstance(address, IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour
        if inner is not None:
            return is_public(inner)
        if address not in _GLOBAL_UNICAST:
            return False
    return address.is_global and not address.is_multicast and not any(address in each for each in _SPECIAL)

"""Refuses calls to private addresses (server-side request forgery)."""

import asyncio
import socket
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Final

import httpx

from app.errors import HostError

_GLOBAL_UNICAST: Final = ip_network("2000::/3")  # all that is assigned of IPv6 (RFC 4291, section 2.4)
_SPECIAL: Final = [  # of the registries of special-purpose addresses, those that Python may call global
    ip_network(text) for text in ("192.0.0.0/24", "192.88.99.0/24", "2001::/23", "2001:db8::/32", "3fff::/20")
]


async def resolve_public(request: httpx.Request) -> httpx.Request:
    """The same request, pinned to one public address of its host, so that a second look-up cannot lead elsewhere.

    Raises HostError, an ApiError, if any address of the host is not public. The name is still sent in the Host
    header, and TLS still checks the certificate against it.
    """
    host = request.url.host
    addresses = await _addresses(host, request.url.port or (443 if request.url.scheme == "https" else 80))
    for address in addresses:
        if not is_public(address):
            raise HostError("ApiError", f"{host} is at the private address {address}, which is closed to calls")
    request.url = request.url.copy_with(host=str(addresses[0]))
    request.extensions = {**request.extensions, "sni_hostname": host}
    return request


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


async def _addresses(host: str, port: int) -> list[IPv4Address | IPv6Address]:
    loop = asyncio.get_running_loop()
    try:
        entries = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise HostError("ApiError", f"{host} cannot be found: {error.strerror}") from error
    except UnicodeError as error:  # no host name, such as `a..b`
        raise HostError("ApiError", f"{host} cannot be found: it is not a host name") from error
    return [ip_address(str(entry[4][0]).partition("%")[0]) for entry in entries]

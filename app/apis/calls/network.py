"""Connects to what calls may reach, against server-side request forgery."""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Any, Final, TypeAlias

import httpcore

from app.base.errors import HostError, NoConnectionError
from app.gateway.own_services import OwnServices, Service

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""All addresses of a host. Raises OSError, or UnicodeError for what is no host name."""

Address: TypeAlias = IPv4Address | IPv6Address

_GLOBAL_UNICAST: Final = ip_network("2000::/3")  # all that is assigned of IPv6 (RFC 4291, section 2.4)
_TRANSLATED: Final = [  # whose last 32 bits are an IPv4 address: of NAT64 (RFC 6052, 8215) and SIIT (RFC 2765)
    ip_network(text) for text in ("64:ff9b::/96", "64:ff9b:1::/48", "::ffff:0:0:0/96")
]
_COMPATIBLE: Final = ip_network("::/96")
_ISATAP: Final = (0x0000_5EFE, 0x0200_5EFE)  # the 32 bits before an IPv4 address (RFC 5214)
_LOOPBACK: Final = 1
_SECONDS_OF_OTHERS: Final = 3.0  # for an address that is not the last: one lost packet, but not a route to nowhere
_METADATA: Final = [  # of clouds, at addresses that are not link-local
    ip_network(text)
    for text in ("100.100.100.200", "168.63.129.16", "192.0.0.192", "fd00:ec2::/32", "fd20:ce::/32")
]
_SPECIAL: Final = [  # of the registries of special-purpose addresses, those that Python may call global
    ip_network(text) for text in ("192.0.0.0/24", "192.88.99.0/24", "2001::/23", "2001:db8::/32", "3fff::/20")
]


async def resolve(host: str, port: int) -> list[str]:
    entries = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(entry[4][0]).partition("%")[0] for entry in entries]


class PublicNetwork(httpcore.AsyncNetworkBackend):
    """Looks a host up once for each connection, checks all its addresses and connects to the first that answers.

    What the name resolves to later has no effect. Host header, TLS and the reuse of connections go by the name.
    With `private`, private addresses are open. Link-local ones and the services `own` never are: by name, and by
    address, but for other names at the address that a `shared` one has on another machine.
    """

    def __init__(
        self,
        resolve: Resolve = resolve,
        network: httpcore.AsyncNetworkBackend | None = None,
        *,
        private: bool = False,
        own: OwnServices = OwnServices(),  # noqa: B008 - frozen
    ) -> None:
        self._resolve = resolve
        self._network = network or httpcore.AnyIOBackend()
        self._private = private
        self._own = own

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109  overrides
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Raises HostError, an ApiError, if any address of the host is closed."""
        *others, last = await self._open_addresses(host, port)
        short = _SECONDS_OF_OTHERS if timeout is None else min(timeout, _SECONDS_OF_OTHERS)
        for address in others:
            try:
                return await self._network.connect_tcp(str(address), port, short, local_address, socket_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout):
                continue
        return await self._network.connect_tcp(str(last), port, timeout, local_address, socket_options)

    async def sleep(self, seconds: float) -> None:
        await self._network.sleep(seconds)

    async def _open_addresses(self, host: str, port: int) -> list[Address]:
        try:
            addresses = [ip_address(text) for text in await self._resolve(host, port)]
        except OSError as error:
            raise NoConnectionError(f"{host} cannot be found: {error.strerror}") from error
        except UnicodeError as error:  # no host name, such as `a..b`
            raise HostError("ApiError", f"{host} cannot be found: it is not a host name") from error
        own = [(service, await self._places_of(service)) for service in self._own.at(port)]
        for address in addresses:
            if reason := self._closed(host, address, own):
                raise HostError("ApiError", f"{host} is {reason}, which is closed to calls")
        return list(dict.fromkeys(addresses))

    def _closed(self, host: str, address: Address, own: Sequence[tuple[Service, set[Address]]]) -> str | None:
        """What a closed address is; None if it is open. `own` are the services at the port, with their places."""
        if is_link_local(address):
            return f"at the link-local address {address}"
        if not (self._private or is_public(address)):
            return f"at the private address {address}"
        for service, places in own:
            inner = _inner(address)
            if service.is_named(host) or (_leads_to(places, inner) and (service.may_be(host) or _is_here(inner))):
                place = "" if host == str(address) else f"at {address}, "
                return f"{place}where {service.name} is"
        return None

    async def _places_of(self, service: Service) -> set[Address]:
        """None of one whose host cannot be found."""
        try:
            return {_inner(ip_address(text)) for text in await self._resolve(service.host, service.port)}
        except (OSError, UnicodeError):
            return set()


def _leads_to(places: set[Address], address: Address) -> bool:
    """Whether an address leads to one of the places. All addresses of this machine are one."""
    return address in places or (any(map(_is_here, places)) and _is_here(address))


def is_link_local(address: Address) -> bool:
    """Whether an address leads to the network's own services, such as a cloud's metadata, in whatever spelling.

    >>> [is_link_local(ip_address(text)) for text in ("169.254.169.254", "::ffff:a9fe:a9fe", "fe80::1", "::1")]
    [True, True, True, False]
    """
    inner = _inner(address)
    return inner.is_link_local or any(inner in each for each in _METADATA)


def _inner(address: Address) -> Address:
    """The IPv4 address that one of IPv6 stands for, if it does."""
    if isinstance(address, IPv4Address):
        return address
    inner = address.ipv4_mapped or address.sixtofour or (address.teredo[1] if address.teredo else None)
    is_translated = any(address in each for each in _TRANSLATED) or (int(address) >> 32) & 0xFFFF_FFFF in _ISATAP
    if inner is None and (is_translated or (address in _COMPATIBLE and int(address) > _LOOPBACK)):
        inner = IPv4Address(int(address) & 0xFFFF_FFFF)
    return inner or address


def _is_here(address: Address) -> bool:
    """Whether an address is one of this machine."""
    if address.is_loopback or address.is_unspecified:
        return True
    family = socket.AF_INET if isinstance(address, IPv4Address) else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((str(address), 0))
    except OSError:
        return False
    return True


def is_public(address: Address) -> bool:
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

"""The HTTP client for servers that are not ours, and what it may reach: live APIs, their documents, and webhooks.

It connects to no address that a forged request wants (SSRF), to no service of this deployment, and only to the
servers that it is given, whatever a document, a redirect or a bug asks for. Certificates are the operator's:
authorities to trust besides the public ones, and those for mutual TLS.
"""

import asyncio
import re
import socket
import ssl
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import cache
from http.cookiejar import CookieJar
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from pathlib import Path
from typing import Any, Final, NamedTuple, Self, TypeAlias
from urllib.parse import urlsplit

import httpcore
import httpx
import msgspec
from psycopg.conninfo import conninfo_to_dict

from app.apis.credentials.schemes import CERTIFICATE
from app.apis.servers import service
from app.base.errors import HostError, NoConnectionError, SettingError
from app.base.settings import Settings, urls_in
from app.base.untrusted_http import HttpTransport

_PORTS: Final = {
    "http": 80,
    "https": 443,
    "redis": 6379,
    "rediss": 6379,
    "sentinel": 26379,
    "amqp": 5672,
    "pyamqp": 5672,
    "amqps": 5671,
}
_HERE: Final = ("", "0.0.0.0", "::")
_IN_CLUSTER: Final = (".svc", ".cluster.local")  # names of Kubernetes' services

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

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")

_IDLE_SECONDS: Final = 2.0
"""Many servers close a connection that was idle for 5 s; a write sent at that moment fails and is not repeated."""


class Service(NamedTuple):
    """`name` is a part of an error. At the address of a `shared` one, as of an ingress or a load balancer, there
    may be others, which requests reach by their host names.
    """

    host: str
    port: int
    name: str
    shared: bool = False

    def is_named(self, host: str) -> bool:
        return _bare(host) == self.host

    def may_be(self, host: str) -> bool:
        """Whether a host at the same address may be this one: not if it has a full name of its own."""
        return not self.shared or not is_full_name(host) or _is_part(_bare(host), self.host)


class OwnServices(msgspec.Struct, frozen=True):
    services: tuple[Service, ...] = ()

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """REST, model servers, PostgreSQL, the broker, and metrics. The demo's APIs are not among them.

        Raises SettingError for a broker's address that cannot be read.
        """
        return cls(tuple(_services(settings)))

    def at(self, port: int) -> list[Service]:
        """Those at a port, on whatever host."""
        return [each for each in self.services if each.port == port]


def _services(settings: Settings) -> Iterator[Service]:
    yield Service(_named(settings.host), settings.port, "this server")
    for each in _of_urls(urls_in(settings.public_url), "this server"):
        yield each._replace(shared=is_full_name(each.host))
    if settings.metrics_port:
        for number in range(settings.runner_count):
            yield Service(_named(settings.host), settings.metrics_port + number, "the metrics")
    if not settings.engine_urls:
        yield Service("localhost", settings.engine_port, "a model server")
    yield from _of_urls(settings.model_servers, "a model server")
    for urls in (settings.engine_router_url, settings.rollout_engine_urls, settings.embeddings_url):
        yield from _of_urls(urls_in(urls), "a model server")
    yield from _of_urls(urls_in(settings.otel_exporter_otlp_endpoint), "the telemetry")
    yield from _of_brokers(settings.broker_url)
    for url in (settings.database_url, settings.database_direct_url):
        yield from _of_database(url)


def _of_brokers(urls: str) -> Iterator[Service]:
    """Raises SettingError for what is no URL, without the password in it."""
    try:
        yield from _of_urls(urls.split(";"), "the broker")
    except ValueError:
        raise SettingError(
            "BROKER_URL cannot be read: write / as %2F, and other signs in its password likewise"
        ) from None


def _of_urls(urls: Iterable[str], name: str) -> Iterator[Service]:
    for url in urls:
        parts = urlsplit(url)
        port = parts.port or _PORTS.get(parts.scheme)
        if parts.hostname and port:
            yield Service(_named(parts.hostname), port, name)


def _of_database(url: str) -> Iterator[Service]:
    """Each of its hosts; none of one at a socket of this machine's files."""
    if not url:
        return
    known = conninfo_to_dict(url.replace("postgresql+psycopg:", "postgresql:"))
    hosts = str(known.get("hostaddr") or known.get("host") or "").split(",")
    ports = str(known.get("port") or 5432).split(",")
    for place, host in enumerate(hosts):
        if not host.startswith(("/", "@")):
            port = ports[place] if place < len(ports) else ports[-1]
            yield Service(_named(host), int(port or 5432), "the database")


def is_full_name(host: str) -> bool:
    """Whether a host is a name with a domain: no address, however it is spelled, and no service of a cluster.

    >>> [is_full_name(host) for host in ("api.test", "api", "api.default.svc", "0xa.0.0.9", "167772169")]
    [True, False, False, False, False]
    """
    name = _bare(host)
    try:
        socket.inet_aton(name)
    except (OSError, UnicodeError):
        return "." in name and ":" not in name and not name.endswith(_IN_CLUSTER)
    return False


def _is_part(one: str, other: str) -> bool:
    """Whether one name is the other without its last parts, which the resolver's search list may add."""
    return one.startswith(f"{other}.") or other.startswith(f"{one}.")


def _bare(host: str) -> str:
    return host.lower().rstrip(".")


def _named(host: str) -> str:
    """As connections name it: in ASCII."""
    if host.isascii():
        return "localhost" if host in _HERE else _bare(host)
    with suppress(httpx.InvalidURL):  # there is no connection to such a name
        return _bare(httpx.URL(f"http://{host}").raw_host.decode())
    return host


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
        for known, places in own:
            inner = _inner(address)
            if known.is_named(host) or (_leads_to(places, inner) and (known.may_be(host) or _is_here(inner))):
                place = "" if host == str(address) else f"at {address}, "
                return f"{place}where {known.name} is"
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


class Certificates(msgspec.Struct, frozen=True):
    """`own` is a directory of PEM files, each a chain with its key; `authorities` is one file."""

    own: Path | None = None
    authorities: Path | None = None

    @classmethod
    def of(cls, settings: Settings) -> Self:
        return cls(settings.client_certificates, settings.ca_file)

    def path(self, name: str) -> Path:
        """Of an own one. Raises FileNotFoundError that names the setting."""
        if self.own is None:
            raise FileNotFoundError("SAGE_CLIENT_CERTIFICATES names no directory of certificates")
        path = self.own / name
        if not _NAME.fullmatch(name) or not path.is_file():
            raise FileNotFoundError(f"SAGE_CLIENT_CERTIFICATES has no file {name!r}")
        return path

    def context(self, own: Path | None = None) -> ssl.SSLContext:
        """For connections that show an own certificate, or none.

        Raises OSError or SSLError for one that cannot be read, SettingError for such authorities.
        """
        if own is None and self.authorities is None:
            return _public()
        context = httpx.create_ssl_context(trust_env=False)
        if self.authorities is not None:
            try:
                context.load_verify_locations(self.authorities)
            except (OSError, ssl.SSLError) as error:
                reason = f"{self.authorities} cannot be read as certificates in PEM: {error}"
                raise SettingError(f"SAGE_CA_FILE: {reason}") from error
        if own is not None:
            context.load_cert_chain(own)
        return context


@cache
def _public() -> ssl.SSLContext:
    """For all clients of a process: reading the authorities takes 15 ms."""
    return httpx.create_ssl_context(trust_env=False)


class CertificateTransport(httpx.AsyncBaseTransport):
    """Sends requests that name a certificate over connections of their own, all others by the plain transport.

    A file that has changed is read again; requests under way keep the connections that they have.
    """

    def __init__(
        self,
        plain: httpx.AsyncBaseTransport,
        open_transport: Callable[[ssl.SSLContext], httpx.AsyncBaseTransport],
        certificates: Certificates,
    ) -> None:
        self._plain = plain
        self._open_transport = open_transport
        self._certificates = certificates
        self._open: dict[str, _Connections] = {}
        self._locks = defaultdict[str, asyncio.Lock](asyncio.Lock)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        name = request.extensions.get(CERTIFICATE)
        if name is None:
            return await self._plain.handle_async_request(request)
        try:
            connections = await self._connections(name)
        except (OSError, ssl.SSLError) as error:
            raise httpx.ConnectError(f"the client certificate cannot be used: {error}", request=request) from error
        async with AsyncExitStack() as use:
            await use.enter_async_context(connections.used())
            response = await connections.transport.handle_async_request(request)
            assert isinstance(response.stream, httpx.AsyncByteStream)
            response.stream = _Answer(response.stream, use.pop_all())
            return response

    async def aclose(self) -> None:
        for each in self._open.values():
            await each.transport.aclose()
        await self._plain.aclose()

    async def _connections(self, name: str) -> "_Connections":
        path = self._certificates.path(name)
        async with self._locks[name]:
            changed = path.stat().st_mtime_ns
            old = self._open.get(name)
            if old is not None and old.changed == changed:
                return old
            context = await asyncio.to_thread(self._certificates.context, path)
            new = self._open[name] = _Connections(changed, self._open_transport(context))
            if old is not None:
                async with old.used():
                    old.retired = True
            return new


class _Connections:
    """Those that show a certificate as its file was when `changed`. They close once `retired` and unused."""

    def __init__(self, changed: int, transport: httpx.AsyncBaseTransport) -> None:
        self.changed = changed
        self.transport = transport
        self.retired = False
        self._users = 0

    @asynccontextmanager
    async def used(self) -> AsyncIterator[None]:
        """By a request, until its answer is read."""
        self._users += 1
        try:
            yield
        finally:
            self._users -= 1
            if self.retired and not self._users:
                await self.transport.aclose()


class _Answer(httpx.AsyncByteStream):
    """Ends the `use` of connections when it is closed."""

    def __init__(self, stream: httpx.AsyncByteStream, use: AsyncExitStack) -> None:
        self._stream = stream
        self._use = use

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for part in self._stream:
            yield part

    async def aclose(self) -> None:
        async with self._use:
            await self._stream.aclose()


class BoundedTransport(httpx.AsyncBaseTransport):
    """Sends requests to the services of these URLs by another transport, and no others."""

    def __init__(self, transport: httpx.AsyncBaseTransport, servers: Collection[str]) -> None:
        self._transport = transport
        self._services = frozenset(map(service, servers))

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if service(str(request.url)) not in self._services:
            raise httpx.ConnectError(
                f"a trial may not reach {request.url.host}: it is no staging server", request=request
            )
        return await self._transport.handle_async_request(request)

    async def aclose(self) -> None:
        await self._transport.aclose()


class NoCookies(CookieJar):
    """Keeps no cookies: a client that all tasks share must neither send nor collect those of one response."""

    def extract_cookies(self, response: Any, request: Any) -> None:  # noqa: ARG002
        return


async def _forget_no_address(response: httpx.Response) -> None:
    """A redirect to what is no address has none: httpx would raise an error, as if there had been no answer."""
    try:
        target = httpx.URL(response.headers.get("location", ""))
        response.request.url.join(target)
        is_address = bool(target.host) or not target.scheme
    except (httpx.InvalidURL, UnicodeError):
        is_address = False
    if not is_address:
        del response.headers["location"]


def open_client(  # noqa: PLR0913 - options of one client
    *,
    allow_private_hosts: bool,
    connections: int = 100,
    kept: int = 20,
    timeout: float = 5,
    network: PublicNetwork | None = None,
    own: OwnServices = OwnServices(),  # noqa: B008 - frozen
    only: Collection[str] | None = None,
    certificates: Certificates = Certificates(),  # noqa: B008 - frozen
) -> httpx.AsyncClient:
    """Without cookies, and without the proxies that the environment names. At most `kept` idle connections.

    Every connection goes through a network, those of redirects, too: to no link-local address and to none of the
    services `own`, and if private hosts are not allowed, to none of them. With `only` it reaches no servers but
    those of these URLs. Requests may name an own one of the `certificates`.
    """
    open_to = network or PublicNetwork(private=allow_private_hosts, own=own)
    limits = httpx.Limits(
        max_connections=connections, max_keepalive_connections=kept, keepalive_expiry=_IDLE_SECONDS
    )

    def open_transport(tls: ssl.SSLContext) -> httpx.AsyncBaseTransport:
        return HttpTransport(limits, tls, open_to)

    plain = open_transport(certificates.context())
    transport = CertificateTransport(plain, open_transport, certificates)
    return httpx.AsyncClient(
        event_hooks={"response": [_forget_no_address]},
        transport=transport if only is None else BoundedTransport(transport, only),
        timeout=timeout,
        trust_env=False,
        cookies=NoCookies(),
    )

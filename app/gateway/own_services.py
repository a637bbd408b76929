"""The services of this deployment, as its settings name them: closed to the calls of tasks, wherever they run."""

import socket
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Final, NamedTuple, Self
from urllib.parse import urlsplit

import httpx
import msgspec
from psycopg.conninfo import conninfo_to_dict

from app.base.errors import SettingError
from app.base.settings import Settings, urls_in

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
    for service in _of_urls(urls_in(settings.public_url), "this server"):
        yield service._replace(shared=is_full_name(service.host))
    if settings.metrics_port:
        for number in range(settings.runner_count):
            yield Service(_named(settings.host), settings.metrics_port + number, "the metrics")
    if not settings.engine_urls:
        yield Service("localhost", settings.engine_port, "a model server")
    engines = settings.engine_urls, settings.engine_router_url, settings.rollout_engine_urls
    for urls in (*engines, settings.embeddings_url):
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

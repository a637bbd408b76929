"""The services of this deployment, as its settings name them: closed to the calls of tasks, wherever they run."""

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple, Self
from urllib.parse import urlsplit

import msgspec
from psycopg.conninfo import conninfo_to_dict

from app.errors import SettingError
from app.setting_lists import urls_in
from app.settings import Settings

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


class Service(NamedTuple):
    """`name` is a part of an error."""

    host: str
    port: int
    name: str


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
    yield from _of_urls(urls_in(settings.public_url), "this server")
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


def _named(host: str) -> str:
    return "localhost" if host in _HERE else host.lower()

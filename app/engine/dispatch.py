"""The model servers of a deployment: named one by one, or found by resolving names again and again."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from socket import SOCK_STREAM
from urllib.parse import urlsplit

import structlog

from app.engine.health_monitor import HealthMonitor
from app.engine.replica import Replica
from app.errors import EngineError
from app.loop import Loop

log = structlog.get_logger(__name__)

Resolve = Callable[[str], Awaitable[list[str]]]
"""The URLs of all servers behind a URL. Raises OSError if its name does not resolve now."""

_RESOLVE_TIMEOUT = 10.0  # seconds


async def addresses_of(url: str) -> list[str]:
    """The URL with each address of its host, as DNS knows them now. Raises OSError."""
    parts = urlsplit(url)
    port = parts.port or 80
    user, at, _ = parts.netloc.rpartition("@")
    async with asyncio.timeout(_RESOLVE_TIMEOUT):
        found = await asyncio.get_running_loop().getaddrinfo(parts.hostname, port, type=SOCK_STREAM)
    hosts = sorted({str(address[0]) for *_, address in found})
    places = [f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host in hosts]
    return [parts._replace(netloc=f"{user}{at}{place}").geturl() for place in places]


class Servers:
    """Monitored model servers. With `seconds`, the names in `urls` are resolved that often, and each address is a
    server; a name that does not resolve keeps those it had.
    """

    def __init__(
        self, urls: Sequence[str], monitor: Callable[[str], HealthMonitor], seconds: float, resolve: Resolve
    ) -> None:
        self.cause = ""  # which names do not resolve
        self._urls, self._new_monitor, self._resolve = urls, monitor, resolve
        self._by_name: dict[str, list[str]] = {}
        self._monitors: dict[str, HealthMonitor] = {}
        self._leaving: list[Replica] = []  # gone from DNS, with requests under way
        self._found = asyncio.Event()
        self._loop = Loop("model server names", self._look_up, seconds) if seconds else None
        self._running = False
        if not seconds:
            self._use(urls)

    @property
    def monitors(self) -> list[HealthMonitor]:
        return list(self._monitors.values())

    @property
    def replicas(self) -> tuple[Replica, ...]:
        return tuple(monitor.replica for monitor in self._monitors.values())

    def start(self) -> None:
        self._running = True
        for monitor in self.monitors:
            monitor.loop.start()
        if self._loop is not None:
            self._loop.start()

    async def stop(self) -> None:
        if self._loop is not None:
            await self._loop.stop()
        await asyncio.gather(*(monitor.loop.stop() for monitor in self.monitors))
        for replica in (*self.replicas, *self._leaving):
            await replica.close()

    async def all_checked(self) -> None:
        """Wait until each server was checked once."""
        await self._found.wait()
        for monitor in self.monitors:
            await monitor.checked.wait()

    def recheck(self) -> None:
        """Resolve names and check servers now."""
        for loop in (self._loop, *(monitor.loop for monitor in self.monitors)):
            if loop is not None:
                loop.wake()

    def no_server_error(self) -> EngineError:
        causes = [f"{one.url}: {one.cause}" for one in self.replicas]
        return EngineError(f"no model server answers. {'; '.join([self.cause] * bool(self.cause) + causes)}")

    async def _look_up(self) -> None:
        failures = []
        for url in self._urls:
            try:
                self._by_name[url] = await self._resolve(url)
            except OSError as error:
                failures.append(f"{url} in ENGINE_URLS does not resolve ({error or 'timeout'})")
        if failures and self.cause != "; ".join(failures):
            log.warning("names of model servers do not resolve", causes=failures)
        self.cause = "; ".join(failures)
        await self._close_left()
        left = self._use([each for url in self._urls for each in self._by_name.get(url, [])])
        for monitor in left:
            await monitor.loop.stop()

    def _use(self, urls: Sequence[str]) -> list[HealthMonitor]:
        """Monitor exactly these. Returns the monitors of those that left."""
        urls = list(dict.fromkeys(url.rstrip("/") for url in urls))
        left = [monitor for url, monitor in self._monitors.items() if url not in urls]
        joined = [url for url in urls if url not in self._monitors]
        self._monitors = {url: self._monitors.get(url) or self._new_monitor(url) for url in urls}
        for url in joined:
            if self._running:
                self._monitors[url].loop.start()
        for monitor in left:
            monitor.checked.set()
            self._leaving.append(monitor.replica)
        if self._loop is not None and (joined or left):
            log.info("the model servers changed", joined=joined, left=[each.replica.url for each in left])
        self._found.set()
        return left

    async def _close_left(self) -> None:
        """A server that shuts down in order completes its requests first."""
        for replica in [each for each in self._leaving if not each.in_flight]:
            self._leaving.remove(replica)
            await replica.close()

"""Which model server gets a request: the servers of a deployment, named or found by resolving names again and
again; first come, first served, with a limit of requests per server; or a router in front of them that chooses
itself.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Collection, Sequence
from http import HTTPStatus
from socket import SOCK_STREAM
from urllib.parse import urlsplit

import msgspec
import structlog

from app.base.errors import AdapterError, EngineError, EngineRefusalError, SettingError
from app.base.loop import Loop
from app.base.settings import BY_DNS
from app.engine.health import HealthChecks, HealthMonitor, probe_generation
from app.engine.protocol import Completion, Sampling
from app.engine.replica import Replica, ReplicaLimits, ReplicaLoad, ReplicaState, choose_replica
from app.engine.vllm import ReplicaError

log = structlog.get_logger(__name__)

Resolve = Callable[[str], Awaitable[list[str]]]
"""The URLs of all servers behind a URL. Raises OSError if its name does not resolve now."""

_RESOLVE_TIMEOUT = 10.0  # seconds
_ATTEMPTS = 3  # at a generation that a server behind a router broke off
_CONNECTIONS = 1024  # to a router: the dispatcher limits requests, by the number of servers


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
    """Monitored model servers. Names after `dns+` are resolved every so many `seconds`, and each address is a
    server; a name that does not resolve keeps those it had.
    """

    def __init__(
        self, urls: Sequence[str], monitor: Callable[[str], HealthMonitor], seconds: float, resolve: Resolve
    ) -> None:
        self.cause = ""  # which names do not resolve
        self._new_monitor, self._resolve = monitor, resolve
        self._names = [url for url in urls if url.startswith(BY_DNS)]
        self._servers: dict[str, list[str]] = {url: [] if url in self._names else [url] for url in urls}
        self._monitors: dict[str, HealthMonitor] = {}
        self._leaving: list[Replica] = []  # gone from DNS, with requests under way
        self._found = asyncio.Event()
        self._loop = Loop("model server names", self._look_up, seconds) if self._names else None
        self._running = False
        if not self._names:
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
        for url in self._names:
            try:
                self._servers[url] = await self._resolve(url.removeprefix(BY_DNS))
            except OSError as error:
                failures.append(f"{url} in ENGINE_URLS does not resolve ({error or 'timeout'})")
        if failures and self.cause != "; ".join(failures):
            log.warning("names of model servers do not resolve", causes=failures)
        self.cause = "; ".join(failures)
        for replica in [each for each in self._leaving if not each.in_flight]:  # others complete their requests
            self._leaving.remove(replica)
            await replica.close()
        left = self._use([each for servers in self._servers.values() for each in servers])
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


class Occupancy(msgspec.Struct, frozen=True):
    """The load of the model servers at a moment."""

    servers: dict[ReplicaState, int]
    in_flight: int = 0  # generations sent to a server
    waiting: int = 0  # generations that wait for a server


class PendingRequest:
    """A request that waits for one of the servers it has not tried."""

    def __init__(self, model: str, blocks: Sequence[int], tried: Collection[Replica]) -> None:
        self.model, self.blocks, self.tried = model, blocks, tried
        self.assigned: asyncio.Future[Replica] = asyncio.get_running_loop().create_future()


class Dispatcher:
    """Call `dispatch` whenever a server joins or leaves, or its adapters change."""

    def __init__(self, servers: Servers, *, everywhere: bool = False) -> None:
        """`everywhere`: any live server may get a request, so all must have its model."""
        self._servers, self._everywhere = servers, everywhere
        self._pending: deque[PendingRequest] = deque()

    @property
    def occupancy(self) -> Occupancy:
        replicas = self._servers.replicas
        states = Counter(one.state for one in replicas)
        return Occupancy(
            {state: states[state] for state in ReplicaState},
            sum(one.in_flight for one in replicas),
            sum(not request.assigned.done() for request in self._pending),
        )

    async def acquire(self, model: str, blocks: Sequence[int], tried: Collection[Replica]) -> Replica:
        """A server with capacity, which is then occupied: give it back with `release`.

        Raises EngineRefusalError (404) if no live server has the model, EngineError if there is none left to try.
        """
        request = PendingRequest(model, blocks, tried)
        self._pending.append(request)
        self.dispatch()
        try:
            return await request.assigned
        except asyncio.CancelledError:
            if (
                request.assigned.done()
                and not request.assigned.cancelled()
                and request.assigned.exception() is None
            ):
                self.release(request.assigned.result())
            raise

    def release(self, replica: Replica) -> None:
        replica.in_flight -= 1
        self.dispatch()

    def dispatch(self) -> None:
        """Assign what can be assigned, in order of arrival; a request for a rare model blocks no other."""
        kept = deque[PendingRequest]()
        while self._pending:
            request = self._pending.popleft()
            if not request.assigned.done() and not self._assign(request):
                kept.append(request)
        self._pending = kept

    def _assign(self, request: PendingRequest) -> bool:
        """False if the request has to wait."""
        alive = [one for one in self._servers.replicas if one.alive]
        having = [one for one in alive if request.model in one.names]
        if self._everywhere and len(having) < len(alive):
            having = []
        eligible = [one for one in having if one not in request.tried]
        free = [one for one in eligible if one.in_flight < one.max_in_flight]
        if free:
            loads = [ReplicaLoad(one.in_flight, one.recent.match(request.blocks)) for one in free]
            replica = free[choose_replica(loads)]
            replica.in_flight += 1
            replica.recent.add(request.blocks)
            request.assigned.set_result(replica)
        elif not eligible and (error := self._failure(request)):
            request.assigned.set_exception(error)
        return request.assigned.done()

    def _failure(self, request: PendingRequest) -> EngineError | None:
        """The error of a request that no server will answer soon; None while a server is about to be ready."""
        replicas = self._servers.replicas
        if any(one.alive for one in replicas):
            if request.tried:
                return EngineError("all model servers were tried.")
            return EngineRefusalError(f"no model server has `{request.model}`: load it.", HTTPStatus.NOT_FOUND)
        if any(one.state in {ReplicaState.NEW, ReplicaState.RETURNING} for one in replicas):
            return None
        return self._servers.no_server_error()


class Router:
    """The servers behind it load and prove adapters one by one; it must pass on token ids and logprobs unchanged.

    It may send a request to any of its servers, so none is sent while one that answers has failed its proof.
    """

    def __init__(self, url: str, limits: ReplicaLimits, checks: HealthChecks, servers: Servers) -> None:
        limits = msgspec.structs.replace(
            limits, max_in_flight=_CONNECTIONS, max_failures=None, setting="SAGE_ENGINE_ROUTER_URL"
        )
        self._servers = servers
        self.replica = Replica(url.rstrip("/"), limits, lambda: None)
        checks = msgspec.structs.replace(checks, may_sleep=False)
        self.monitor = HealthMonitor(self.replica, probe_generation, checks, _nothing, health="")

    async def close(self) -> None:
        await self.monitor.loop.stop()
        await self.replica.close()

    async def complete(
        self, dispatcher: Dispatcher, prompt_ids: Sequence[int], *, model: str, sampling: Sampling
    ) -> Completion:
        """Raises EngineRefusalError: with 404 if a server behind it lacks the model; EngineError if no request may
        be sent, or the generation was broken off repeatedly.
        """
        for attempt in range(1, _ATTEMPTS + 1):
            await self.check()
            slot = await dispatcher.acquire(model, (), ())
            try:
                return await self.replica.complete(prompt_ids, model=model, sampling=sampling)
            except ReplicaError:
                self._servers.recheck()
                if attempt == _ATTEMPTS:
                    raise
            except EngineRefusalError as error:
                if error.code == HTTPStatus.NOT_FOUND:
                    self._servers.recheck()  # one of them was restarted, or is new
                raise
            finally:
                dispatcher.release(slot)
        raise AssertionError

    async def check(self) -> None:
        """Raises EngineError if no request may be sent."""
        await self.monitor.checked.wait()
        if self.fault:
            raise EngineError(self.fault)

    @property
    def fault(self) -> str:
        """Why no request may be sent; "" if requests may."""
        if self.replica.cause is not None:
            return f"the router {self.replica.url} is out: {self.replica.cause}"
        return "; ".join(
            f"the router {self.replica.url} may send requests to {one.url}, which must not serve: {one.cause} "
            "Restart or remove it"
            for one in self._servers.replicas
            if isinstance(one.cause, SettingError | AdapterError)  # one that is down gets no requests
        )


async def _nothing(_: Replica) -> None:
    """A router has no adapters of its own."""

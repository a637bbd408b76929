"""An engine over any number of model servers that speak vLLM's HTTP API and serve the same base model, and those
servers as people see them.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

import msgspec

from app.base.errors import EngineError, EngineRefusalError
from app.base.values import BASE
from app.engine.dispatch import Dispatcher, Occupancy, Resolve, Router, Servers, addresses_of
from app.engine.health import HealthChecks, HealthMonitor, probe_capabilities
from app.engine.protocol import Completion, Sampling
from app.engine.replica import Capabilities, Replica, ReplicaLimits, ReplicaState, ServerRequirements, hash_blocks
from app.engine.vllm import ReplicaError


class ModelServer(msgspec.Struct, frozen=True, kw_only=True):
    """`cause` is why it is out. `adapters` are those it has loaded, by hash."""

    url: str  # without a password
    state: ReplicaState
    cause: str
    in_flight: int  # generations of this process
    max_in_flight: int
    adapters: tuple[str, ...]
    most_adapters: int | None
    version: str

    @classmethod
    def of(cls, replica: Replica) -> Self:
        known = replica.capabilities
        return cls(
            url=_without_user(replica.url),
            state=replica.state,
            cause="" if replica.alive or replica.cause is None else str(replica.cause),
            in_flight=replica.in_flight,
            max_in_flight=replica.max_in_flight,
            adapters=tuple(sorted(replica.names - {BASE})),
            most_adapters=known.max_loras if known else None,
            version=known.version if known else "",
        )


def _without_user(url: str) -> str:
    """
    >>> _without_user("http://me:secret@gpu:8000/v1"), _without_user("http://gpu:8000")
    ('http://gpu:8000/v1', 'http://gpu:8000')
    """
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


class Topology(msgspec.Struct, frozen=True, kw_only=True):
    """How model servers are found and reached."""

    router: str = ""  # the URL that gets every generation; "": the servers themselves
    resolve_seconds: float = 5.0  # between resolutions of their names
    resolve: Resolve = addresses_of


class HttpEngine:
    """Balances requests over the healthy servers. An async context manager: within it they are monitored.

    A generation that a server breaks off is retried on another one, since sampling has no side effects.
    """

    def __init__(
        self,
        urls: Sequence[str],
        *,
        max_in_flight: int = 64,
        timeout: float = 600.0,
        load_timeout: float = 120.0,
        requirements: ServerRequirements | None = None,
        checks: HealthChecks | None = None,
        topology: Topology | None = None,
    ) -> None:
        """`max_in_flight` requests at most go to one server, the others wait; `timeout` is of one generation,
        `load_timeout` of every other request, in seconds.
        """
        if not urls:
            raise EngineError("no engine URL: set ENGINE_URLS, or leave it empty for the embedded one.")
        self.urls = tuple(url.rstrip("/") for url in urls)
        self.on_return: Callable[[Replica], Awaitable[None]] | None = None
        requirements, self._checks = requirements or ServerRequirements(), checks or HealthChecks()
        limits = ReplicaLimits(
            max_in_flight=max_in_flight,
            timeout=timeout,
            load_timeout=load_timeout,
            vocabulary=requirements.vocabulary,
        )
        prove, topology = partial(probe_capabilities, requirements=requirements), topology or Topology()

        def monitor(url: str) -> HealthMonitor:
            replica = Replica(url, limits, lambda: self._dispatcher.dispatch())  # which is made of the servers
            return HealthMonitor(replica, prove, self._checks, self._restore_adapters)

        self._servers = Servers(self.urls, monitor, topology.resolve_seconds, topology.resolve)
        self._dispatcher = Dispatcher(self._servers, everywhere=bool(topology.router))
        self.router = Router(topology.router, limits, self._checks, self._servers) if topology.router else None
        self._loaded: dict[str, Path] = {}  # by this engine, and not unloaded since

    async def __aenter__(self) -> Self:
        self._servers.start()
        if self.router is not None:
            self.router.monitor.loop.start()
        with suppress(TimeoutError):  # a server that hangs delays the start no longer than this
            async with asyncio.timeout(self._checks.timeout):
                await self._all_checked()
        return self

    async def __aexit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        await self.close()

    async def close(self) -> None:
        if self.router is not None:
            await self.router.close()
        await self._servers.stop()

    @property
    def replicas(self) -> tuple[Replica, ...]:
        """The servers as they are known now."""
        return self._servers.replicas

    @property
    def max_length(self) -> int | None:
        """Tokens of the longest sequence that all servers take, of those that have said so; None: none has yet."""
        lengths = (replica.max_model_len for replica in self.replicas)
        return min((length for length in lengths if length is not None), default=None)

    async def check(self) -> list[Capabilities]:
        """The capabilities of the servers that answer; one that is down is not an error.

        Raises SettingError that names the flag a server lacks.
        """
        await self._all_checked()
        router = [] if self.router is None else [self.router.monitor]
        for monitor in (*self._servers.monitors, *router):
            if monitor.setting_error is not None:
                raise monitor.setting_error
        return [one.capabilities for one in self.replicas if one.capabilities is not None]

    def occupancy(self) -> Occupancy:
        return self._dispatcher.occupancy

    def servers(self) -> list[ModelServer]:
        """As they are known now."""
        return [ModelServer.of(replica) for replica in self.replicas]

    @property
    def answers(self) -> bool:
        """Whether a server is healthy, and the router if there is one, by the latest checks."""
        routed = self.router is None or not self.router.fault
        return routed and any(replica.alive for replica in self.replicas)

    async def complete(self, prompt_ids: Sequence[int], *, model: str, sampling: Sampling) -> Completion:
        """Cancelling the calling task closes the connection, which ends the generation.

        Raises EngineRefusalError: with 404 if no healthy server has the model, others as the server returns them.
        Raises EngineError if no server is healthy, or each of them failed.
        """
        if self.router is not None:
            return await self.router.complete(self._dispatcher, prompt_ids, model=model, sampling=sampling)
        blocks, tried = hash_blocks(model, prompt_ids), list[Replica]()
        failure: EngineError | None = None
        while True:
            try:
                replica = await self._dispatcher.acquire(model, blocks, tried)
            except EngineError:
                if failure is None or not any(one.alive for one in self.replicas):
                    raise
                raise failure from None
            try:
                return await replica.complete(prompt_ids, model=model, sampling=sampling)
            except ReplicaError as error:
                failure = error
            except EngineRefusalError as error:
                if model in replica.names:
                    raise
                failure = error  # it has lost the model; another may have it
            finally:
                self._dispatcher.release(replica)
            tried.append(replica)

    async def load_adapter(self, name: str, path: Path) -> None:
        """Load on all healthy servers or none. A name always stands for the same weights."""
        loaded: list[Replica] = []
        try:
            for replica in await self._alive():
                if name not in await replica.models():
                    loaded.append(replica)
                await replica.load(name, path)
        except (EngineError, asyncio.CancelledError):
            await asyncio.shield(_unload(name, loaded))
            raise
        self._loaded[name] = path

    async def unload_adapter(self, name: str) -> None:
        """Ask every server, even if one of them fails. Safe to repeat."""
        self._loaded.pop(name, None)
        failures = await _unload(name, await self._alive())
        if failures:
            raise failures[0]

    async def models(self) -> list[str]:
        """The models that every healthy server can generate with: "base" and the adapters loaded everywhere."""
        listed = [await replica.models() for replica in await self._alive()]
        return [name for name in listed[0] if all(name in names for names in listed)]

    async def loaded(self) -> list[str]:
        """The models that at least one server has loaded, "base" included, in the order of loading."""
        listed = [await replica.models() for replica in await self._alive()]
        return list(dict.fromkeys([name for names in listed for name in names]))

    async def health(self) -> bool:
        """Whether all servers are healthy, and the router if there is one."""
        await self._all_checked()
        routed = self.router is None or not self.router.fault
        return routed and bool(self.replicas) and all(replica.alive for replica in self.replicas)

    async def ready(self) -> str:
        """The servers that are out and why; "" if all are healthy. Raises EngineError if none is, or the router
        cannot be used.
        """
        await self._alive()
        if self.router is not None:
            await self.router.check()
        out = [f"{one.url} is out: {one.cause}" for one in self.replicas if not one.alive]
        return "; ".join([self._servers.cause] * bool(self._servers.cause) + out)

    async def _alive(self) -> list[Replica]:
        """At least one. Raises EngineError if none is healthy."""
        await self._all_checked()
        alive = [replica for replica in self.replicas if replica.alive]
        if not alive:
            raise self._servers.no_server_error()
        return alive

    async def _all_checked(self) -> None:
        await self._servers.all_checked()
        if self.router is not None:
            await self.router.monitor.checked.wait()

    async def _restore_adapters(self, replica: Replica) -> None:
        """Unless `on_return` is set, a server that returns gets the adapters loaded by this engine."""
        if self.on_return is not None:
            await self.on_return(replica)
            return
        for name, path in self._loaded.items():
            await replica.load(name, path)


async def _unload(name: str, replicas: Sequence[Replica]) -> list[EngineError]:
    failures: list[EngineError] = []
    for replica in replicas:
        try:
            await replica.unload(name)
        except EngineError as error:
            failures.append(error)
    return failures

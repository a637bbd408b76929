"""An engine over any number of model servers that speak vLLM's HTTP API and serve the same base model."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from app.engine.capability import Capabilities, ServerRequirements
from app.engine.dispatcher import Dispatcher, Occupancy, no_server_error
from app.engine.embedder import HttpEmbedder
from app.engine.health_monitor import HealthChecks, HealthMonitor
from app.engine.protocol import Completion, Sampling
from app.engine.replica import Replica, ReplicaLimits
from app.engine.routing import hash_blocks
from app.engine.vllm_api import ReplicaError
from app.errors import EngineError, EngineRefusalError

__all__ = ["HttpEmbedder", "HttpEngine", "Replica"]


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
        separate_base: bool = False,
    ) -> None:
        """`max_in_flight` requests at most go to one server, the others wait; `timeout` is of one generation,
        `load_timeout` of every other request, in seconds.
        `separate_base`: base and adapter requests of this engine never share a server, see `group_lock`.
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
            separate_base=separate_base,
        )
        self.replicas = tuple(Replica(url, limits, self._dispatch) for url in self.urls)
        self._dispatcher = Dispatcher(self.replicas)
        self._monitors = [
            HealthMonitor(replica, requirements, self._checks, self._restore_adapters) for replica in self.replicas
        ]
        self._loaded: dict[str, Path] = {}  # by this engine, and not unloaded since

    async def __aenter__(self) -> Self:
        for monitor in self._monitors:
            monitor.loop.start()
        with suppress(TimeoutError):  # a server that hangs delays the start no longer than this
            async with asyncio.timeout(self._checks.timeout):
                await self._all_checked()
        return self

    async def __aexit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        await self.close()

    async def close(self) -> None:
        await asyncio.gather(*(monitor.loop.stop() for monitor in self._monitors))
        for replica in self.replicas:
            await replica.close()

    async def check(self) -> list[Capabilities]:
        """The capabilities of the servers that answer; one that is down is not an error.

        Raises SettingError that names the flag a server lacks.
        """
        await self._all_checked()
        for monitor in self._monitors:
            if monitor.setting_error is not None:
                raise monitor.setting_error
        return [one.capabilities for one in self.replicas if one.capabilities is not None]

    def occupancy(self) -> Occupancy:
        return self._dispatcher.occupancy

    @property
    def answers(self) -> bool:
        """Whether a server is healthy, by the latest checks."""
        return any(replica.alive for replica in self.replicas)

    async def complete(self, prompt_ids: Sequence[int], *, model: str, sampling: Sampling) -> Completion:
        """Cancelling the calling task closes the connection, which ends the generation.

        Raises EngineRefusalError: with 404 if no healthy server has the model, others as the server returns them.
        Raises EngineError if no server is healthy, or each of them failed.
        """
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
        """Whether all servers are healthy."""
        await self._all_checked()
        return all(replica.alive for replica in self.replicas)

    async def ready(self) -> str:
        """The servers that are out and why; "" if all are healthy. Raises EngineError if none is."""
        await self._alive()
        return "; ".join(f"{one.url} is out: {one.cause}" for one in self.replicas if not one.alive)

    async def _alive(self) -> list[Replica]:
        """At least one. Raises EngineError if none is healthy."""
        await self._all_checked()
        alive = [replica for replica in self.replicas if replica.alive]
        if not alive:
            raise no_server_error(self.replicas)
        return alive

    async def _all_checked(self) -> None:
        for monitor in self._monitors:
            await monitor.checked.wait()

    async def _restore_adapters(self, replica: Replica) -> None:
        """Unless `on_return` is set, a server that returns gets the adapters loaded by this engine."""
        if self.on_return is not None:
            await self.on_return(replica)
            return
        for name, path in self._loaded.items():
            await replica.load(name, path)

    def _dispatch(self) -> None:
        self._dispatcher.dispatch()


async def _unload(name: str, replicas: Sequence[Replica]) -> list[EngineError]:
    failures: list[EngineError] = []
    for replica in replicas:
        try:
            await replica.unload(name)
        except EngineError as error:
            failures.append(error)
    return failures

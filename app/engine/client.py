"""Engines behind vLLM's HTTP API: vLLM servers or embedded ones, any number that hold the same base model."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from app.engine.capability import Capabilities, Needs
from app.engine.dispatcher import Line, Occupancy, all_out
from app.engine.embedder import HttpEmbedder
from app.engine.health_monitor import Pace, Watch
from app.engine.protocol import Completion, Sampling
from app.engine.replica import Limits, Replica
from app.engine.routing import blocks_of
from app.engine.vllm_api import ReplicaError
from app.errors import EngineError, EngineRefusalError

__all__ = ["HttpEmbedder", "HttpEngine", "Replica"]


class HttpEngine:
    """Spreads requests over the servers that are well. An async context manager: within it they are looked after.

    A generation that a server breaks off is asked of another one, since sampling changes nothing anywhere.
    """

    def __init__(
        self,
        urls: Sequence[str],
        *,
        at_once: int = 64,
        timeout: float = 600.0,
        load_timeout: float = 120.0,
        needs: Needs | None = None,
        pace: Pace | None = None,
        base_apart: bool = False,
    ) -> None:
        """`at_once` requests at most go to one server, the others wait in line; `timeout` is of one generation,
        `load_timeout` of anything else that is asked, in seconds.
        `base_apart`: requests of this engine never meet as base and adapter in one server, see `apart`.
        """
        if not urls:
            raise EngineError("no engine URL: set ENGINE_URLS, or leave it empty for the embedded one.")
        self.urls = tuple(url.rstrip("/") for url in urls)
        self.on_return: Callable[[Replica], Awaitable[None]] | None = None
        needs, self._pace = needs or Needs(), pace or Pace()
        limits = Limits(
            at_once=at_once,
            seconds=timeout,
            load_seconds=load_timeout,
            vocabulary=needs.vocabulary,
            base_apart=base_apart,
        )
        self.replicas = tuple(Replica(url, limits, self._look) for url in self.urls)
        self._line = Line(self.replicas)
        self._watches = [Watch(replica, needs, self._pace, self._welcome) for replica in self.replicas]
        self._loaded: dict[str, Path] = {}  # through here, and not unloaded since

    async def __aenter__(self) -> Self:
        for watch in self._watches:
            watch.loop.start()
        with suppress(TimeoutError):  # a server that hangs holds up the start no longer than this
            async with asyncio.timeout(self._pace.patience):
                await self._looked()
        return self

    async def __aexit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        await self.close()

    async def close(self) -> None:
        await asyncio.gather(*(watch.loop.stop() for watch in self._watches))
        for replica in self.replicas:
            await replica.close()

    async def check(self) -> list[Capabilities]:
        """What the servers that answer can do; one that is down is no reason not to start.

        Raises SettingError that names the flag that a server lacks.
        """
        await self._looked()
        for watch in self._watches:
            if watch.refusal is not None:
                raise watch.refusal
        return [one.capabilities for one in self.replicas if one.capabilities is not None]

    def occupancy(self) -> Occupancy:
        return self._line.occupancy

    async def complete(self, prompt_ids: Sequence[int], *, model: str, sampling: Sampling) -> Completion:
        """Cancelling the calling task closes the connection, and with it the generation.

        Raises EngineRefusalError: with 404 where no server that is well has the model, others as they come.
        Raises EngineError where no server is well, or each of them failed.
        """
        blocks, tried = blocks_of(model, prompt_ids), list[Replica]()
        failure: EngineError | None = None
        while True:
            try:
                replica = await self._line.enter(model, blocks, tried)
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
                self._line.leave(replica)
            tried.append(replica)

    async def load_adapter(self, name: str, path: Path) -> None:
        """All servers that are well, or none. A name stands for one set of weights for ever."""
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
        """Every server is asked, also when one of them fails; a server without the adapter is done."""
        self._loaded.pop(name, None)
        failures = await _unload(name, await self._alive())
        if failures:
            raise failures[0]

    async def models(self) -> list[str]:
        """What every server that is well can generate with: "base" and the adapters that are loaded everywhere."""
        listed = [await replica.models() for replica in await self._alive()]
        return [name for name in listed[0] if all(name in names for names in listed)]

    async def loaded(self) -> list[str]:
        """What at least one server has loaded, "base" included, in the order of loading."""
        listed = [await replica.models() for replica in await self._alive()]
        return list(dict.fromkeys([name for names in listed for name in names]))

    async def health(self) -> bool:
        """Are all servers well?"""
        await self._looked()
        return all(replica.alive for replica in self.replicas)

    async def ready(self) -> str:
        """Which servers are out and why; "" where all are well. Raises EngineError where none is."""
        await self._alive()
        return "; ".join(f"{one.url} is out: {one.cause}" for one in self.replicas if not one.alive)

    async def _alive(self) -> list[Replica]:
        """At least one. Raises EngineError where none is well."""
        await self._looked()
        alive = [replica for replica in self.replicas if replica.alive]
        if not alive:
            raise all_out(self.replicas)
        return alive

    async def _looked(self) -> None:
        for watch in self._watches:
            await watch.looked.wait()

    async def _welcome(self, replica: Replica) -> None:
        """Without another `on_return`, a server that returns gets what was loaded through here."""
        if self.on_return is not None:
            await self.on_return(replica)
            return
        for name, path in self._loaded.items():
            await replica.load(name, path)

    def _look(self) -> None:
        self._line.look()


async def _unload(name: str, replicas: Sequence[Replica]) -> list[EngineError]:
    failures: list[EngineError] = []
    for replica in replicas:
        try:
            await replica.unload(name)
        except EngineError as error:
            failures.append(error)
    return failures

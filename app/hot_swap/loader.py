"""Hot swap: the model servers have the weights that a task is pinned to before its first token is asked for.

Adapters are directories named by their content, so what a name stands for never changes, and loading one again
changes nothing. A rollout keeps the adapter it began with: nothing is unloaded while there is room.
"""

import asyncio
import time
from collections.abc import Sequence
from http import HTTPStatus
from typing import Self

import msgspec
import structlog

from app.adapters.files import AdapterFiles
from app.db import adapters, audit
from app.db.advisory_locks import one_load
from app.db.database import AWAY, Sessions
from app.db.models import AuditAction
from app.engine.http_engine import HttpEngine
from app.engine.protocol import Completion, Sampling
from app.engine.replica import Replica
from app.errors import AdapterError, AppError, EngineError, EngineRefusalError
from app.hot_swap.adapter_directory import AdapterDirectory
from app.hot_swap.eviction import in_use, make_room, spare_adapters, unload
from app.hot_swap.load_everywhere import NoRoomError, bring
from app.hot_swap.receipt import Receipt
from app.loop import Loop
from app.records import BASE, Probe

log = structlog.get_logger(__name__)

_ACTOR = "server"  # where nobody asked
_LOOK_SECONDS = 60.0  # after which active releases are looked at without news, which can be lost
_TRIES = 3  # of a completion whose adapter was lost in between


class HotSwap:
    """An engine that loads what it lacks; as a context manager also what is activated, ahead of its first task."""

    def __init__(self, engine: HttpEngine, sessions: Sessions, files: AdapterDirectory) -> None:
        self._engine = engine
        self._sessions = sessions
        self._files = files
        self._loaded: set[str] = set()  # a hint: the servers know, and say 404
        self._lacking: dict[str, str] = {}  # what serves and cannot be loaded, and why
        self._loading = asyncio.Lock()
        self._following = Loop("hot swap", self._load_active, _LOOK_SECONDS, expected=AWAY)

    async def __aenter__(self) -> Self:
        self._engine.on_return = self.restore
        self._following.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._engine.on_return = None
        await self._following.stop()

    def wake(self) -> None:
        """A release may have been activated. Missing a call costs its first task a moment."""
        self._following.wake()

    async def ready(self) -> str:
        """Which servers are out, and what serves and cannot be loaded; "" where all is well. Raises EngineError
        where no server is.
        """
        remarks = [await self._engine.ready(), *self._lacking.values()]
        return "; ".join(filter(None, remarks))

    async def complete(self, prompt_ids: Sequence[int], *, model: str, sampling: Sampling) -> Completion:
        """Raises AdapterError where the adapter cannot be served, and what the engine raises."""
        for _ in range(_TRIES):
            if model not in self._loaded:
                await self.load(model)
            try:
                return await self._engine.complete(prompt_ids, model=model, sampling=sampling)
            except EngineRefusalError as error:
                if error.code != HTTPStatus.NOT_FOUND or model == BASE:
                    raise
                self._loaded.discard(model)  # the server was restarted, or made room for another
        raise EngineError(
            f"the model servers lose adapter {model} as soon as it is loaded: give them more --max-loras"
        )

    async def load(self, model: str) -> None:
        """All servers can answer as `model` when this returns; where one of them cannot, none has it.

        Raises what `swap` raises.
        """
        if model == BASE:
            return
        async with self._loading:
            if model not in self._loaded or model not in await self._engine.models():
                await self._swap(model, await self._probe(model))

    async def swap(self, model: str, probe: Probe | None) -> Receipt:
        """All live servers answer as `model` when this returns, and have proven with the trainer's `probe` that
        they wear it as it was trained; where one of them has not, none that lacked it before has it now.

        Raises AdapterError for weights that are missing, spoiled, refused or not proven, EngineError where a
        server is down, does not see them or has all of its adapters in use.
        """
        if model == BASE:
            return Receipt(model=BASE, seconds=0.0)
        async with self._loading:
            return await self._swap(model, probe)

    async def restore(self, replica: Replica) -> None:
        """For a server that was away: it gets what may be asked of it, and proves it, before it is asked.

        Raises AdapterError or EngineError where it does not: then it must not be asked.
        """
        async with self._loading:
            async with self._sessions() as session:
                serving = await adapters.serving(session)
            others = [other for other in self._engine.replicas if other.alive and other is not replica]
            elsewhere = {name for other in others for name in other.names}
            for model in [*sorted(serving - {BASE}), *sorted(elsewhere - serving - {BASE})]:
                try:
                    found = await self._files.sound(model)
                except AdapterError as error:  # not this server's fault
                    self._lacking[model] = str(error)
                    log.warning("an adapter cannot be loaded again", replica=replica.url, cause=str(error))
                    continue
                if replica.max_loras is not None and len(replica.names - {BASE, model}) >= replica.max_loras:
                    return  # the first task that needs another makes room for it
                lacked = model not in replica.names
                probe = await self._probe(model)
                witness = next((each for each in others if model in each.names), None)
                async with one_load(self._sessions, model):
                    receipt = await bring([replica], found.path, probe, witness)
                self._lacking.pop(model, None)
                if lacked:
                    await self._tell(receipt)

    async def _tell(self, receipt: Receipt) -> None:
        """The log has the proof of every server that serves a release, also of one that came later."""
        async with self._sessions.begin() as session:
            for release in await adapters.releases_with(session, receipt.model):
                about = release.project_id, release.id, _ACTOR, AuditAction.RESTORED
                await audit.add(session, *about, {"receipt": msgspec.to_builtins(receipt)})

    async def _swap(self, model: str, probe: Probe | None) -> Receipt:
        """Adapters nobody needs make room, one after the other, and only where a server has none."""
        began = time.perf_counter()
        found = await self._files.sound(model)
        live = [replica for replica in self._engine.replicas if replica.alive]
        if not live:
            raise EngineError(
                f"no model server answers, so adapter {model} cannot be loaded: start one, or wait until one "
                "that was restarted is ready"
            )
        await make_room(self._engine, self._sessions, model)
        receipt = await self._bring(live, found, probe)
        self._loaded.add(model)
        self._lacking.pop(model, None)
        log.info("a swap", model=model, seconds=round(time.perf_counter() - began, 3), replicas=len(live))
        absent = tuple(replica.url for replica in self._engine.replicas if replica not in live)
        return Receipt(model=model, seconds=time.perf_counter() - began, replicas=receipt.replicas, absent=absent)

    async def _bring(self, live: Sequence[Replica], found: AdapterFiles, probe: Probe | None) -> Receipt:
        """Some servers do not tell how many adapters they hold, but refuse one too many."""
        spare: list[str] | None = None
        while True:
            try:
                async with one_load(self._sessions, found.hash):
                    return await bring(live, found.path, probe)
            except NoRoomError as error:
                if spare is None:
                    spare = await spare_adapters(self._engine, self._sessions, found.hash)
                if not spare:
                    raise in_use(str(error)) from error
            await unload(self._engine, spare.pop(0))

    async def _probe(self, model: str) -> Probe | None:
        async with self._sessions() as session:
            return await adapters.probe(session, model)

    async def _load_active(self) -> None:
        async with self._sessions() as session:
            wanted = await adapters.serving(session)
        self._lacking = {model: why for model, why in self._lacking.items() if model in wanted}
        for model in sorted(wanted):
            await self._load_ahead(model)

    async def _load_ahead(self, model: str) -> None:
        try:
            await self.load(model)
        except AppError as error:
            self._lacking[model] = str(error)
            log.warning("an active adapter is not loaded yet, its first task will ask again", cause=str(error))
        else:
            self._lacking.pop(model, None)

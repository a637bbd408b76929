"""Hot swap: loads the adapter that a task is pinned to before its first token is requested.

Adapters are directories named by their content hash, so a name always stands for the same weights, and loading is
idempotent. A rollout keeps its adapter: nothing is unloaded while there is room. A hosted model is loaded nowhere:
a swap to it proves that its endpoint answers.
"""

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from http import HTTPStatus
from typing import Self
from uuid import UUID

import msgspec
import structlog

from app.base import telemetry
from app.base.errors import AdapterError, AppError, EngineError, EngineRefusalError
from app.base.loop import Loop
from app.base.values import BASE, Probe, hosted_id
from app.db import adapters, tables
from app.db.database import TRANSIENT, Sessions
from app.db.lease import load_lock
from app.db.tables import AuditAction
from app.engine.adapter_files import AdapterFiles
from app.engine.client import HttpEngine
from app.engine.protocol import Completion, OpenHosted, Sampling
from app.engine.replica import Replica
from app.engine.tokenizer import Message
from app.hot_swap.adapter_directory import AdapterDirectory
from app.hot_swap.eviction import Evictable, check_room_ahead, evict, evictable_adapters, unload
from app.hot_swap.load_everywhere import NoRoomError, load_everywhere
from app.hot_swap.swap_report import SwapReport
from app.projects import audit

log = structlog.get_logger(__name__)

_ACTOR = "server"  # in the audit log
_CHECK_SECONDS = 60.0  # between checks of the active releases, since a notification can be lost
_RETRY_SECONDS = 10.0  # while one of them is not loaded
_QUESTION = (Message("user", "Answer with the word ready."),)  # to a hosted model, before it serves
_ANSWER_TOKENS = 32
_ANSWER_SECONDS = 50.0  # whoever activates a release waits for it, behind proxies that often wait for 60
_ATTEMPTS = 3  # at a completion whose adapter was unloaded in between


class AdapterLoader:
    """An engine that loads adapters on demand, and within its context those of active releases ahead of time."""

    def __init__(
        self,
        engine: HttpEngine,
        sessions: Sessions,
        files: AdapterDirectory,
        open_hosted: OpenHosted | None = None,
        *,
        answer_seconds: float = _ANSWER_SECONDS,
    ) -> None:
        """`answer_seconds` are what a hosted model has before it serves, retries included."""
        self._engine = engine
        self._sessions = sessions
        self._files = files
        self._open_hosted = open_hosted
        self._answer_seconds = answer_seconds
        self._loaded: set[str] = set()  # a hint: servers answer 404 where it is wrong
        self._load_errors: dict[str, str] = {}  # by active adapter that cannot be loaded
        self._wanted: set[str] = set()  # models of active releases, as last read
        self._hosted: set[str] = set()  # hosted ones of them
        self._loading = asyncio.Lock()
        self._loop = Loop("hot swap", self._load_active, _CHECK_SECONDS, expected=TRANSIENT)

    async def __aenter__(self) -> Self:
        self._engine.on_return = self.restore
        self._loop.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._engine.on_return = None
        await self._loop.stop()

    def wake(self) -> None:
        """Check active releases now. A missed call delays the first task of a release a little."""
        self._loop.wake()

    async def ready(self) -> str:
        """Active adapters that cannot be loaded, and the ids of the projects that they keep from being served; ""
        if none. Raises AdapterError if no active release can be served.
        """
        faults = "; ".join([await self._fault(*each) for each in sorted(self._load_errors.items())])
        if self._wanted and not self._hosted and self._wanted <= self._load_errors.keys():
            raise AdapterError(faults)
        return faults

    async def _fault(self, model: str, cause: str) -> str:
        """Without names of projects: what reads it needs no key."""
        try:
            async with self._sessions() as session:
                served = {release.project_id for release in await adapters.releases_with(session, model)}
        except TRANSIENT:  # another component says so
            return cause
        ids = ", ".join(sorted(map(str, served)))
        return f"tasks of {'project' if len(served) == 1 else 'projects'} {ids} wait: {cause}" if served else cause

    async def complete(self, prompt_ids: Sequence[int], *, model: str, sampling: Sampling) -> Completion:
        """Raises AdapterError if the adapter cannot be served, and what the engine raises."""
        for _ in range(_ATTEMPTS):
            if model not in self._loaded:
                await self.load(model)
            try:
                return await self._engine.complete(prompt_ids, model=model, sampling=sampling)
            except EngineRefusalError as error:
                if error.code != HTTPStatus.NOT_FOUND or model == BASE:
                    raise
                self._loaded.discard(model)  # the server was restarted, or evicted it
        if self._engine.router is not None:
            raise EngineError(
                f"the router sends requests for adapter {model} to a model server that lacks it: set "
                "VLLM_LORA_RESOLVER_CACHE_DIR there, and name all of them in ENGINE_URLS"
            )
        raise EngineError(f"the model servers keep evicting adapter {model}: raise their --max-loras")

    async def load(self, model: str, *, ahead: bool = False) -> None:
        """Load on all servers or none. Raises what `swap` raises, and `ahead` of a task NoRoomError if an adapter
        of an active release would have to make room.
        """
        if model == BASE or hosted_id(model) is not None:
            return
        async with self._loading:
            if model not in self._loaded or model not in await self._engine.models():
                if ahead:  # before the files are read
                    await check_room_ahead(self._engine, self._sessions, model)
                await self._swap(model, await self._probe(model), ahead=ahead)

    async def swap(self, model: str, probe: Probe | None) -> SwapReport:
        """Load on all live servers and verify with the trainer's `probe` that they serve the trained weights;
        if one fails, it is unloaded where it is new.

        Raises AdapterError for weights that are missing, damaged, refused or fail verification, EngineError if a
        server is down, does not see them or has all of its adapters in use, or if a hosted model does not answer.
        """
        if (model_id := hosted_id(model)) is not None:
            return await self._ask(model, model_id)
        if model == BASE:
            return SwapReport(model=BASE, seconds=0.0)
        async with self._loading:
            return await self._swap(model, probe)

    async def _ask(self, model: str, model_id: UUID) -> SwapReport:
        assert self._open_hosted is not None, "a release has a hosted model"
        began = time.perf_counter()
        async with self._sessions() as session:
            entry = await session.get(tables.HostedModel, model_id)
        endpoint = f"{entry.model} at {entry.url}" if entry else ""
        async with self._open_hosted(model_id) as opened:
            try:
                async with asyncio.timeout(self._answer_seconds):
                    await opened.answer(_QUESTION, max_tokens=_ANSWER_TOKENS, temperature=0.0)
            except TimeoutError:
                raise EngineError(
                    f"{endpoint} did not answer within {self._answer_seconds:g} s: is it overloaded? Try again"
                ) from None
        return SwapReport(model=model, seconds=time.perf_counter() - began, endpoint=endpoint)

    async def restore(self, replica: Replica) -> None:
        """Load and verify the adapters that a returning server may need, before it gets requests.

        Raises AdapterError or EngineError if that fails: then it must get no requests.
        """
        async with self._loading:
            async with self._sessions() as session:
                serving = await adapters.serving(session)
            others = [other for other in self._engine.replicas if other.alive and other is not replica]
            elsewhere = {name for other in others for name in other.names}
            for model in [*sorted(serving - {BASE}), *sorted(elsewhere - serving - {BASE})]:
                try:
                    files = await self._files.verified(model)
                except AdapterError as error:  # not the server's fault
                    self._load_errors[model] = str(error)
                    log.warning("an adapter cannot be loaded again", replica=replica.url, cause=str(error))
                    continue
                if replica.max_loras is not None and len(replica.names - {BASE, model}) >= replica.max_loras:
                    return  # the first task that needs another evicts one
                lacked = model not in replica.names
                probe = await self._probe(model)
                witness = next((each for each in others if model in each.names), None)
                async with load_lock(self._sessions, model):
                    report = await load_everywhere([replica], files.path, probe, witness)
                self._load_errors.pop(model, None)
                if lacked:
                    await self._audit_restored(report)

    async def _audit_restored(self, report: SwapReport) -> None:
        """Record the verification of a server that returned in the audit log of each release it serves."""
        async with self._sessions.begin() as session:
            for release in await adapters.releases_with(session, report.model):
                about = release.project_id, release.id, _ACTOR, AuditAction.RESTORED
                await audit.add(session, *about, {"swap": msgspec.to_builtins(report)})

    async def _swap(self, model: str, probe: Probe | None, *, ahead: bool = False) -> SwapReport:
        """Evict adapters one by one, only on servers without room."""
        with _counting_swaps():
            report = await self._load_live(model, probe, ahead=ahead)
        self._loaded.add(model)
        self._load_errors.pop(model, None)
        self._show()
        return report

    async def _load_live(self, model: str, probe: Probe | None, *, ahead: bool) -> SwapReport:
        began = time.perf_counter()
        files = await self._files.verified(model)
        live = [replica for replica in self._engine.replicas if replica.alive]
        if not live:
            raise EngineError(
                f"no model server answers, so adapter {model} cannot be loaded: start one, or wait until a "
                "restarted one is ready"
            )
        await evict(self._engine, self._sessions, model, ahead=ahead)
        report = await self._load_with_eviction(live, files, probe, ahead=ahead)
        log.info("a swap", model=model, seconds=round(time.perf_counter() - began, 3), replicas=len(live))
        absent = tuple(replica.url for replica in self._engine.replicas if replica not in live)
        return SwapReport(
            model=model, seconds=time.perf_counter() - began, replicas=report.replicas, absent=absent
        )

    async def _load_with_eviction(
        self, live: Sequence[Replica], files: AdapterFiles, probe: Probe | None, *, ahead: bool
    ) -> SwapReport:
        """Some servers do not report how many adapters they hold, but refuse one too many."""
        evictable: Evictable | None = None
        while True:
            try:
                async with load_lock(self._sessions, files.hash):
                    return await load_everywhere(live, files.path, probe)
            except NoRoomError as error:
                evictable = evictable or await evictable_adapters(self._engine, self._sessions, files.hash)
                evicted = evictable.take(str(error), ahead=ahead)
            await unload(self._engine, evicted)

    async def _probe(self, model: str) -> Probe | None:
        async with self._sessions() as session:
            return await adapters.probe(session, model)

    async def _load_active(self) -> float | None:
        async with self._sessions() as session:
            wanted = await adapters.serving(session)
            self._hosted = await adapters.hosted_serving(session)
        self._wanted = wanted
        self._load_errors = {model: why for model, why in self._load_errors.items() if model in wanted}
        for model in sorted(wanted):
            await self._load_ahead(model)
        self._show()
        return _RETRY_SECONDS if self._load_errors else None

    def _show(self) -> None:
        telemetry.ADAPTERS.labels("loaded").set(len(self._loaded))
        telemetry.ADAPTERS.labels("failed").set(len(self._load_errors))

    async def _load_ahead(self, model: str) -> None:
        try:
            with suppress(NoRoomError):  # the first task that needs it evicts another one
                await self.load(model, ahead=True)
        except AppError as error:
            self._load_errors[model] = str(error)
            log.warning("an active adapter is not loaded yet, its first task will retry", cause=str(error))
        else:
            self._load_errors.pop(model, None)


@contextmanager
def _counting_swaps() -> Iterator[None]:
    began, result = time.perf_counter(), "failed"
    try:
        yield
        result = "loaded"
    finally:
        telemetry.SWAP_SECONDS.labels(result).observe(time.perf_counter() - began)

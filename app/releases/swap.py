"""Hot swap: loads the adapter that a task is pinned to before its first token is requested.

Loading is a transaction: all model servers load an adapter and prove by logprobs that they serve the one that
was trained (`verify_logprobs`), or none keeps it. What nothing needs is evicted where room is short. A hosted
model is loaded nowhere: a swap to it proves that its endpoint answers.
"""

import asyncio
import math
import time
from collections.abc import Awaitable, Iterator, Sequence
from contextlib import contextmanager, suppress
from http import HTTPStatus
from pathlib import Path
from typing import Self, TypeVar
from uuid import UUID

import msgspec
import structlog

from app.base import telemetry
from app.base.errors import AdapterError, AppError, EngineError, EngineRefusalError
from app.base.loop import Loop
from app.base.values import BASE, Probe, ProbePoint, hosted_id
from app.db import tables
from app.db.database import TRANSIENT, Sessions
from app.db.lease import load_lock
from app.db.tables import AuditAction
from app.engine.adapter_files import AdapterFiles
from app.engine.client import HttpEngine
from app.engine.health import TOO_HIGH, clear_nan_blocks
from app.engine.protocol import Completion, OpenHosted, Sampling
from app.engine.replica import PROBE_PREFIX, Replica
from app.engine.tokenizer import Message
from app.engine.vllm import NonFiniteError, ReplicaError
from app.projects import audit
from app.releases import manifest_store
from app.releases.adapter_store import AdapterDirectory

T = TypeVar("T")


async def gather_all(*parts: Awaitable[T]) -> list[T]:
    """Like asyncio.gather, but raises the first error only after all have ended."""
    results = await asyncio.gather(*parts, return_exceptions=True)
    done: list[T] = []
    for result in results:
        if isinstance(result, BaseException):
            raise result
        done.append(result)
    return done


class ReplicaSwapReport(msgspec.Struct, frozen=True, kw_only=True):
    """The verification of one model server. Differences are root mean squares over the tokens of the probe."""

    url: str
    load_seconds: float
    probe_seconds: float
    probed: bool  # against the trainer's logprobs; False: against those of the first model server
    error: float  # |served adapter - trained adapter|
    distance: float  # |served adapter - served base|
    noise: float  # |served base - trained base|


class SwapReport(msgspec.Struct, frozen=True, kw_only=True):
    model: str
    seconds: float  # of the whole swap
    replicas: tuple[ReplicaSwapReport, ...] = ()
    absent: tuple[str, ...] = ()  # servers that were out: each is verified before it gets requests again
    endpoint: str = ""


TOLERANCE = 1e-3  # of a logprob, between machines that compute in float32
_NOISE_FACTOR = 3.0
_ROUNDING = 0.1
_DISTANCE_SHARE = 0.02
_MAX_ROUNDING_FACTOR = 16.0
_MAX_NOISE = 1.0  # more than low precision causes


class LogprobDifferences(msgspec.Struct, frozen=True):
    """Differences of logprobs for one server: root mean squares over the tokens of a probe."""

    error: float  # |served adapter - trained adapter|
    distance: float  # |served adapter - served base|
    noise: float  # |served base - trained base|


def verify_logprobs(probe: Probe, served: Sequence[float], base: Sequence[float]) -> LogprobDifferences:
    """`served` and `base` are the server's logprobs of each point, with the adapter and with the base model.

    Raises AdapterError that names the failed check and its likely cause.
    """
    points = probe.points
    trained, trained_base = [point.logprob for point in points], [point.base for point in points]
    differences = LogprobDifferences(
        _mean_difference(served, trained), _mean_difference(served, base), _mean_difference(base, trained_base)
    )
    _check_distinguishable(_max_difference(served, base), _max_difference(trained, trained_base))
    if (noise := _max_difference(base, trained_base)) > _MAX_NOISE:
        raise AdapterError(
            f"it serves another base model than the trained one: logprobs of fixed tokens are off by up "
            f"to {noise:.4f} without the adapter. Compare its --model with SAGE_MODEL"
        )
    bound = allowed_error(differences.noise, _mean_difference(trained, trained_base))
    if not differences.error <= bound:
        raise AdapterError(
            f"it serves other weights than the trained ones: logprobs of fixed tokens are off by "
            f"{differences.error:.4f} (root mean square), and {bound:.4f} is allowed (its base model is off by "
            f"{differences.noise:.4f}). "
            "It has other weights under this name: restart it, and compare its adapter directory with ours"
        )
    if not differences.error < _mean_difference(served, trained_base):
        raise AdapterError(
            f"it is closer to the base model than to the adapter: logprobs of fixed tokens are off by "
            f"{differences.error:.4f}, those of its base model by {differences.noise:.4f}. Serve with a higher "
            "precision --dtype"
        )
    return differences


def allowed_error(noise: float, distance: float) -> float:
    """Of a server whose base is off by `noise`, for an adapter that training moved by `distance`.

    >>> allowed_error(noise=0.0001, distance=5.0), allowed_error(noise=0.03, distance=5.0)  # float32, bfloat16
    (0.0016, 0.2)
    """
    rounding = min(_ROUNDING + _DISTANCE_SHARE * distance, _MAX_ROUNDING_FACTOR * noise)
    return max(TOLERANCE, _NOISE_FACTOR * noise, rounding)


def _check_distinguishable(served: float, trained: float) -> None:
    """Takes the largest differences from the base."""
    if trained <= TOLERANCE:
        raise AdapterError(
            f"these weights behave like the base: even in training no logprob differs by more than "
            f"{trained:.4f}, so nothing can be verified. Train for longer, or keep serving the base"
        )
    if not served > TOLERANCE:
        raise AdapterError(
            f"it behaves like the base: no logprob differs by more than {served:.4f}, in training "
            f"by {trained:.4f}. It loaded the adapter without using it: check its log"
        )


def _max_difference(some: Sequence[float], others: Sequence[float]) -> float:
    return max(abs(one - other) for one, other in zip(some, others, strict=True))


def _mean_difference(some: Sequence[float], others: Sequence[float]) -> float:
    """The root mean square."""
    squares = [(one - other) ** 2 for one, other in zip(some, others, strict=True)]
    return math.sqrt(sum(squares) / len(squares))


_PROMPT = tuple(range(1, 33))  # for adapters without a probe: every vocabulary has these ids
_LENGTH = 16


async def verify_replica(replica: Replica, model: str, probe: Probe) -> LogprobDifferences:
    """Raises AdapterError if it does not serve the trained weights, EngineError if it is down."""
    base = await _logprobs(replica, BASE, probe)  # first: some backends mix up a batch of both
    return verify_logprobs(probe, await _logprobs(replica, model, probe), base)


async def record_probe(replica: Replica, model: str) -> Probe:
    """A probe of this server's own logprobs, for adapters without the trainer's."""
    greedy = Sampling(max_tokens=_LENGTH, temperature=0)
    completion = await _complete(replica, model, _PROMPT, greedy)
    blank_points = tuple(
        ProbePoint(len(_PROMPT) + index, token, 0.0, 0.0) for index, token in enumerate(completion.ids)
    )
    blank = Probe(_PROMPT + completion.ids, blank_points)
    base, adapter = await _logprobs(replica, BASE, blank), await _logprobs(replica, model, blank)
    points = (
        ProbePoint(point.position, point.token, with_adapter, without)
        for point, with_adapter, without in zip(blank_points, adapter, base, strict=True)
    )
    return Probe(blank.prompt_ids, tuple(points))


async def _logprobs(replica: Replica, model: str, probe: Probe) -> Sequence[float]:
    return await gather_all(*(_logprob(replica, model, probe, point) for point in probe.points))


async def _logprob(replica: Replica, model: str, probe: Probe, point: ProbePoint) -> float:
    """The logprob of one token, which is the only one allowed."""
    forced = Sampling(max_tokens=1, temperature=0, allowed_token_ids=(point.token,))
    completion = await _complete(replica, model, probe.prompt_ids[: point.position], forced)
    if completion.ids != (point.token,):
        raise EngineError(
            f"{replica.url} sampled {completion.ids} where only {point.token} is allowed: it ignores "
            "allowed_token_ids, so the adapter cannot be verified. Use a newer vLLM"
        )
    return completion.logprobs[0]


async def _complete(replica: Replica, model: str, prompt_ids: Sequence[int], sampling: Sampling) -> Completion:
    try:
        return await replica.complete(prompt_ids, model=model, sampling=sampling, control=True)
    except NonFiniteError as error:
        if model == BASE:
            raise
        raise AdapterError(f"these weights give values that are not finite: train others ({error})") from error


log = structlog.get_logger(__name__)

_ADVICE = "start the server with a higher --max-lora-rank, or train at a lower rank: "
_PAUSE_SECONDS = 1.0  # before a failed load is retried once


class NoRoomError(EngineError):
    """A model server holds as many adapters as it may."""


async def load_everywhere(
    replicas: Sequence[Replica], path: Path, probe: Probe | None, witness: Replica | None = None
) -> SwapReport:
    """Load the adapter under `path` on all replicas and verify their logprobs: against `probe`, or without one
    against `witness`, which has it already, or the first of them.

    If one of them fails, it is unloaded where it is new. Raises AdapterError for weights that are refused or fail
    verification, NoRoomError, and EngineError if a server is down or does not see `path`.
    """
    began, name = time.perf_counter(), path.name
    listed = await gather_all(*(replica.models() for replica in replicas))
    new_here = [replica for replica, names in zip(replicas, listed, strict=True) if name not in names]
    try:
        load_times = await gather_all(*(_load(replica, path) for replica in replicas))
        reference = probe or await record_probe(witness or replicas[0], name)
        verifications = await gather_all(*(_verify(replica, name, reference) for replica in replicas))
    except (AdapterError, EngineError, asyncio.CancelledError) as error:
        await asyncio.shield(_undo(new_here, name, used=isinstance(error, AdapterError)))
        raise
    reports = (
        ReplicaSwapReport(
            url=replica.url,
            load_seconds=load_seconds,
            probe_seconds=probe_seconds,
            probed=probe is not None,
            error=differences.error,
            distance=differences.distance,
            noise=differences.noise,
        )
        for replica, load_seconds, (differences, probe_seconds) in zip(
            replicas, load_times, verifications, strict=True
        )
    )
    return SwapReport(model=name, seconds=time.perf_counter() - began, replicas=tuple(reports))


async def _load(replica: Replica, path: Path) -> float:
    """Load the adapter; return the seconds. AdapterError if only this fails on the server, twice."""
    began = time.perf_counter()
    try:
        await _load_with_retry(replica, path)
    except (EngineRefusalError, ReplicaError) as error:
        if error.code == HTTPStatus.CONFLICT:
            raise NoRoomError(str(error)) from error
        if error.code == HTTPStatus.NOT_FOUND:  # the files exist: they were verified just now
            raise EngineError(
                f"{replica.url} does not see {path} ({error}): mount the same directory at the same path"
            ) from error
        if error.code == HTTPStatus.INTERNAL_SERVER_ERROR:  # vLLM's refusal of unreadable files or a high rank
            await replica.complete((1,), model=BASE, sampling=Sampling(max_tokens=1, temperature=0), control=True)
        elif not isinstance(error, EngineRefusalError):
            raise
        advice = _ADVICE if TOO_HIGH.search(str(error)) else ""
        raise AdapterError(f"the adapter cannot be served: {advice}{error}") from error
    return time.perf_counter() - began


async def _load_with_retry(replica: Replica, path: Path) -> None:
    """Retry once, since a server may be short of memory for a moment."""
    try:
        await replica.load(path.name, path)
    except ReplicaError as error:
        if error.code != HTTPStatus.INTERNAL_SERVER_ERROR:
            raise
        await asyncio.sleep(_PAUSE_SECONDS)
        await replica.load(path.name, path)


async def _verify(replica: Replica, name: str, probe: Probe) -> tuple[LogprobDifferences, float]:
    began = time.perf_counter()
    try:
        differences = await verify_replica(replica, name, probe)
    except AdapterError as error:
        raise AdapterError(f"{replica.url} does not serve adapter {name}: {error}") from error
    return differences, time.perf_counter() - began


async def _undo(replicas: Sequence[Replica], name: str, *, used: bool) -> None:
    """`used`: the adapter has generated, perhaps NaN."""
    for replica in replicas:
        try:
            await replica.unload(name)
            if used:
                await clear_nan_blocks(replica, replica.max_model_len)
        except EngineError as error:  # a restart unloads it
            log.warning("a swap could not be undone", replica=replica.url, model=name, cause=str(error))


class Evictable:
    """Loaded adapters that nothing unfinished needs: those of active releases, and others."""

    def __init__(self, active: list[str], others: list[str]) -> None:
        self._active, self._others = active, others

    def take(self, cause: str, *, ahead: bool) -> str:
        """The next one to evict; those of active releases come last, and never make room `ahead` of a task.

        Raises EngineError if all loaded adapters are in use, NoRoomError if only those of active releases are not.
        """
        if self._others:
            return self._others.pop(0)
        if not self._active:
            raise EngineError(
                f"all loaded adapters are in use, and there is no room for another ({cause}): wait until tasks of "
                "older releases, or training runs, have ended, or raise SAGE_ENGINE_ADAPTERS (--max-loras)"
            )
        if ahead:
            raise NoRoomError(cause)
        return self._active.pop(0)


async def check_room_ahead(engine: HttpEngine, sessions: Sessions, model: str) -> None:
    """Raises what `Evictable.take` raises if `model` can certainly not be loaded ahead of a task."""
    if full := _full_server(engine, model):
        (await evictable_adapters(engine, sessions, model)).take(full, ahead=True)


async def evict(engine: HttpEngine, sessions: Sessions, model: str, *, ahead: bool) -> None:
    """Unload unneeded adapters until every server that reports its limit has room for `model`.

    Raises what `Evictable.take` raises.
    """
    evictable: Evictable | None = None
    while full := _full_server(engine, model):
        evictable = evictable or await evictable_adapters(engine, sessions, model)
        await unload(engine, evictable.take(full, ahead=ahead))


def _full_server(engine: HttpEngine, model: str) -> str | None:
    """A live server at its limit, in words."""
    for replica in engine.replicas:
        adapters_there = replica.names - {BASE, model}
        if replica.alive and replica.max_loras is not None and len(adapters_there) >= replica.max_loras:
            return f"{replica.url} holds --max-loras of them"
    return None


async def evictable_adapters(engine: HttpEngine, sessions: Sessions, model: str) -> Evictable:
    """Those that make room for `model`.

    An adapter that the database does not know may be the policy of a training run; if none is running, a killed
    run left it behind.
    """
    loaded = [name for name in await engine.loaded() if name not in {BASE, model}]
    async with sessions() as session:
        needed, active = await manifest_store.needed(session), await manifest_store.active(session)
        known = await manifest_store.known(session, loaded)
        training = await manifest_store.any_trains(session)
    idle = [name for name in loaded if name not in needed]
    evictable = [name for name in idle if not training or name in known or name.startswith(PROBE_PREFIX)]
    return Evictable(
        [name for name in evictable if name in active], [name for name in evictable if name not in active]
    )


async def unload(engine: HttpEngine, model: str) -> None:
    await engine.unload_adapter(model)
    log.info("evicted an adapter", model=model)


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
                served = {release.project_id for release in await manifest_store.releases_with(session, model)}
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
                serving = await manifest_store.serving(session)
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
            for release in await manifest_store.releases_with(session, report.model):
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
            return await manifest_store.probe(session, model)

    async def _load_active(self) -> float | None:
        async with self._sessions() as session:
            wanted = await manifest_store.serving(session)
            self._hosted = await manifest_store.hosted_serving(session)
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

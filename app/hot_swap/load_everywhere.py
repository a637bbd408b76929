"""A swap as a transaction: model servers load an adapter and prove that they wear it, all of them or none."""

import asyncio
import time
from collections.abc import Sequence
from http import HTTPStatus
from pathlib import Path

import structlog

from app.engine.capability_probe import TOO_HIGH
from app.engine.clear_nan_blocks import clear_nan_blocks
from app.engine.protocol import Sampling
from app.engine.replica import Replica
from app.engine.vllm_api import ReplicaError
from app.errors import AdapterError, EngineError, EngineRefusalError
from app.hot_swap.gather_all import together
from app.hot_swap.proof import observe, prove
from app.hot_swap.receipt import Receipt, ReplicaReceipt
from app.hot_swap.verification import Figures
from app.records import BASE, Probe

log = structlog.get_logger(__name__)

_ADVICE = "start the server with a greater --max-lora-rank, or train at a lower rank: "
_PAUSE_SECONDS = 1.0  # before a load that failed is tried once more


class NoRoomError(EngineError):
    """A model server holds as many adapters as it may."""


async def bring(
    replicas: Sequence[Replica], path: Path, probe: Probe | None, witness: Replica | None = None
) -> Receipt:
    """The adapter under `path` answers on every one of them when this returns, and they have proven it: without a
    probe by saying the same as each other, and as `witness`, which has it already.

    Where one of them fails, those that did not have it before have it no more. Raises AdapterError for weights
    that are refused or not proven, NoRoomError, and EngineError where a server is down or does not see `path`.
    """
    began, name = time.perf_counter(), path.name
    listed = await together(*(replica.models() for replica in replicas))
    fresh = [replica for replica, names in zip(replicas, listed, strict=True) if name not in names]
    try:
        loading = await together(*(_load(replica, path) for replica in replicas))
        agreed = probe or await observe(witness or replicas[0], name)
        proving = await together(*(_prove(replica, name, agreed) for replica in replicas))
    except (AdapterError, EngineError, asyncio.CancelledError) as error:
        await asyncio.shield(_undo(fresh, name, asked=isinstance(error, AdapterError)))
        raise
    told = (
        ReplicaReceipt(
            url=replica.url,
            load_seconds=load_seconds,
            probe_seconds=probe_seconds,
            probed=probe is not None,
            error=figures.error,
            distance=figures.distance,
            noise=figures.noise,
        )
        for replica, load_seconds, (figures, probe_seconds) in zip(replicas, loading, proving, strict=True)
    )
    return Receipt(model=name, seconds=time.perf_counter() - began, replicas=tuple(told))


async def _load(replica: Replica, path: Path) -> float:
    """Seconds. A server that answers other questions and fails twice at this has something against the adapter."""
    began = time.perf_counter()
    try:
        await _persist(replica, path)
    except (EngineRefusalError, ReplicaError) as error:
        if error.code == HTTPStatus.CONFLICT:
            raise NoRoomError(str(error)) from error
        if error.code == HTTPStatus.NOT_FOUND:  # the files are sound, they were read here just now
            raise EngineError(
                f"{replica.url} does not see {path} ({error}): share the directory at the same path"
            ) from error
        if error.code == HTTPStatus.INTERNAL_SERVER_ERROR:  # so vLLM refuses: what it cannot read, too high a rank
            await replica.complete((1,), model=BASE, sampling=Sampling(max_tokens=1, temperature=0), control=True)
        elif not isinstance(error, EngineRefusalError):
            raise
        advice = _ADVICE if TOO_HIGH.search(str(error)) else ""
        raise AdapterError(f"the adapter cannot be served: {advice}{error}") from error
    return time.perf_counter() - began


async def _persist(replica: Replica, path: Path) -> None:
    """A server may be short of memory for a moment."""
    try:
        await replica.load(path.name, path)
    except ReplicaError as error:
        if error.code != HTTPStatus.INTERNAL_SERVER_ERROR:
            raise
        await asyncio.sleep(_PAUSE_SECONDS)
        await replica.load(path.name, path)


async def _prove(replica: Replica, name: str, probe: Probe) -> tuple[Figures, float]:
    began = time.perf_counter()
    try:
        figures = await prove(replica, name, probe)
    except AdapterError as error:
        raise AdapterError(f"{replica.url} does not serve adapter {name}: {error}") from error
    return figures, time.perf_counter() - began


async def _undo(replicas: Sequence[Replica], name: str, *, asked: bool) -> None:
    """`asked`: it has answered, perhaps with NaN."""
    for replica in replicas:
        try:
            await replica.unload(name)
            if asked:
                await clear_nan_blocks(replica, replica.max_model_len)
        except EngineError as error:  # it forgets the adapter when it is restarted
            log.warning("a swap could not be undone here", replica=replica.url, model=name, cause=str(error))

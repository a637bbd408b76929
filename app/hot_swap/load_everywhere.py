"""A swap as a transaction: all model servers load an adapter and prove that they serve it, or none keeps it."""

import asyncio
import time
from collections.abc import Sequence
from http import HTTPStatus
from pathlib import Path

import structlog

from app.base.errors import AdapterError, EngineError, EngineRefusalError
from app.base.values import BASE, Probe
from app.engine.health import TOO_HIGH, clear_nan_blocks
from app.engine.protocol import Sampling
from app.engine.replica import Replica
from app.engine.vllm import ReplicaError
from app.hot_swap.gather_all import gather_all
from app.hot_swap.replica_probe import record_probe, verify_replica
from app.hot_swap.swap_report import ReplicaSwapReport, SwapReport
from app.hot_swap.verification import LogprobDifferences

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

"""Swaps under load: their duration, their cost to running requests, and the weights behind the answers.

    python -m tests.bench.bench_swap [--replicas 2] [--streams 32] [--swaps 20] [--every 2]

vLLMs on this machine's CPU, one thread each, and the seed policy. Streams generate without a pause through the
client of the agent server, each request as the release that is active when it begins. Every swap activates a
release with an adapter that no server has loaded: files checked, loaded on all replicas, verified by the
trainer's probe, rows changed. Afterwards transformers and PEFT score every request that ran during
a swap.
"""

import asyncio
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import click
import msgspec
import numpy as np

from app.db import postgres, tables
from app.db.database import Sessions, open_database
from app.db.migrate import migrate
from app.engine.client import HttpEngine
from app.projects import audit
from app.projects import store as projects
from app.releases import manifest_store
from app.releases import store as releases
from app.releases.promotion import Promoter
from app.releases.swap import AdapterLoader, SwapReport
from tests.bench.results_file import write_results
from tests.integration.vllm.adapters import make_adapter
from tests.integration.vllm.live_requests import off_by
from tests.integration.vllm.loader_setup import open_loader
from tests.integration.vllm.server import VllmServer
from tests.integration.vllm.streams import AnsweredRequest, Streams
from trainer.learning.adapter import PublishedAdapter

_TOLERANCE = 1e-3  # of a logprob
_WINDOW = 1.0  # seconds from the start of a swap in which throughput is measured


class Swapped(msgspec.Struct, frozen=True):
    """One swap, as a transaction."""

    adapter: PublishedAdapter
    began: float
    ended: float

    def met(self, asked: AnsweredRequest) -> bool:
        return asked.began < self.ended and self.began < asked.ended


@click.command()
@click.option("--replicas", default=2, show_default=True)
@click.option("--streams", default=32, show_default=True, help="requests at once")
@click.option("--swaps", default=20, show_default=True)
@click.option("--every", default=2.0, show_default=True, help="seconds from one swap to the next")
def main(replicas: int, streams: int, swaps: int, every: float) -> None:
    """Measure swaps under load."""
    with TemporaryDirectory() as folder, ExitStack() as stack:
        directory = Path(folder)
        servers = [VllmServer(directory / f"{number}.log") for number in range(replicas)]
        for server in servers:
            stack.callback(server.stop)
        versions = [make_adapter(directory / "adapters", seed) for seed in range(swaps + 1)]
        database_url = postgres.start(directory / "postgres")
        stack.callback(postgres.stop, directory / "postgres")
        migrate(database_url)
        urls = [server.wait().url for server in servers]
        asyncio.run(_measure(urls, database_url, versions, streams, every))


async def _measure(
    urls: Sequence[str], database_url: str, versions: Sequence[PublishedAdapter], count: int, every: float
) -> None:
    async with open_database(database_url) as database, HttpEngine(urls) as engine:
        rows = await _propose(database.sessions, versions)
        async with open_loader(engine, database.sessions, versions[0].path.parent) as swap:
            promoter = Promoter(database.sessions, swap, "")
            await promoter.activate(rows[0].id, "bench")
            streams, done = await _under_load(swap, promoter, list(zip(versions, rows, strict=True)), count, every)
        receipts = await _receipts(database.sessions, rows[0].project_id)
    _tell(streams, done, receipts, {"replicas": len(urls), "streams": count})


async def _propose(sessions: Sessions, versions: Sequence[PublishedAdapter]) -> list[tables.Release]:
    """One release per adapter, in one project."""
    async with sessions.begin() as session:
        project = await projects.create(session, "bench")
        for each in versions:
            await manifest_store.put(
                session, each.hash, base="seed", rank=each.rank, project_id=None, probe=each.probe
            )
        return [await releases.propose(session, project.id, each.hash) for each in versions]


async def _under_load(
    swap: AdapterLoader,
    promoter: Promoter,
    versions: Sequence[tuple[PublishedAdapter, tables.Release]],
    count: int,
    every: float,
) -> tuple[Streams, list[Swapped]]:
    """The first version is already active."""
    streams, done = Streams(swap, versions[0][0]), list[Swapped]()
    async with streams.running(count):
        await asyncio.sleep(2 * every)
        for adapter, row in versions[1:]:
            began = time.perf_counter()
            await promoter.activate(row.id, "bench")
            done.append(Swapped(adapter, began, time.perf_counter()))
            streams.serving = adapter
            await asyncio.sleep(max(0.0, every - (done[-1].ended - began)))
    return streams, done


async def _receipts(sessions: Sessions, project_id: object) -> list[SwapReport]:
    """Reports of all swaps but the first, which had no load."""
    async with sessions() as session:
        page = await audit.page(session, project_id, limit=100)  # type: ignore[arg-type]
    return [msgspec.convert(entry.detail["swap"], SwapReport) for entry in page.items[:-1]]


def _tell(
    streams: Streams, done: Sequence[Swapped], receipts: Sequence[SwapReport], about: dict[str, object]
) -> None:
    met = [asked for asked in streams.answered if any(swap.met(asked) for swap in done)]
    wrong = [asked for asked in met if not asked.off_by <= _TOLERANCE]
    told = [asked for asked in met if _off_by_next(asked, done) > _TOLERANCE]
    loads = [max(each.load_seconds for each in report.replicas) for report in receipts]
    proofs = [max(each.probe_seconds for each in report.replicas) for report in receipts]
    during, between = _throughput(streams.answered, done)
    figures = {
        "swaps": len(done),
        "requests": len(streams.answered),
        "failed requests": len(streams.failures),
        "requests that ran during a swap": len(met),
        "of these, answered by other weights": len(wrong),
        "of these, other weights would have shown in": len(told),
        "greatest difference of a logprob": max((asked.off_by for asked in met), default=0.0),
        "transaction, p50 / p99 ms": _percentiles([swap.ended - swap.began for swap in done]),
        "load, p50 / p99 ms": _percentiles(loads),
        "probe, p50 / p99 ms": _percentiles(proofs),
        "tokens/s between swaps": round(between),
        "tokens/s in the second after a swap begins": round(during),
    }
    for name, value in figures.items():
        print(f"| {name} | {value} |")
    write_results("swap", {**about, **figures})


def _percentiles(seconds: Sequence[float]) -> list[float]:
    return [round(1000 * float(each), 1) for each in np.percentile(seconds, [50, 99])]


def _off_by_next(asked: AnsweredRequest, done: Sequence[Swapped]) -> float:
    """Distance from the weights being swapped in: a mix-up would show here."""
    coming = next(swap.adapter for swap in reversed(done) if swap.met(asked))
    return off_by(asked.answer, coming.path, asked.prompt)


def _throughput(asked: Sequence[AnsweredRequest], done: Sequence[Swapped]) -> tuple[float, float]:
    """Tokens per second in the windows after swaps start, and in the remaining time."""
    inside = sum(_tokens(asked, swap.began, swap.began + _WINDOW) for swap in done)
    first, last = done[0].began - _WINDOW, done[-1].began + _WINDOW
    seconds = len(done) * _WINDOW
    return inside / seconds, (_tokens(asked, first, last) - inside) / (last - first - seconds)


def _tokens(asked: Sequence[AnsweredRequest], start: float, end: float) -> float:
    """Tokens generated in that time, assuming that each request generates at an even rate."""
    return sum(
        len(each.answer.ids) * max(0.0, min(end, each.ended) - max(start, each.began)) / (each.ended - each.began)
        for each in asked
    )


if __name__ == "__main__":
    main()

"""A process that searches a project's skills, for `bench_retrieval`. It imports of this checkout only `app`.

`python tests/bench/skill_reader.py DATABASE_URL PROJECT QUERIES FILES` prints its figures as JSON, then waits for
an instruction on its input, and prints when (on the monotonic clock) that skill was found first.
"""

import asyncio
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import faiss
import numpy as np

from app.db.database import open_database
from app.skills.library import Library
from app.skills.search import Query, SkillIndex, with_embeddings

_REPEATS = 3  # of each search: the least time counts, for others use the processor too
_TICK = 0.002


class Given:
    """An embedder that knows its vectors."""

    model = "synthetic"

    def __init__(self, vectors: dict[str, Any]) -> None:
        self._vectors = vectors

    async def embed(self, texts: Sequence[str]) -> list[Any]:
        return [self._vectors.get(text, next(iter(self._vectors.values()))) for text in texts]


class Timed:
    """A retrieval that takes the CPU time of the lists it asks for."""

    def __init__(self) -> None:
        self.ngrams: list[float] = []
        self.dense: list[float] = []
        self.nearest: list[list[int]] = []

    def __call__(self, index: SkillIndex, query: Query) -> list[tuple[UUID, dict[str, int]]]:
        found = _least(self.ngrams, lambda: index.by_ngrams(query.instruction))
        nearest = _least(self.dense, lambda: index.by_query_vector(query.vector)) or []
        self.nearest.append([key.int for key, _ in nearest[:10]])
        return [(key, {}) for key, _ in found[: query.limit]]


def _least(times: list[float], search: Callable[[], Any]) -> Any:
    taken = []
    for _ in range(_REPEATS):
        began = time.thread_time()
        found = search()
        taken.append(1000 * (time.thread_time() - began))
    times.append(min(taken))
    return found


async def _longest_stall(stop: asyncio.Event) -> float:
    """Seconds for which the event loop was held up at most."""
    longest, last = 0.0, time.perf_counter()
    while not stop.is_set():
        await asyncio.sleep(_TICK)
        now = time.perf_counter()
        longest, last = max(longest, now - last - _TICK), now
    return longest


async def main(database_url: str, project: str, queries: str, files: str) -> None:
    given = np.load(queries)
    texts, here, timed = given["texts"].tolist(), UUID(project), Timed()
    options: dict[str, Any] = {}
    if files != "-":
        from app.skills.index_files import IndexFiles  # noqa: PLC0415  an older checkout has none

        options["files"] = IndexFiles(Path(files))
    async with open_database(database_url, connections=2) as database:
        embedder = Given(dict(zip(texts, given["vectors"], strict=True)))
        library = Library(database.sessions, embedder, retrieval=with_embeddings(timed), **options)
        await library.find(UUID(int=0), texts[0])  # whatever is done only once
        stop = asyncio.Event()
        stall = asyncio.create_task(_longest_stall(stop))
        began = time.perf_counter()
        await library.find(here, texts[0])
        start = time.perf_counter() - began
        stop.set()
        whole = []
        for text in texts:
            began = time.perf_counter()
            await library.find(here, text)
            whole.append(1000 * (time.perf_counter() - began))
        figures = {
            "start_s": start,
            "stall_ms": 1000 * await stall,
            "ngrams_ms": timed.ngrams[-len(texts) :],
            "dense_ms": timed.dense[-len(texts) :],
            "find_ms": whole,
            "nearest": timed.nearest[-len(texts) :],
            "pss_mb": _pss(),
        }
        print(json.dumps(figures), flush=True)
        wanted = (await asyncio.to_thread(sys.stdin.readline)).strip()
        while True:
            if any(offer.instruction == wanted for offer in await library.find(here, wanted)):
                break
            await asyncio.sleep(0.01)
        print(time.monotonic(), flush=True)


def _pss() -> dict[str, float]:
    """MB of this process, of what several share its part; and of that, what is no mapped file."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/smaps_rollup").read_text().splitlines()[1:])
    sizes = {name: int(value.split()[0]) / 1024 for name, value in lines.items() if name.startswith("Pss")}
    return {"all": sizes["Pss"], "own": sizes.get("Pss_Anon", 0.0)}


if __name__ == "__main__":
    faiss.omp_set_num_threads(1)
    asyncio.run(main(*sys.argv[1:5]))

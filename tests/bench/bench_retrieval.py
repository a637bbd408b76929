"""Latency of searches: `python -m tests.bench.bench_retrieval [--large]` prints a table.

Instructions are drawn from 160 templates (verb x thing x selector, three phrasings), so postings are realistically
long; vectors are random, with 384 dimensions. One thread.
"""

import random
import sys
import time
from collections.abc import Callable
from functools import partial

import faiss
import numpy as np

from app.skills.ngrams import NgramIndex
from app.skills.vector_index import VectorIndex

_QUERIES = 300
_VERBS = [
    "archive",
    "delete",
    "star",
    "pin",
    "share",
    "play",
    "skip",
    "pay",
    "cancel",
    "move",
    "copy",
    "rename",
    "count",
    "total",
    "flag",
    "mute",
]
_THINGS = ["mails", "notes", "songs", "payments", "files", "meetings", "todos", "albums", "invoices", "contacts"]
_PHRASINGS = ["{} every one of my {} {} {}", "{} all {} {} {}", "please {} the {} {} {}"]


def main() -> None:
    faiss.omp_set_num_threads(1)
    print(f"{'index':24} {'skills':>9} {'built in s':>10} {'p50 ms':>8} {'p99 ms':>8}")
    for count in [1_000, 10_000, 100_000, *([300_000] if "--large" in sys.argv else [])]:
        _ngrams(count)
        _vectors(count)


def _instruction(draw: random.Random) -> str:
    selector, value = draw.choice(
        [("from", f"person{draw.randrange(5000)}"), ("in", f"label{draw.randrange(500)}")]
    )
    return draw.choice(_PHRASINGS).format(draw.choice(_VERBS), draw.choice(_THINGS), selector, value)


def _ngrams(count: int) -> None:
    draw = random.Random(0)
    index: NgramIndex[int] = NgramIndex()
    start = time.perf_counter()
    for number in range(count):
        text = _instruction(draw)
        index.add(number, text, {text.split()[-1]})
    built = time.perf_counter() - start
    queries = [_instruction(draw) for _ in range(_QUERIES)]
    _report("n-grams", count, built, [partial(index.search, text, 50) for text in queries])


def _vectors(count: int) -> None:
    draw = np.random.default_rng(0)
    vectors = draw.normal(size=(count + _QUERIES, 384)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    index: VectorIndex[int] = VectorIndex("random", 384)
    start = time.perf_counter()
    index.add(list(enumerate(vectors[:count])))
    built = time.perf_counter() - start
    kind = "vectors, by cells" if count > 200_000 else "vectors, exact"
    _report(kind, count, built, [partial(index.search, vector, 50) for vector in vectors[count:]])


def _report(name: str, count: int, built: float, searches: list[Callable[[], object]]) -> None:
    took = []
    for search in searches:
        start = time.perf_counter()
        search()
        took.append(1000 * (time.perf_counter() - start))
    p50, p99 = np.percentile(took, [50, 99])
    print(f"{name:24} {count:>9,} {built:>10.2f} {p50:>8.3f} {p99:>8.3f}")


if __name__ == "__main__":
    main()

"""Whether embeddings find operations that words do not: the 60 queries about five public documents.

    python -m tests.bench.bench_operation_search

Compares the search of operations, which asks no model, with the embedding model that finds skills, alone and
fused with the words: by ranks, as skills are, and by a sum whose weight is the best of the tuning queries.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from math import comb
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np

from app.apis.catalog import App, Operation
from app.apis.documents.protocols import parse_document
from app.apis.listing import read_query
from app.apis.look_ups import index_of
from app.apis.naming import place_of
from app.apis.presentation import Presentation, present
from app.engine.protocol import Embedder, Vector
from app.skills.similarity import FusionWeights, fuse
from tests.bench.results_file import write_results
from tests.integration.servers.test_public_documents import queries
from tests.support.public_documents import NAMES, public_documents
from trainer.engines.embedded import local_embedder

_EVEN = FusionWeights({"words": 1.0, "vectors": 1.0}, {"words": 0.0, "vectors": -1.0})
_WEIGHTS = [0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 5.0]  # of a cosine, beside the best worth of words
_BATCH = 64
_TEXTS = {"names and summaries": 0, "all": 400}  # characters of the description

Scores = dict[str, float]
"""Of operations, by name."""


class Case(NamedTuple):
    """A query, the operations that it may mean, and what each search makes of it."""

    split: str
    meant: frozenset[str]
    words: Scores
    vectors: Scores


def main() -> None:
    with TemporaryDirectory() as folder:
        documents = public_documents(Path(folder))
    readable = Presentation(naming="readable")
    apps = {
        name: present(parse_document(name, each, server="http://a.test"), readable)
        for name, each in documents.items()
    }
    asyncio.run(_measure(apps))


async def _measure(apps: Mapping[str, App]) -> None:
    recall: dict[str, dict[str, float]] = {}
    seconds: dict[str, dict[str, float]] = {}
    async with local_embedder() as embedder:
        await embedder.embed(["load the model"])
        for text, chars in _TEXTS.items():
            cases: list[Case] = []
            seconds[text] = {}
            for name in NAMES:
                started = time.perf_counter()
                known = await _embedded(embedder, apps[name], chars)
                seconds[text][name] = round(time.perf_counter() - started, 1)
                cases += [await _case(embedder, apps[name], known, *each) for each in queries(name)]
            recall |= _recall(cases, text)
    for label, each in recall.items():
        print(label, each, sep="\n    ")
    operations = {name: len(apps[name].operations) for name in NAMES}
    write_results("operation_search", {"recall": recall, "seconds_to_embed": seconds, "operations": operations})


def _recall(cases: Sequence[Case], text: str) -> dict[str, dict[str, float]]:
    """Of each search, with the vectors of that text."""
    weight = max(_WEIGHTS, key=lambda each: _tuned(cases, each))
    words = [_rank(each, each.words) for each in cases]
    found = {
        "words": words,
        f"vectors of {text}": [_rank(each, each.vectors) for each in cases],
        f"words and vectors of {text}, by rank": [_rank(each, _by_rank(each)) for each in cases],
        f"words and vectors of {text}, summed": [_rank(each, _weighted(each, weight)) for each in cases],
    }
    return {label: _figures(cases, ranks, words) for label, ranks in found.items()}


async def _embedded(embedder: Embedder, app: App, chars: int) -> dict[str, Vector]:
    """By the name of the operation."""
    texts = {name: _text(each, chars) for name, each in app.operations.items()}
    names = list(texts)
    found: dict[str, Vector] = {}
    for start in range(0, len(names), _BATCH):
        part = names[start : start + _BATCH]
        found |= zip(part, await embedder.embed([texts[name] for name in part]), strict=True)
    return found


def _text(operation: Operation, chars: int) -> str:
    name = operation.name.replace("_", " ")
    return f"{name}. {operation.summary}. {operation.description[:chars]}"


async def _case(
    embedder: Embedder, app: App, known: Mapping[str, Vector], split: str, query: str, meant: Sequence[str]
) -> Case:
    [vector] = await embedder.embed([query])
    names = frozenset(name for name, each in app.operations.items() if place_of(each) in meant)
    return Case(
        split=split,
        meant=names,
        words={each.name: worth for worth, each in index_of(app).search(read_query(query))},
        vectors={name: float(np.dot(vector, each)) for name, each in known.items()},
    )


def _by_rank(case: Case) -> Scores:
    lists = {
        label: sorted(scores.items(), key=lambda each: -each[1])
        for label, scores in (("words", case.words), ("vectors", case.vectors))
    }
    ranked = fuse(lists, _EVEN, len(case.vectors), lambda name: (0, name))
    return {name: -place for place, (name, _) in enumerate(ranked)}


def _weighted(case: Case, weight: float) -> Scores:
    most = max(case.words.values(), default=1.0)
    return {name: case.words.get(name, 0.0) / most + weight * cosine for name, cosine in case.vectors.items()}


def _rank(case: Case, scores: Scores) -> int:
    """Of the best of the operations that were meant, from 0."""
    ordered = sorted(scores, key=lambda name: -scores[name])
    return min((place for place, name in enumerate(ordered) if name in case.meant), default=9_999)


def _tuned(cases: Sequence[Case], weight: float) -> tuple[int, int]:
    ranks = [_rank(each, _weighted(each, weight)) for each in cases if each.split == "tuning"]
    return sum(rank < 3 for rank in ranks), sum(rank < 1 for rank in ranks)


def _figures(cases: Sequence[Case], ranks: Sequence[int], words: Sequence[int]) -> dict[str, float]:
    """Shares of queries; and the probability of such a difference from the words, if there is none (McNemar)."""
    figures: dict[str, float] = {}
    for split in ("tuning", "test", ""):
        of = [rank for each, rank in zip(cases, ranks, strict=True) if split in ("", each.split)]
        for first in (1, 3):
            figures[f"{split or 'all'} @{first}"] = round(sum(rank < first for rank in of) / len(of), 3)
    for first in (1, 3):
        pairs = [(rank < first, word < first) for rank, word in zip(ranks, words, strict=True)]
        figures[f"p @{first}"] = round(_mcnemar(pairs.count((True, False)), pairs.count((False, True))), 3)
    return figures


def _mcnemar(gained: int, lost: int) -> float:
    """Exact and two-sided.

    >>> _mcnemar(1, 5)
    0.21875
    """
    total = gained + lost
    tail = sum(comb(total, number) for number in range(min(gained, lost) + 1))
    return min(1.0, 2 * tail / float(2**total))


if __name__ == "__main__":
    main()

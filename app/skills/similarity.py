"""How alike an instruction and a skill are: exact Jaccard similarity over word n-grams, the share of its words
in a description, nearest neighbors of vectors. And how ranked lists become one, by reciprocal rank fusion.
All in memory, of one project or chain; the files of `mapped_index` answer the same for many.
"""

import math
import re
from array import array
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeAlias, TypeVar

import faiss
import msgspec
import numpy as np
from numpy.typing import NDArray

from app.apis.naming import beginning, is_beginning
from app.engine.protocol import Vector

Key = TypeVar("Key", bound=Hashable)
Scored: TypeAlias = Sequence[tuple[Key, float]]  # (key, similarity), best first
Ranked: TypeAlias = list[tuple[Key, dict[str, int]]]  # best first, with the rank from 1 in each list that held it

DEPTH = 50  # ranks of a list that count
_CHARS = 10_000  # of a description or a request that are compared
_TERMS = 40  # of a request
_BEGINS = 0.7  # worth of a word that begins as another does: scale, scales
_FEWEST = 2  # words that a skill shares with a request

_WORD = re.compile(r"\w+")
# Words that vary between phrasings of a request. Prepositions and negations are not among them: they distinguish
# "mails from iris" from "mails to iris".
_FILLER = frozenset(
    _WORD.findall(
        "a an all any are can could d did do does each every for had has have i is ll m me mine my of one our"
        " please re s some that the there these this those ve was we were will would you your"
    )
)
_PLACES = frozenset({"at", "by", "for", "from", "in", "on", "to", "with"})  # "from my family" is not "from iris"
_ASKING = frozenset(
    _WORD.findall(
        "about also and as at be been but by find from get give he her him his how if in into it its let list many"
        " much need no nor not off on or out she show so tell than their them then they to up use want what when"
        " where which who whom whose why with"
    )
)


def ngrams(text: str, sizes: Iterable[int] = (1, 2), slots: Collection[str] = ()) -> frozenset[str]:
    """The n-grams of a text's words, lower case and singular, without fillers such as "every one of my".

    No n-gram spans a slot: it matches any word.

    >>> sorted(ngrams("Count all my mails from Iris, please", slots={"iris"}))
    ['count', 'count mail', 'from', 'mail', 'mail from']
    """
    runs: list[list[str]] = [[]]
    before = ""
    for word in _WORD.findall(text.lower()):
        if word in slots:
            runs.append([])
        elif word not in _FILLER or (word == "my" and before in _PLACES):
            runs[-1].append(_singular(word))
        before = word
    return frozenset(
        " ".join(run[start : start + size])
        for run in runs
        for size in sizes
        for start in range(len(run) - size + 1)
    )


def _singular(word: str) -> str:
    """A rough stem, applied to texts and queries alike: "every note" equals "all notes"."""
    return word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word


def best_matches(
    hits: NDArray[np.int32],
    query_size: int,
    lengths: NDArray[np.int32],
    lost: NDArray[np.int32],
    shown: NDArray[np.bool_],
    limit: int,
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The shown rows with the highest Jaccard similarity above 0, best first; ties go to the highest row.

    `hits` has a row for each n-gram that it shares with the query, which has `query_size`; `lengths`, `lost` to
    slots, and `shown` (R,) are by row.
    """
    counts = np.bincount(hits)
    rows = np.flatnonzero((counts > 0) & shown[: len(counts)])
    shared = counts[rows]
    scores = shared / (lengths[rows] + np.maximum(query_size - shared - lost[rows], 0))
    if len(rows) > limit:
        best = scores >= np.partition(scores, -limit)[-limit]
        rows, scores = rows[best], scores[best]
    order = np.lexsort((-rows, -scores))[:limit]
    return rows[order], scores[order]


class NgramIndex(Generic[Key]):
    """Finds the most similar texts. A removed text takes up space until the next compaction."""

    def __init__(self, sizes: tuple[int, ...] = (1, 2)) -> None:
        self._sizes = sizes
        self._postings: dict[str, array[int]] = {}  # n-gram -> rows
        self._keys: list[Key] = []  # row -> key
        self._lengths = array("i")  # row -> number of n-grams; 0: removed
        self._lost = array("i")  # row -> number of n-grams lost to its slots
        self._rows: dict[Key, int] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, key: Key, text: str, slots: Collection[str] = ()) -> None:
        """Replace a known key."""
        self.remove(key)
        grams = ngrams(text, self._sizes, slots)
        row = len(self._keys)
        self._keys.append(key)
        self._lengths.append(len(grams))
        self._lost.append(len(ngrams(text, self._sizes)) - len(grams))
        self._rows[key] = row
        for gram in grams:
            self._postings.setdefault(gram, array("i")).append(row)

    def remove(self, key: Key) -> None:
        row = self._rows.pop(key, None)
        if row is not None:
            self._lengths[row] = 0
            if len(self._keys) > 2 * len(self._rows) + 1000:
                self._compact()

    def search(self, text: str, limit: int) -> list[tuple[Key, float]]:
        """The keys with the highest Jaccard similarity above 0, best first; ties go to the one added last."""
        grams = ngrams(text, self._sizes)
        postings = [np.frombuffer(self._postings[gram], np.int32) for gram in grams if gram in self._postings]
        if not postings:
            return []
        lengths, lost = np.frombuffer(self._lengths, np.int32), np.frombuffer(self._lost, np.int32)
        rows, scores = best_matches(np.concatenate(postings), len(grams), lengths, lost, lengths > 0, limit)
        return [(self._keys[row], score) for row, score in zip(rows.tolist(), scores.tolist(), strict=True)]

    def _compact(self) -> None:
        """Renumber the rows, in the same order."""
        kept = sorted(self._rows.values())
        moved = np.full(len(self._keys), -1, np.int32)
        moved[kept] = np.arange(len(kept), dtype=np.int32)
        self._keys = [self._keys[row] for row in kept]
        self._lengths = array("i", (self._lengths[row] for row in kept))
        self._lost = array("i", (self._lost[row] for row in kept))
        self._rows = {key: row for row, key in enumerate(self._keys)}
        postings = {}
        for gram, rows in self._postings.items():
            left = moved[np.frombuffer(rows, np.int32)]
            if (left >= 0).any():
                postings[gram] = array("i", left[left >= 0].tobytes())
        self._postings = postings


def document_of(name: str, description: str) -> str:
    """What is compared with requests: the name of a function says what it does, too."""
    return f"{name.replace('_', ' ').capitalize()}. {description}"


class DescriptionIndex(Generic[Key]):
    def __init__(self) -> None:
        self._words: dict[Key, frozenset[str]] = {}
        self._having: defaultdict[str, dict[Key, None]] = defaultdict(dict)
        self._alike: defaultdict[str, dict[str, None]] = defaultdict(dict)  # the words, by how they begin

    def __contains__(self, key: Key) -> bool:
        return key in self._words

    def __bool__(self) -> bool:
        return bool(self._words)

    def add(self, key: Key, name: str, description: str) -> None:
        """Replaces a known key."""
        self.remove(key)
        self._words[key] = _stems(document_of(name, description)[:_CHARS])
        for word in self._words[key]:
            self._having[word][key] = None
            self._alike[beginning(word)][word] = None

    def remove(self, key: Key) -> None:
        """An unknown key is ignored."""
        for word in self._words.pop(key, ()):
            del self._having[word][key]
            if not self._having[word]:
                del self._having[word]
                del self._alike[beginning(word)][word]

    def search(self, request: str, limit: int, is_visible: Callable[[Key], bool]) -> list[tuple[Key, float]]:
        """The visible keys with the largest share of the request's words, rare ones counting for more; best first.

        Numbers, and names that no description has, are details of the request: they do not count.
        """
        total, worth, shared = 0.0, defaultdict[Key, float](float), defaultdict[Key, int](int)
        for term, is_detail in _terms(request[:_CHARS]).items():
            matched: dict[Key, float] = {}
            alike = self._alike.get(beginning(term), ())
            for word in [each for each in alike if each == term or is_beginning(each, term)]:
                for key in self._having[word]:
                    matched[key] = max(matched.get(key, 0.0), 1.0 if word == term else _BEGINS)
            if is_detail and not matched:
                continue
            weight = math.log(1 + len(self._words) / max(len(matched), 1))
            total += weight
            for key, share in matched.items():
                worth[key] += weight * share
                shared[key] += 1
        found = [
            (key, value / total) for key, value in worth.items() if shared[key] >= _FEWEST and is_visible(key)
        ]
        return sorted(found, key=lambda each: -each[1])[:limit]


def _terms(request: str) -> dict[str, bool]:
    """The words of a request, and whether one is written like a name."""
    terms: dict[str, bool] = {}
    for number, word in enumerate(_WORD.findall(request)):
        for stem in _stems(word):
            if not word.isdigit() and len(terms) < _TERMS:
                terms.setdefault(stem, number > 0 and word[0].isupper())
    return terms


def _stems(text: str) -> frozenset[str]:
    return ngrams(text, (1,)) - _ASKING


class VectorIndex(Generic[Key]):
    """Exact cosine similarity of one embedder's vectors.

    Removed vectors are masked until they are a fifth of all, then deleted in one pass.
    """

    def __init__(self, model: str, dimension: int) -> None:
        self.model = model
        self.dimension = dimension
        # Any: FAISS's types lack the attributes of the wrapped index
        self._index: Any = faiss.IndexIDMap(faiss.IndexFlatIP(dimension))
        self._keys: dict[int, Key] = {}  # number in FAISS -> key
        self._numbers: dict[Key, int] = {}
        self._next = 0
        self._removed: list[int] = []

    def __len__(self) -> int:
        return len(self._numbers)

    def add(self, entries: Sequence[tuple[Key, Vector]]) -> None:
        """Vectors have norm 1. A known key is replaced. Raises ValueError for a wrong dimension."""
        added = dict(entries)
        if not added:
            return
        vectors = np.stack(list(added.values())).astype(np.float32)  # (N, D)
        if vectors.shape[1] != self.dimension:
            raise ValueError(
                f"vectors of {self.model} have {self.dimension} numbers, these have {vectors.shape[1]}"
            )
        self.remove(list(added))
        numbers = np.arange(self._next, self._next + len(added), dtype=np.int64)
        self._next += len(added)
        self._numbers.update(zip(added, numbers.tolist(), strict=True))
        self._keys.update(zip(numbers.tolist(), added, strict=True))
        self._index.add_with_ids(vectors, numbers)

    def remove(self, keys: Sequence[Key]) -> None:
        """Unknown keys are ignored."""
        gone = [self._numbers.pop(key) for key in keys if key in self._numbers]
        for number in gone:
            del self._keys[number]
        self._removed += gone
        if len(self._removed) > 64 + len(self._numbers) // 4:
            self._index.remove_ids(faiss.IDSelectorBatch(np.array(self._removed, np.int64)))
            self._removed = []

    def search(self, query: Vector, limit: int) -> list[tuple[Key, float]]:
        """The nearest keys and their cosines, best first; ties go to the one added last."""
        count = min(limit, len(self._numbers))
        if not count:
            return []
        masked = faiss.IDSelectorBatch(np.array(self._removed, np.int64))
        remaining = faiss.IDSelectorNot(masked)
        settings: Any = faiss.SearchParameters()
        if self._removed:
            settings.sel = remaining
        # (1, count) each; number -1: fewer vectors than requested
        cosines, numbers = self._index.search(
            query[None, :].astype(np.float32), count, params=settings
        )  # (1, count)
        pairs = zip(cosines[0].tolist(), numbers[0].tolist(), strict=True)
        best = sorted((pair for pair in pairs if pair[1] >= 0), reverse=True)
        return [(self._keys[number], cosine) for cosine, number in best]


class FusionWeights(msgspec.Struct, frozen=True):
    """The weight of each list, and the similarity in any one of them that admits a skill."""

    weights: Mapping[str, float]
    thresholds: Mapping[str, float]


def fuse(
    lists: Mapping[str, Scored[Key]], settings: FusionWeights, limit: int, newest: Callable[[Key], tuple[int, str]]
) -> Ranked[Key]:
    """Reciprocal rank fusion (Cormack, Clarke and Buettcher 2009): a rank is worth weight / (60 + rank).

    `newest` returns a key's version and name: ties go to the higher version, then to the name.
    """

    def order(entry: tuple[Key, float]) -> tuple[float, int, str]:
        version, name = newest(entry[0])
        return -entry[1], -version, name

    ranks: dict[Key, dict[str, int]] = {}
    worth: dict[Key, float] = {}
    admitted: set[Key] = set()
    for label, entries in lists.items():
        for rank, (key, similarity) in enumerate(sorted(entries, key=order)[:DEPTH], start=1):
            ranks.setdefault(key, {})[label] = rank
            worth[key] = worth.get(key, 0.0) + settings.weights[label] / (60 + rank)
            if similarity >= settings.thresholds[label]:
                admitted.add(key)
    best = sorted(((key, worth[key]) for key in admitted), key=order)
    return [(key, ranks[key]) for key, _ in best[:limit]]

"""Exact Jaccard similarity over word n-grams, in memory: postings per n-gram, counted with one bincount.

A text may have slots: words that match any other word. Its n-grams over slots are not counted, nor are as many of
the query's: "mails from iris", with a slot for iris, equals "mails from omar".
"""

import re
from array import array
from collections.abc import Collection, Hashable, Iterable
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

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
Key = TypeVar("Key", bound=Hashable)


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


class NgramIndex(Generic[Key]):
    """Finds the most similar texts. A removed text takes up space until the next compaction."""

    def __init__(self, sizes: tuple[int, ...] = (1, 2)) -> None:
        self._sizes = sizes
        self._postings: dict[str, array[int]] = {}  # n-gram -> rows
        self._keys: list[Key] = []  # row -> key
        self._lengths = array("i")  # row -> number of n-grams; 0: removed
        self._excused = array("i")  # row -> number of n-grams lost to its slots
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
        self._excused.append(len(ngrams(text, self._sizes)) - len(grams))
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
        rows, scores = self._score(np.concatenate(postings), len(grams))
        if len(rows) > limit:
            best = scores >= np.partition(scores, -limit)[-limit]
            rows, scores = rows[best], scores[best]
        order = np.lexsort((-rows, -scores))[:limit]
        return [(self._keys[rows[place]], float(scores[place])) for place in order]

    def _score(self, hits: NDArray[np.int32], query_size: int) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
        """`hits` has one row number per shared n-gram. Returns (R,) rows and (R,) similarities."""
        counts = np.bincount(hits)
        lengths = np.frombuffer(self._lengths, np.int32)[: len(counts)]
        excused = np.frombuffer(self._excused, np.int32)[: len(counts)]
        rows = np.flatnonzero((counts > 0) & (lengths > 0))
        shared = counts[rows]
        return rows, shared / (lengths[rows] + np.maximum(query_size - shared - excused[rows], 0))

    def _compact(self) -> None:
        """Renumber the rows, in the same order."""
        kept = sorted(self._rows.values())
        moved = np.full(len(self._keys), -1, np.int32)
        moved[kept] = np.arange(len(kept), dtype=np.int32)
        self._keys = [self._keys[row] for row in kept]
        self._lengths = array("i", (self._lengths[row] for row in kept))
        self._excused = array("i", (self._excused[row] for row in kept))
        self._rows = {key: row for row, key in enumerate(self._keys)}
        postings = {}
        for gram, rows in self._postings.items():
            left = moved[np.frombuffer(rows, np.int32)]
            if (left >= 0).any():
                postings[gram] = array("i", left[left >= 0].tobytes())
        self._postings = postings

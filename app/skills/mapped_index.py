"""Exact Jaccard similarity over word n-grams, from files: as `NgramIndex` ranks, for millions of texts.

Texts are sorted into buckets of equal length and equal loss to slots, in which the number of shared n-grams alone
decides the score. A frequent n-gram is a bitmap over all texts. A search adds up the bitmaps of its n-grams, a bit
of every sum at a time, 64 texts in one operation. So it takes the same time whatever texts and queries are like.
"""

from array import array
from collections.abc import Collection
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from app.skills.mapped.string_table import StringTable, encoded, map_array, save_array
from app.skills.ngrams import ngrams

Bits = NDArray[np.uint64]  # (R / 64,): a bit for each row, the lowest first
Rows = NDArray[np.int64]  # (K,)
Places: TypeAlias = "slice | NDArray[np.int64]"  # words of bits
_WORD = 64
_FREQUENT = 32  # an n-gram of one text in so many takes less space as a bitmap than as row numbers


class NgramBitmaps:
    """Rows number the texts by bucket and, in each, from the oldest. A bucket begins with a new word of bits."""

    def __init__(self, directory: Path) -> None:
        """Raises OSError and ValueError for files that `NgramWriter` did not leave."""
        self._grams = StringTable.open(directory, "grams")
        self._ends = map_array(directory, "gram_ends")  # (G,) of each n-gram's rows in `_hits`
        self._hits = map_array(directory, "gram_hits")  # (H,)
        self._frequent = map_array(directory, "frequent")  # (F,) n-grams, ascending
        self._bitmaps = map_array(directory, "bitmaps")  # (F, R / 64)
        self._buckets = np.array(map_array(directory, "buckets"))  # (B, 3): first word, n-grams, n-grams lost
        self._ages = map_array(directory, "ages")  # (R,) 0: the oldest
        self.words = len(self._ages) // _WORD

    def search(self, text: str, limit: int, visible: Bits) -> tuple[Rows, NDArray[np.float64]]:
        """The visible rows with the highest similarity above 0, best first; ties go to the newest."""
        grams = ngrams(text)
        known = [number for gram in grams if (number := self._grams.find(gram)) is not None]
        found = self._tally(known, visible)
        if not found:
            return np.empty(0, np.int64), np.empty(0)
        _, lengths, lost = self._buckets.T
        counts = np.array([each.shared for each in found])[:, None]  # (C, 1)
        union = lengths + np.maximum(len(grams) - counts - lost, 0)
        scores = counts / np.maximum(union, 1)  # (C, B); a bucket of texts without n-grams has no hits
        sizes = np.stack([self._sizes(each) for each in found])
        return self._best(scores, sizes, found, limit)

    def _tally(self, grams: Collection[int], visible: Bits) -> "list[_Tied]":
        """The visible rows by the number of these n-grams that they have."""
        planes = np.zeros((len(grams).bit_length(), self.words), np.uint64)  # the lowest bit of all sums first
        for gram in grams:
            _add(planes, *self._hits_of(gram))
        levels = [_Tied(0, np.arange(self.words), visible)]
        for plane in planes[::-1]:
            levels = [half for level in levels for half in level.split(plane)]
        return [level for level in levels if level.shared]

    def _sizes(self, level: "_Tied") -> NDArray[np.int64]:
        """(B,) its rows in each bucket."""
        starts = np.searchsorted(level.places, self._buckets[:, 0])
        totals = np.append(0, np.cumsum(np.bitwise_count(level.bits), dtype=np.int64))
        return np.diff(totals[starts], append=totals[-1])

    def _best(
        self, scores: NDArray[np.float64], sizes: NDArray[np.int64], found: "list[_Tied]", limit: int
    ) -> tuple[Rows, NDArray[np.float64]]:
        """`scores` and `sizes` (C, B) are of the rows of each bucket in each of `found`."""
        falling = np.argsort(-scores, axis=None, kind="stable")
        falling = falling[sizes.flat[falling] > 0]
        enough = int(np.searchsorted(np.cumsum(sizes.flat[falling]), limit))
        least = scores.flat[falling[min(enough, len(falling) - 1)]]
        ends = np.append(self._buckets[1:, 0], self.words)
        rows, similarities = [], []
        for level, bucket in np.argwhere((scores >= least) & (sizes > 0)):
            rows.append(found[level].newest(self._buckets[bucket, 0], ends[bucket], limit))
            similarities.append(np.full(len(rows[-1]), scores[level, bucket]))
        all_rows, all_scores = np.concatenate(rows), np.concatenate(similarities)
        order = np.lexsort((-self._ages[all_rows], -all_scores))[:limit]
        return all_rows[order], all_scores[order]

    def _hits_of(self, gram: int) -> tuple[Places, Bits]:
        """The rows that have an n-gram."""
        place = int(np.searchsorted(self._frequent, gram))
        if place < len(self._frequent) and self._frequent[place] == gram:
            return slice(None), self._bitmaps[place]
        return _packed(self._hits[self._ends[gram - 1] if gram else 0 : self._ends[gram]])


class _Tied(NamedTuple):
    """Rows with the same number of shared n-grams."""

    shared: int
    places: NDArray[np.int64]  # (P,) the words of bits that are not 0, ascending
    bits: Bits  # (P,)

    def split(self, plane: Bits) -> "list[_Tied]":
        """By the next lower bit of their sums."""
        ones = self.bits & plane[self.places]
        return [
            _Tied(2 * self.shared + bit, self.places[kept], bits[kept])
            for bit, bits in ((1, ones), (0, self.bits ^ ones))
            if len(kept := np.flatnonzero(bits))
        ]

    def newest(self, start: int, end: int, limit: int) -> Rows:
        """Its rows in a bucket, at least the last `limit`. A bucket's words are from `start` to `end`."""
        first, last = np.searchsorted(self.places, [start, end])
        first = max(first, last - limit)
        bits = np.unpackbits(self.bits[first:last].view(np.uint8), bitorder="little").reshape(-1, _WORD)
        places, within = np.nonzero(bits)
        rows: Rows = self.places[first + places] * _WORD + within
        return rows


class NgramWriter:
    """Takes texts from the oldest to the newest, and writes the files of `NgramBitmaps`."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}  # n-gram -> number, in the order of appearance
        self._grams = array("i")  # of one text after the other
        self._lengths = array("i")
        self._lost = array("i")

    def add(self, text: str, slots: Collection[str] = ()) -> None:
        grams = ngrams(text, slots=slots)
        self._grams.extend(self._numbers.setdefault(gram, len(self._numbers)) for gram in grams)
        self._lengths.append(len(grams))
        self._lost.append(len(ngrams(text)) - len(grams) if slots else 0)

    def finish(self, directory: Path) -> Rows:
        """Returns the row of each text (N,)."""
        lengths, lost = np.array(self._lengths, np.int64), np.array(self._lost, np.int64)
        rows, buckets, words = _layout(lengths, lost)
        save_array(directory, "buckets", buckets)
        ages = np.zeros(words * _WORD, np.int32)
        ages[rows] = np.arange(len(rows), dtype=np.int32)
        save_array(directory, "ages", ages)
        self._write_postings(directory, np.repeat(rows, lengths).astype(np.int32), words)
        return rows

    def _write_postings(self, directory: Path, hits: NDArray[np.int32], words: int) -> None:
        names = sorted((encoded(gram), number) for gram, number in self._numbers.items())
        StringTable.write(directory, "grams", [name for name, _ in names])
        renumbered = np.empty(len(names), np.int32)
        renumbered[[number for _, number in names]] = np.arange(len(names), dtype=np.int32)
        grams = renumbered[np.frombuffer(self._grams, np.int32)] if names else np.empty(0, np.int32)
        hits = hits[np.lexsort((hits, grams))]
        sizes = np.bincount(grams, minlength=len(names))
        is_frequent = sizes > words * _WORD / _FREQUENT
        ends = np.cumsum(sizes)
        frequent = np.flatnonzero(is_frequent)
        bitmaps = [bits_of(hits[ends[gram] - sizes[gram] : ends[gram]], words) for gram in frequent]
        save_array(directory, "frequent", frequent)
        save_array(directory, "bitmaps", np.stack(bitmaps) if bitmaps else np.empty((0, words), np.uint64))
        save_array(directory, "gram_hits", hits[~np.repeat(is_frequent, sizes)])
        save_array(directory, "gram_ends", np.cumsum(np.where(is_frequent, 0, sizes)))


def bits_of(rows: NDArray[Any], words: int) -> Bits:
    """A bit for each of these rows, which ascend."""
    bits = np.zeros(words, np.uint64)
    places, packed = _packed(rows)
    bits[places] = packed
    return bits


def _packed(rows: NDArray[Any]) -> tuple[NDArray[np.int64], Bits]:
    """The words that these rows, which ascend, are in, and their bits of each."""
    places = rows // _WORD
    starts = np.flatnonzero(np.diff(places, prepend=-1))
    bits: Bits = np.uint64(1) << (rows % _WORD).astype(np.uint64)
    return places[starts], np.bitwise_or.reduceat(bits, starts) if len(rows) else bits


def _add(planes: NDArray[np.uint64], places: Places, bits: Bits) -> None:
    """Add 1 to the sums of the rows in `bits`, which belong to the words `places`. `planes` (K, R / 64)."""
    for plane in planes:
        carry = plane[places] & bits
        plane[places] ^= bits
        if not carry.any():
            return
        bits = carry


def _layout(lengths: NDArray[np.int64], lost: NDArray[np.int64]) -> tuple[Rows, NDArray[np.int64], int]:
    """The row of each text (N,), the buckets (B, 3), and the number of words."""
    if not len(lengths):
        return np.empty(0, np.int64), np.zeros((1, 3), np.int64), 1
    kinds, bucket, sizes = np.unique(
        np.stack([lengths, lost], axis=1), axis=0, return_inverse=True, return_counts=True
    )
    words = -(-sizes // _WORD)
    starts = np.cumsum(words) - words
    order = np.argsort(bucket, kind="stable")  # by bucket, then by age
    within = np.arange(len(order)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    rows = np.empty(len(order), np.int64)
    rows[order] = np.repeat(starts * _WORD, sizes) + within
    return rows, np.column_stack([starts, kinds]), int(words.sum())

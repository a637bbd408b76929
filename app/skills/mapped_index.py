"""The skills of one project in files that all processes of a host share: n-grams as bitmaps, vectors in cells,
names in sorted tables. As exact as `similarity`, for millions of texts; without those that changed since the
files were written.
"""

import copy
from array import array
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias
from uuid import UUID

import faiss
import msgspec
import numpy as np
from numpy.typing import NDArray

from app.base.values import Offer
from app.engine.protocol import Vector
from app.skills.similarity import DEPTH, Scored, ngrams
from app.skills.visibility import Reach, SkillVersion


class StringTable:
    """Strings by number, and numbers by string. The order is that of code points."""

    def __init__(self, text: NDArray[Any], ends: NDArray[Any]) -> None:
        """`text` (B,) has the strings as UTF-8, one after the other; `ends` (S,) says where each one ends."""
        self._text, self._ends = text.data, ends.data

    @classmethod
    def open(cls, directory: Path, name: str) -> "StringTable":
        """Raises OSError and ValueError for files that `write` did not leave."""
        return cls(map_array(directory, f"{name}_text"), map_array(directory, f"{name}_ends"))

    @staticmethod
    def write(directory: Path, name: str, strings: Iterable[bytes]) -> None:
        """In the order given, which must be sorted for `find`."""
        ends = np.cumsum(np.array([len(each) for each in strings], np.int64), dtype=np.int64)
        save_array(directory, f"{name}_text", np.frombuffer(b"".join(strings), np.uint8))
        save_array(directory, f"{name}_ends", ends)

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, number: int) -> bytes:
        return bytes(self._text[self._ends[number - 1] if number else 0 : self._ends[number]])

    def find(self, text: str) -> int | None:
        """The number of a string, if the table has it."""
        wanted = encoded(text)
        number = bisect_left(self, wanted)
        return number if number < len(self) and self[number] == wanted else None


def encoded(text: str) -> bytes:
    """As UTF-8, also what is no Unicode text: such a string is in no table, or in one of the same spelling."""
    return text.encode("utf-8", "surrogatepass")


def save_array(directory: Path, name: str, array: NDArray[Any]) -> None:
    np.save(directory / f"{name}.npy", array, allow_pickle=False)


def map_array(directory: Path, name: str) -> NDArray[Any]:
    """Read when it is used, and shared by all processes that map it. Raises OSError and ValueError."""
    mapped: NDArray[Any] = np.load(directory / f"{name}.npy", mmap_mode="r", allow_pickle=False)
    return mapped.view(np.ndarray)


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


EXACT = 50_000  # vectors that are all compared, in about 5 ms
_CELLS = 2  # times the square root of the number of vectors
_PROBES = 32
_TRAINED_ON = 64  # vectors per cell
_ROUNDS = 5  # of k-means
_MARGIN = 0.2  # of the range of the training sample's numbers, for those of others that lie outside
_CANDIDATES = 4  # times the number of results
_BATCH = 16_384
_FINE = 16  # parts of a quantization step that 4 bits distinguish

Cosines = NDArray[np.float32]  # (K,)
Matrix = NDArray[np.float32]  # (N, D)


class MappedVectors:
    """Vectors by row; not every row has one. Cosines are rounded to 6 digits, so that equal vectors are equal."""

    def __init__(self, directory: Path, name: str) -> None:
        """Raises OSError, ValueError and RuntimeError for files that `write_vectors` did not leave."""
        file = directory / f"{name}.faiss"
        self._is_exact = not (directory / f"{name}_fine.npy").exists()
        flag = faiss.IO_FLAG_MMAP_IFC if self._is_exact else faiss.IO_FLAG_MMAP
        self._index: Any = faiss.read_index(str(file), flag | faiss.IO_FLAG_READ_ONLY)
        self.dimension = int(self._index.d)
        if not self._is_exact:
            self._fine = map_array(directory, f"{name}_fine")  # (R, D / 2)
            self._steps = _steps(self._index)

    def __len__(self) -> int:
        return int(self._index.ntotal)

    def search(self, query: Vector, limit: int, visible: Bits) -> tuple[Rows, Cosines]:
        """The visible rows with the nearest vectors, best first, at most `limit`."""
        selector = faiss.IDSelectorBitmap(visible.nbytes, faiss.swig_ptr(visible.view(np.uint8)))
        asked = query[None].astype(np.float32)  # (1, D)
        settings: Any  # FAISS's types lack the arguments
        if self._is_exact:
            settings = faiss.SearchParameters()
            settings.sel = selector
            cosines, rows = self._index.search(asked, limit, params=settings)
        else:
            settings = faiss.SearchParametersIVF()
            settings.sel, settings.nprobe = selector, _PROBES
            cosines, rows = self._index.search(asked, _CANDIDATES * limit, params=settings)
            cosines = cosines + self._rest(rows[0], asked[0])
        kept = rows[0] >= 0  # -1: fewer vectors than requested
        found: Rows = rows[0][kept]
        rounded = np.round(cosines[0][kept], 6)
        order = np.argsort(-rounded, kind="stable")[:limit]
        return found[order], rounded[order]

    def _rest(self, rows: Rows, query: Vector) -> Cosines:
        """(K,) what the last 4 bits add to the cosines."""
        packed = self._fine[np.maximum(rows, 0)]  # (K, D / 2)
        levels = np.stack([packed & 15, packed >> 4], axis=2).reshape(len(rows), -1)[:, : self.dimension]
        scaled = self._steps * query
        rest: Cosines = (levels @ scaled + (0.5 - _FINE / 2) * scaled.sum()) / _FINE
        return rest


def write_vectors(directory: Path, name: str, vectors: Matrix, rows: Rows, *, exact: int = EXACT) -> None:
    """`vectors` (N, D) may be a mapped file: it is read in parts. `rows` (N,) are the row of each."""
    is_exact = len(vectors) <= exact
    index = faiss.IndexIDMap(faiss.IndexFlatIP(vectors.shape[1])) if is_exact else _trained(vectors)
    fine = None if is_exact else np.zeros((int(rows.max()) + 1, (vectors.shape[1] + 1) // 2), np.uint8)
    for start in range(0, len(vectors), _BATCH):
        part, numbers = np.array(vectors[start : start + _BATCH]), rows[start : start + _BATCH]
        if fine is None:
            index.add_with_ids(part, numbers)
        else:
            codes = index.sa_encode(part)
            index.add_sa_codes(codes, numbers)
            fine[numbers] = _packed_rest(part - index.sa_decode(codes), _steps(index))
    faiss.write_index(index, str(directory / f"{name}.faiss"))
    if fine is not None:
        save_array(directory, f"{name}_fine", fine)


def _trained(vectors: Matrix) -> Any:
    dimension, cells = vectors.shape[1], int(_CELLS * len(vectors) ** 0.5)
    centers: Any = faiss.IndexFlatIP(dimension)
    kind = faiss.ScalarQuantizer.QT_8bit
    index = faiss.IndexIVFScalarQuantizer(centers, dimension, cells, kind, faiss.METRIC_INNER_PRODUCT)
    index.sq.rangestat_arg = _MARGIN
    index.cp.niter = _ROUNDS
    index.cp.max_points_per_centroid = _TRAINED_ON
    sample = np.random.default_rng(0).choice(len(vectors), min(len(vectors), cells * _TRAINED_ON), replace=False)
    index.train(np.array(vectors[np.sort(sample)]))
    centers.this.disown()
    index.own_fields = True
    return index


def _steps(index: Any) -> NDArray[np.float32]:
    """(D,) the size of a quantization step."""
    trained = faiss.vector_to_array(index.sq.trained)  # (2 D,): the least, and the range
    steps: NDArray[np.float32] = (trained[index.d :] / 255).astype(np.float32)
    return steps


def _packed_rest(rest: Matrix, steps: NDArray[np.float32]) -> NDArray[np.uint8]:
    """(N, D / 2): 4 bits for each number of what 8 bits leave of a vector."""
    levels = np.floor((rest / np.maximum(steps, np.finfo(np.float32).tiny) + 0.5) * _FINE)
    levels = np.clip(levels, 0, _FINE - 1).astype(np.uint8)
    if levels.shape[1] % 2:
        levels = np.pad(levels, ((0, 0), (0, 1)))
    packed: NDArray[np.uint8] = levels[:, ::2] | levels[:, 1::2] << 4
    return packed


REACHES: tuple[Reach, ...] = ("owner", "trial", "all")  # by number
OWNER, TRIAL, ALL, NONE = range(4)  # NONE: the row is empty


class MappedSkills:
    """Rows are those of the n-gram bitmaps, some of them empty."""

    def __init__(self, directory: Path) -> None:
        """Raises OSError, ValueError and RuntimeError for files that `write_skills` did not leave."""
        self.ngrams = NgramBitmaps(directory)
        self.queries = _vectors(directory, "queries")
        self.sources = _vectors(directory, "sources")
        self._texts = StringTable.open(directory, "texts")  # by row: signature and instruction
        self._ids = map_array(directory, "ids")  # (R,) of 16 bytes
        self._by_id = map_array(directory, "by_id")  # (N,) rows in the order of the ids
        self._versions = map_array(directory, "versions")  # (R,)
        self._reaches = map_array(directory, "reaches")  # (R,)
        self._described = map_array(directory, "described")  # (D,) rows
        self._owners = map_array(directory, "owners")  # (R,) numbers in `_principals`
        self._names = map_array(directory, "names")  # (R,) numbers of keys in `_by_name`
        self._scenarios = map_array(directory, "scenarios")  # (R,) numbers of keys in `_by_scenario`, -1: none
        self._principals = StringTable.open(directory, "principals")
        self._by_name = _Groups(directory, "name")  # from the oldest version
        self._by_scenario = _Groups(directory, "scenario")  # from the newest version, then by name

    @property
    def rows(self) -> int:
        return len(self._ids)

    @property
    def everything(self) -> Bits:
        """A bit for each row that has a skill."""
        return _packed_flags(self._reaches != NONE)

    def row_of(self, skill_id: UUID) -> int | None:
        wanted = skill_id.bytes
        place = bisect_left(self._by_id, wanted, key=self._id)
        if place == len(self._by_id) or self._id(self._by_id[place]) != wanted:
            return None
        return int(self._by_id[place])

    def skill_id(self, row: int) -> UUID:
        return UUID(bytes=self._id(row))

    def _id(self, row: int) -> bytes:
        return self._ids[row : row + 1].tobytes()

    def newest(self, row: int) -> tuple[int, str]:
        """Version and name."""
        return int(self._versions[row]), self.name(row)

    def name(self, row: int) -> str:
        return self._by_name.keys[int(self._names[row])].decode()

    def offer(self, row: int) -> Offer:
        """Without its source."""
        signature, instruction = msgspec.msgpack.decode(self._texts[row], type=tuple[str, str])
        version, name = self.newest(row)
        return Offer(
            skill_id=self.skill_id(row),
            name=name,
            version=version,
            signature=signature,
            source="",
            instruction=instruction,
        )

    def described(self) -> Iterator[Offer]:
        """The skills whose instructions are descriptions of them."""
        return map(self.offer, self._described.tolist())

    def versions_of(self, name: str) -> dict[int, SkillVersion]:
        """By row."""
        return {row: self._version(row) for row in self._by_name.rows_of(name).tolist()}

    def _version(self, row: int) -> SkillVersion:
        owner = self._principals[int(self._owners[row])].decode()
        reach = REACHES[int(self._reaches[row])]
        return SkillVersion(self.skill_id(row), int(self._versions[row]), owner, reach)

    def is_in(self, scenario: str, row: int) -> bool:
        return bool(self._by_scenario.keys.find(scenario) == self._scenarios[row])

    def in_scenario(self, scenario: str, limit: int, visible: Bits) -> Rows:
        """The visible skills of a scenario with the highest versions, at most `limit`."""
        rows = self._by_scenario.rows_of(scenario)
        found: list[int] = []
        for start in range(0, len(rows), 64 * limit):
            part = rows[start : start + 64 * limit]
            shown = (visible[part // 64] >> (part % 64).astype(np.uint64)) & np.uint64(1) > 0
            found.extend(part[shown].tolist())
            if len(found) >= limit:
                break
        return np.array(found[:limit], np.int64)

    def visible_to(self, owners: Collection[str]) -> Bits:
        """The rows that are of each name the newest version among those that reach the tasks of these owners.

        A version on trial reaches all if it is the oldest one and no version reaches all anyway.
        """
        numbers = [self._principals.find(owner) for owner in owners]
        is_own = np.isin(self._owners, [number for number in numbers if number is not None])
        visible = (self._reaches == TRIAL) | (self._reaches == ALL) | (is_own & (self._reaches != NONE))
        rows, starts = self._by_name.shared  # of the names with more than one version
        if len(rows):
            visible[rows] = False
            visible[_newest_visible(rows, starts, self._reaches[rows], is_own[rows])] = True
        return _packed_flags(visible)


class _Groups:
    """Rows by a key that several may share."""

    def __init__(self, directory: Path, name: str) -> None:
        self.keys = StringTable.open(directory, f"{name}_keys")
        self._rows = map_array(directory, f"{name}_rows")
        self._ends = map_array(directory, f"{name}_ends")  # (K,) of each key's rows

    def rows_of(self, key: str) -> Rows:
        number = self.keys.find(key)
        if number is None:
            return np.empty(0, np.int64)
        rows: Rows = self._rows[self._ends[number - 1] if number else 0 : self._ends[number]].astype(np.int64)
        return rows

    @property
    def shared(self) -> tuple[Rows, Rows]:
        """The rows of the keys with more than one, by key, and where those of each key start among them."""
        sizes = np.diff(self._ends, prepend=0)
        rows = self._rows[np.repeat(sizes > 1, sizes)].astype(np.int64)
        sizes = sizes[sizes > 1]
        return rows, np.cumsum(sizes) - sizes


def _newest_visible(rows: Rows, starts: Rows, reaches: NDArray[np.uint8], is_own: NDArray[np.bool_]) -> Rows:
    """Of each group of rows, from the oldest version: the newest that is visible, if one is."""
    places = np.arange(len(rows))
    sizes = np.diff(starts, append=len(rows))
    for_all = np.repeat(np.logical_or.reduceat(reaches == ALL, starts), sizes)
    trials = np.where(reaches == TRIAL, places, len(rows))
    first = np.repeat(np.minimum.reduceat(trials, starts), sizes)
    seen = is_own | (reaches == ALL) | (~for_all & (places == first))
    newest = np.maximum.reduceat(np.where(seen, places, -1), starts)
    chosen: Rows = rows[newest[newest >= 0]]
    return chosen


def _packed_flags(flags: NDArray[np.bool_]) -> Bits:
    return np.packbits(flags, bitorder="little").view(np.uint64)


def _vectors(directory: Path, name: str) -> MappedVectors | None:
    return MappedVectors(directory, name) if (directory / f"{name}.faiss").exists() else None


_PRINCIPALS = 16  # whose visible rows are kept: 1 bit for each skill


class MappedIndex:
    """The lists of `SkillIndex` for the mapped part of its skills, each at most `DEPTH` long."""

    def __init__(self, skills: MappedSkills, *, compare_vectors: bool = True) -> None:
        self.skills = skills
        self._queries = skills.queries if compare_vectors else None
        self._sources = skills.sources if compare_vectors else None
        self._left = skills.everything
        self._visible = self._left
        self._changed: list[str] = []  # names, with repetitions
        self._rows: dict[str, dict[UUID, int]] = {}  # of the names that changed
        self._views: dict[frozenset[str], tuple[Bits, int]] = {}  # owners -> rows, and the changes they reflect
        self._found: dict[UUID, int] = {}  # rows of what the searches of a view returned

    def __len__(self) -> int:
        return int(np.bitwise_count(self._left).sum())

    @property
    def has_vectors(self) -> bool:
        return self._queries is not None

    def view(self, owners: Collection[str], newest: Callable[[str], UUID | None]) -> "MappedIndex":
        """`newest` decides, of a name that changed, which version tasks of these owners see."""
        key = frozenset(owners)
        if key not in self._views:
            self._views[key] = self.skills.visible_to(owners), 0
        visible, reflected = self._views.pop(key)
        for name in set(self._changed[reflected:]):
            rows = self._rows[name]
            chosen = newest(name)
            for skill_id, row in rows.items():
                _put(visible, row, skill_id == chosen and _has(self._left, row))
        self._views[key] = visible, len(self._changed)
        if len(self._views) > _PRINCIPALS:
            del self._views[next(iter(self._views))]
        view = copy.copy(self)
        view._visible, view._found = visible, {}
        return view

    def versions_of(self, name: str) -> list[SkillVersion]:
        """Call it before a name changes for the first time."""
        versions = self.skills.versions_of(name)
        if versions:
            self._rows[name] = {each.skill_id: row for row, each in versions.items()}
        return list(versions.values())

    def name_of(self, skill_id: UUID) -> str | None:
        """None for a skill that is not mapped, or no more."""
        row = self.skills.row_of(skill_id)
        return None if row is None or not _has(self._left, row) else self.skills.name(row)

    def change(self, name: str, gone: UUID | None = None) -> None:
        """Note that the versions of a name changed; `gone` is a mapped one that is out of date."""
        if name in self._rows:
            self._changed.append(name)
        if gone is not None:
            _put(self._left, self._rows[name][gone], False)

    def is_visible(self, skill_id: UUID) -> bool:
        row = self.skills.row_of(skill_id)
        return row is not None and _has(self._visible, row)

    def offer(self, skill_id: UUID) -> Offer:
        """Without its source. Raises KeyError for an unknown id."""
        return self.skills.offer(self._row(skill_id))

    def newest(self, skill_id: UUID) -> tuple[int, str]:
        """Version and name. Raises KeyError for an unknown id."""
        return self.skills.newest(self._row(skill_id))

    def by_ngrams(self, instruction: str) -> Scored[UUID]:
        return self._scored(*self.skills.ngrams.search(instruction, DEPTH, self._visible))

    def by_query_vector(self, vector: Vector) -> Scored[UUID] | None:
        return self._nearest(self._queries, vector)

    def by_source_vector(self, vector: Vector) -> Scored[UUID] | None:
        return self._nearest(self._sources, vector)

    def in_scenario(self, scenario: str, similarity: Mapping[UUID, float]) -> Scored[UUID]:
        """The most similar ones, and of the others those with the highest versions."""
        rows = self.skills.in_scenario(scenario, DEPTH, self._visible)
        others = self._scored(rows, np.zeros(len(rows)))
        alike = [
            key
            for key in similarity
            if (row := self._found.get(key)) is not None and self.skills.is_in(scenario, row)
        ]
        return [(key, similarity.get(key, 0.0)) for key in {**dict.fromkeys(alike), **dict(others)}]

    def _nearest(self, vectors: MappedVectors | None, query: Vector) -> Scored[UUID] | None:
        if vectors is None or vectors.dimension != len(query):
            return None
        return self._scored(*vectors.search(query, DEPTH, self._visible))

    def _scored(self, rows: Rows, scores: NDArray[np.floating]) -> Scored[UUID]:
        keys = [self.skills.skill_id(row) for row in rows.tolist()]
        self._found.update(zip(keys, rows.tolist(), strict=True))
        return list(zip(keys, scores.tolist(), strict=True))

    def _row(self, skill_id: UUID) -> int:
        row = self._found.get(skill_id)
        if row is None:
            row = self.skills.row_of(skill_id)
        if row is None:
            raise KeyError(skill_id)
        return row


def _has(bits: Bits, row: int) -> bool:
    return bool(bits[row // 64] >> np.uint64(row % 64) & np.uint64(1))


def _put(bits: Bits, row: int, value: bool) -> None:
    bit = np.uint64(1 << row % 64)
    bits[row // 64] = bits[row // 64] | bit if value else bits[row // 64] & ~bit

"""The skills of one project in files that all processes of a host share: postings of n-grams, vectors in FAISS,
names in sorted tables. Rows number the skills from the one changed first. As exact as `similarity`, for millions
of texts, but vectors beyond `EXACT` are searched in cells; without those that changed since the files were
written.
"""

import copy
from array import array
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any
from uuid import UUID

import faiss
import msgspec
import numpy as np
from numpy.typing import NDArray

from app.base.values import Offer
from app.engine.protocol import Vector
from app.skills.similarity import DEPTH, Scored, best_matches, ngrams
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


Flags = NDArray[np.bool_]  # (R,)
Rows = NDArray[np.int64]  # (K,)


class MappedNgrams:
    def __init__(self, directory: Path) -> None:
        """Raises OSError and ValueError for files that `NgramWriter` did not leave."""
        self._grams = StringTable.open(directory, "grams")
        self._ends = map_array(directory, "gram_ends")  # (G,) of each n-gram's rows in `_hits`
        self._hits = map_array(directory, "gram_hits")  # (H,)
        self._lengths = map_array(directory, "lengths")  # (R,) n-grams
        self._lost = map_array(directory, "lost")  # (R,) n-grams lost to slots

    def search(self, text: str, limit: int, visible: Flags) -> tuple[Rows, NDArray[np.float64]]:
        """The visible rows with the highest similarity above 0, best first; ties go to the newest."""
        grams = ngrams(text)
        known = [number for gram in grams if (number := self._grams.find(gram)) is not None]
        hits = [self._hits[self._ends[number - 1] if number else 0 : self._ends[number]] for number in known]
        if not hits:
            return np.empty(0, np.int64), np.empty(0)
        return best_matches(np.concatenate(hits), len(grams), self._lengths, self._lost, visible, limit)


class NgramWriter:
    """Takes texts from the oldest to the newest, and writes the files of `MappedNgrams`."""

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

    def write(self, directory: Path) -> None:
        names = sorted((encoded(gram), number) for gram, number in self._numbers.items())
        StringTable.write(directory, "grams", [name for name, _ in names])
        renumbered = np.empty(len(names), np.int32)
        renumbered[[number for _, number in names]] = np.arange(len(names), dtype=np.int32)
        lengths = np.array(self._lengths, np.int32)
        grams = renumbered[np.array(self._grams, np.int32)]
        hits = np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)
        save_array(directory, "gram_hits", hits[np.argsort(grams, kind="stable")])
        save_array(directory, "gram_ends", np.cumsum(np.bincount(grams, minlength=len(names))))
        save_array(directory, "lengths", lengths)
        save_array(directory, "lost", np.array(self._lost, np.int32))


EXACT = 50_000  # vectors that are all compared, in about 5 ms
_CELLS = 2  # times the square root of the number of vectors
_PROBES = 32
_TRAINED_ON = 64  # vectors per cell
_ROUNDS = 5  # of k-means
_BATCH = 16_384

Cosines = NDArray[np.float32]  # (K,)
Matrix = NDArray[np.float32]  # (N, D)


class MappedVectors:
    """Vectors by row; not every row has one. Cosines are rounded to 6 digits, so that equal vectors are equal."""

    def __init__(self, directory: Path, name: str) -> None:
        """Raises RuntimeError for files that `write_vectors` did not leave."""
        file = str(directory / f"{name}.faiss")
        self._index: Any = faiss.read_index(file, faiss.IO_FLAG_MMAP_IFC | faiss.IO_FLAG_READ_ONLY)
        self._is_exact = isinstance(self._index, faiss.IndexIDMap)
        self.dimension = int(self._index.d)

    def __len__(self) -> int:
        return int(self._index.ntotal)

    def search(self, query: Vector, limit: int, visible: Flags) -> tuple[Rows, Cosines]:
        """The visible rows with the nearest vectors, best first, at most `limit`."""
        settings: Any = faiss.SearchParameters()  # FAISS's types lack the fields
        if not self._is_exact:
            settings = faiss.SearchParametersIVF()
            settings.nprobe = _PROBES
        bits = np.packbits(visible, bitorder="little")
        selector = faiss.IDSelectorBitmap(bits.nbytes, faiss.swig_ptr(bits))
        settings.sel = selector
        cosines, rows = self._index.search(query[None].astype(np.float32), limit, params=settings)
        kept = rows[0] >= 0  # -1: fewer vectors than requested
        found: Rows = rows[0][kept]
        rounded = np.round(cosines[0][kept], 6)
        order = np.argsort(-rounded, kind="stable")
        return found[order], rounded[order]


def write_vectors(directory: Path, name: str, vectors: Matrix, rows: Rows, *, exact: int = EXACT) -> None:
    """`vectors` (N, D) may be a mapped file: it is read in parts. `rows` (N,) are the row of each.

    More than `exact` are in cells, in half precision.
    """
    dimension = vectors.shape[1]
    index: Any = faiss.IndexIDMap(faiss.IndexFlatIP(dimension))
    if len(vectors) > exact:
        cells = int(_CELLS * len(vectors) ** 0.5)
        index = faiss.index_factory(dimension, f"IVF{cells},SQfp16", faiss.METRIC_INNER_PRODUCT)
        index.cp.niter, index.cp.max_points_per_centroid = _ROUNDS, _TRAINED_ON
        size = min(len(vectors), cells * _TRAINED_ON)
        sample = np.random.default_rng(0).choice(len(vectors), size, replace=False)
        index.train(np.array(vectors[np.sort(sample)]))
    for start in range(0, len(vectors), _BATCH):
        index.add_with_ids(np.array(vectors[start : start + _BATCH]), rows[start : start + _BATCH])
    faiss.write_index(index, str(directory / f"{name}.faiss"))


REACHES: tuple[Reach, ...] = ("owner", "trial", "all")  # by number
OWNER, TRIAL, ALL = range(3)


class MappedSkills:
    def __init__(self, directory: Path) -> None:
        """Raises OSError, ValueError and RuntimeError for files that `write_skills` did not leave."""
        self.ngrams = MappedNgrams(directory)
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

    def __len__(self) -> int:
        return len(self._ids)

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

    def in_scenario(self, scenario: str, limit: int, visible: Flags) -> Rows:
        """The visible skills of a scenario with the highest versions, at most `limit`."""
        rows = self._by_scenario.rows_of(scenario)
        found: list[int] = []
        for start in range(0, len(rows), 64 * limit):
            part = rows[start : start + 64 * limit]
            found.extend(part[visible[part]].tolist())
            if len(found) >= limit:
                break
        return np.array(found[:limit], np.int64)

    def visible_to(self, owners: Collection[str]) -> Flags:
        """The rows that are of each name the newest version among those that reach the tasks of these owners.

        A version on trial reaches all if it is the oldest one and no version reaches all anyway.
        """
        numbers = [self._principals.find(owner) for owner in owners]
        is_own = np.isin(self._owners, [number for number in numbers if number is not None])
        visible: Flags = is_own | (self._reaches != OWNER)
        rows, starts = self._by_name.shared  # of the names with more than one version
        if len(rows):
            visible[rows] = False
            visible[_newest_visible(rows, starts, self._reaches[rows], is_own[rows])] = True
        return visible


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


def _vectors(directory: Path, name: str) -> MappedVectors | None:
    return MappedVectors(directory, name) if (directory / f"{name}.faiss").exists() else None


_PRINCIPALS = 16  # whose visible rows are kept: a byte for each skill


class MappedIndex:
    """The lists of `SkillIndex` for the mapped part of its skills, each at most `DEPTH` long."""

    def __init__(self, skills: MappedSkills, *, compare_vectors: bool = True) -> None:
        self.skills = skills
        self._queries = skills.queries if compare_vectors else None
        self._sources = skills.sources if compare_vectors else None
        self._left: Flags = np.ones(len(skills), np.bool_)
        self._visible = self._left
        self._changed: list[str] = []  # names, with repetitions
        self._rows: dict[str, dict[UUID, int]] = {}  # of the names that changed
        self._views: dict[frozenset[str], tuple[Flags, int]] = {}  # owners -> rows, and the changes they reflect
        self._found: dict[UUID, int] = {}  # rows of what the searches of a view returned

    def __len__(self) -> int:
        return int(self._left.sum())

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
                visible[row] = skill_id == chosen and self._left[row]
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
        return None if row is None or not self._left[row] else self.skills.name(row)

    def change(self, name: str, gone: UUID | None = None) -> None:
        """Note that the versions of a name changed; `gone` is a mapped one that is out of date."""
        if name in self._rows:
            self._changed.append(name)
        if gone is not None:
            self._left[self._rows[name][gone]] = False

    def is_visible(self, skill_id: UUID) -> bool:
        row = self.skills.row_of(skill_id)
        return row is not None and bool(self._visible[row])

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

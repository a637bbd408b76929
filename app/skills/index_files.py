"""Writes the files of `MappedSkills`."""

from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from app.engine.protocol import Vector
from app.skills.mapped.mapped_skills import NONE, REACHES
from app.skills.mapped.mapped_vectors import write_vectors
from app.skills.mapped.ngram_bitmaps import NgramWriter, Rows
from app.skills.mapped.string_table import StringTable, encoded, save_array
from app.skills.skill_index import IndexedSkill


def write_skills(directory: Path, skills: Iterable[IndexedSkill], embedder: str | None) -> int:
    """Write them, from the one changed first to the one changed last, with the vectors of one embedder.

    Takes about 700 bytes of memory for each, and disk space for another copy of the vectors. Returns their number.
    Raises OSError, and RuntimeError if FAISS cannot write.
    """
    ngrams, columns = NgramWriter(), _Columns()
    with _VectorFile(directory, "queries") as queries, _VectorFile(directory, "sources") as sources:
        for each in skills:
            if embedder is not None and each.embedder == embedder:
                queries.add(len(columns.versions), each.query_vector)
                sources.add(len(columns.versions), each.source_vector, queries.dimension)
            ngrams.add(each.offer.instruction, each.slots)
            columns.add(each)
        rows = ngrams.finish(directory)
        del ngrams
        columns.write(directory, rows, len(np.load(directory / "ages.npy", mmap_mode="r")))
        if queries.dimension and sources.dimension:
            queries.index(rows)
            sources.index(rows)
    return len(rows)


class _Columns:
    """What is known of each skill besides n-grams and vectors, in the order of the skills."""

    def __init__(self) -> None:
        self.versions = array("i")
        self.ids = bytearray()
        self.reaches = bytearray()
        self.texts: list[bytes] = []
        self.names: list[str] = []
        self.owners: list[str] = []
        self.described = array("i")  # their numbers
        self.scenarios: list[str | None] = []

    def add(self, skill: IndexedSkill) -> None:
        if skill.described:
            self.described.append(len(self.versions))
        offer = skill.offer
        self.versions.append(offer.version)
        self.ids += offer.skill_id.bytes
        self.reaches.append(REACHES.index(skill.reach))
        self.texts.append(msgspec.msgpack.encode((offer.signature, offer.instruction)))
        self.names.append(offer.name)
        self.owners.append(skill.owner)
        self.scenarios.append(skill.scenario)

    def write(self, directory: Path, rows: Rows, count: int) -> None:
        """`rows` (N,) of `count`."""
        ids = np.frombuffer(bytes(self.ids), "S16")
        versions = np.array(self.versions, np.int32)
        owners = sorted(set(self.owners))
        numbers = {owner: number for number, owner in enumerate(owners)}
        StringTable.write(directory, "principals", list(map(encoded, owners)))
        texts = [b""] * count
        for row, text in zip(rows.tolist(), self.texts, strict=True):
            texts[row] = text
        StringTable.write(directory, "texts", texts)
        names = _ranks(self.names)
        _write_groups(directory, "name", self.names, np.lexsort((versions, names)), rows)
        scenarios = self._write_scenarios(directory, rows, versions, names)
        for name, values, empty in (
            ("ids", ids, b""),
            ("versions", versions, 0),
            ("reaches", np.frombuffer(bytes(self.reaches), np.uint8), NONE),
            ("owners", np.array([numbers[owner] for owner in self.owners], np.int32), -1),
            ("scenarios", scenarios, -1),
            ("names", names.astype(np.int32), -1),
        ):
            column = np.full(count, empty, values.dtype)
            column[rows] = values
            save_array(directory, name, column)
        save_array(directory, "described", rows[np.array(self.described, np.int64)].astype(np.int32))
        save_array(directory, "by_id", rows[np.argsort(ids)].astype(np.int32))

    def _write_scenarios(
        self, directory: Path, rows: Rows, versions: NDArray[np.int32], names: NDArray[np.int64]
    ) -> NDArray[np.int32]:
        """(N,) the number of each skill's scenario; -1: none."""
        numbers = np.full(len(rows), -1, np.int32)
        labelled = np.array([place for place, each in enumerate(self.scenarios) if each is not None], np.int64)
        labels = [each for each in self.scenarios if each is not None]
        numbers[labelled] = _ranks(labels)
        order = np.lexsort((names[labelled], -versions[labelled], numbers[labelled]))
        _write_groups(directory, "scenario", labels, order, rows[labelled])
        return numbers


class _VectorFile:
    """Vectors on disk until they are indexed. Those of another length than the first are left out."""

    def __init__(self, directory: Path, name: str) -> None:
        self._directory, self._name = directory, name
        self._path = directory / f"{name}.raw"
        self._file = self._path.open("wb")
        self._owners = array("q")  # of each vector, the number of its skill
        self.dimension = 0

    def __enter__(self) -> "_VectorFile":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self._path.unlink(missing_ok=True)

    def add(self, number: int, vector: Vector | None, dimension: int = 0) -> None:
        if vector is None:
            return
        self.dimension = self.dimension or dimension or len(vector)
        if len(vector) == self.dimension:
            self._file.write(vector.astype(np.float32).tobytes())
            self._owners.append(number)

    def index(self, rows: Rows) -> None:
        self._file.close()
        shape = (len(self._owners), self.dimension)
        vectors = np.memmap(self._path, np.float32, "r", shape=shape)
        write_vectors(self._directory, self._name, vectors, rows[np.array(self._owners, np.int64)])


def _write_groups(directory: Path, name: str, keys: list[str], order: Rows, rows: Rows) -> None:
    """Write rows by key. `order` (K,) sorts the keys (K,), equal ones as they are to be listed."""
    ordered = [keys[place] for place in order]
    distinct = sorted(set(ordered))
    StringTable.write(directory, f"{name}_keys", list(map(encoded, distinct)))
    save_array(directory, f"{name}_rows", rows[order].astype(np.int32))
    sizes = Counter(ordered)
    save_array(directory, f"{name}_ends", np.cumsum(np.array([sizes[key] for key in distinct], np.int64)))


def _ranks(strings: Sequence[str]) -> NDArray[np.int64]:
    """(N,) the place of each in the order of code points; equal ones have the same."""
    ranks = {string: rank for rank, string in enumerate(sorted(set(strings)))}
    return np.array([ranks[string] for string in strings], np.int64)

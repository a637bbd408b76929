"""The skills of one project in files that all processes of a host share: what a search needs, without sources.

They never change. `SkillIndex` knows which of them have changed since.
"""

from bisect import bisect_left
from collections.abc import Collection, Iterator
from pathlib import Path
from uuid import UUID

import msgspec
import numpy as np
from numpy.typing import NDArray

from app.base.values import Offer
from app.skills.mapped.mapped_vectors import MappedVectors
from app.skills.mapped.ngram_bitmaps import Bits, NgramBitmaps, Rows
from app.skills.mapped.string_table import StringTable, map_array
from app.skills.visibility import Reach, SkillVersion

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

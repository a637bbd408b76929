"""Mapped skills without those that changed since their files were written, as tasks see them."""

import copy
from collections.abc import Callable, Collection, Mapping
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from app.base.values import Offer
from app.engine.protocol import Vector
from app.skills.fusion import DEPTH, Scored
from app.skills.mapped.mapped_skills import MappedSkills
from app.skills.mapped.mapped_vectors import MappedVectors
from app.skills.mapped.ngram_bitmaps import Bits, Rows
from app.skills.visibility import SkillVersion

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

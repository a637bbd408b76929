"""The skills of one project, or of one chain, in memory, searchable by n-grams, vectors and scenario."""

import copy
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Literal, TypeAlias
from uuid import UUID

import msgspec

from app.engine.protocol import Vector
from app.records import Offer
from app.skills.fusion import DEPTH, Scored
from app.skills.ngrams import NgramIndex
from app.skills.vector_index import VectorIndex

Reach: TypeAlias = Literal["owner", "trial", "all"]
"""The tasks that a skill is offered to: its owner's, all while no version of its name reaches all, or all."""


class IndexedSkill(msgspec.Struct, frozen=True, kw_only=True):
    """A skill with the keys it is found by."""

    offer: Offer
    slots: tuple[str, ...] = ()  # words of its instruction that were arguments
    scenario: str | None = None
    owner: str = ""  # the principal whose task wrote it
    reach: Reach = "all"
    embedder: str | None = None  # the model of both vectors
    query_vector: Vector | None = None  # (D,) of the instruction
    source_vector: Vector | None = None  # (D,)


class SkillIndex:
    """Any number of skills, with vectors of one embedder only. It finds all; a view, those for one principal."""

    def __init__(self, embedder: str | None = None) -> None:
        self._embedder = embedder
        self._skills: dict[UUID, IndexedSkill] = {}
        self._scenarios: defaultdict[str, dict[UUID, None]] = defaultdict(dict)
        self._ngrams: NgramIndex[UUID] = NgramIndex()
        self._queries: VectorIndex[UUID] | None = None
        self._sources: VectorIndex[UUID] | None = None
        self._versions: defaultdict[str, dict[UUID, IndexedSkill]] = defaultdict(dict)  # by name
        self._principal: str | None = None  # None: everything is visible

    def view(self, principal: str) -> "SkillIndex":
        """The same skills as a principal's tasks see them: of each name the newest version visible to them.

        Valid until the index changes.
        """
        view = copy.copy(self)
        view._principal = principal
        return view

    def __len__(self) -> int:
        return len(self._skills)

    @property
    def has_vectors(self) -> bool:
        return bool(self._queries)

    def put(self, skills: Sequence[IndexedSkill]) -> None:
        """A skill with a known id is replaced."""
        self.remove([each.offer.skill_id for each in skills])
        for each in skills:
            key = each.offer.skill_id
            self._skills[key] = each
            self._versions[each.offer.name][key] = each
            self._ngrams.add(key, each.offer.instruction, each.slots)
            if each.scenario is not None:
                self._scenarios[each.scenario][key] = None
        self._put_vectors([each for each in skills if each.embedder and each.embedder == self._embedder])

    def remove(self, skill_ids: Iterable[UUID]) -> None:
        """Unknown ids are ignored."""
        gone = [key for key in skill_ids if key in self._skills]
        for key in gone:
            skill = self._skills.pop(key)
            scenario, name = skill.scenario, skill.offer.name
            del self._versions[name][key]
            if not self._versions[name]:
                del self._versions[name]
            self._ngrams.remove(key)
            if scenario is not None:
                del self._scenarios[scenario][key]
        for index in (self._queries, self._sources):
            if index is not None:
                index.remove(gone)

    def offer(self, skill_id: UUID) -> Offer:
        """Raises KeyError for an unknown id."""
        return self._skills[skill_id].offer

    def newest(self, skill_id: UUID) -> tuple[int, str]:
        """Version and name, by which skills of equal similarity are ordered."""
        offer = self._skills[skill_id].offer
        return offer.version, offer.name

    def by_ngrams(self, instruction: str) -> Scored[UUID]:
        """The skills whose instructions share the most n-grams with this one."""
        return self._nearest(lambda limit: self._ngrams.search(instruction, limit))

    def by_query_vector(self, vector: Vector | None) -> Scored[UUID] | None:
        """The skills whose instructions have the nearest vectors; None where there is nothing to compare."""
        return self._nearest_vectors(self._queries, vector)

    def by_source_vector(self, vector: Vector | None) -> Scored[UUID] | None:
        """The skills whose sources have the nearest vectors; None where there is nothing to compare."""
        return self._nearest_vectors(self._sources, vector)

    def in_scenario(self, scenario: str | None, similar: Scored[UUID]) -> Scored[UUID]:
        """All skills of a scenario, with their similarity in `similar`, or 0."""
        if scenario is None or scenario not in self._scenarios:
            return []
        similarity = dict(similar)
        return [(key, similarity.get(key, 0.0)) for key in self._scenarios[scenario] if self._is_visible(key)]

    def _nearest_vectors(self, index: VectorIndex[UUID] | None, vector: Vector | None) -> Scored[UUID] | None:
        return (
            None if vector is None or index is None else self._nearest(lambda limit: index.search(vector, limit))
        )

    def _nearest(self, search: Callable[[int], list[tuple[UUID, float]]]) -> Scored[UUID]:
        """The nearest visible skills: the search goes deeper until hidden ones push none of them out."""
        limit = DEPTH
        while True:
            found = search(limit)
            visible = [entry for entry in found if self._is_visible(entry[0])]
            if len(visible) >= DEPTH or len(found) < limit:
                return visible[:DEPTH]
            limit *= 4

    def _is_visible(self, key: UUID) -> bool:
        if self._principal is None:
            return True
        versions = self._versions[self._skills[key].offer.name].values()
        seen = [each for each in versions if each.reach == "all" or each.owner == self._principal]
        trials = [each for each in versions if each.reach == "trial"]
        if trials and not any(each.reach == "all" for each in versions):
            seen.append(min(trials, key=_version))
        return bool(seen) and max(seen, key=_version).offer.skill_id == key

    def _put_vectors(self, skills: Sequence[IndexedSkill]) -> None:
        """Vectors of another length than the first are left out: their skills are found by n-grams."""
        queries = [(each.offer.skill_id, each.query_vector) for each in skills if each.query_vector is not None]
        sources = [(each.offer.skill_id, each.source_vector) for each in skills if each.source_vector is not None]
        if self._embedder is None or not queries or not sources:
            return
        if self._queries is None or self._sources is None:
            dimension = len(queries[0][1])
            self._queries = VectorIndex(self._embedder, dimension)
            self._sources = VectorIndex(self._embedder, dimension)
        dimension = self._queries.dimension
        self._queries.add([(key, vector) for key, vector in queries if len(vector) == dimension])
        self._sources.add([(key, vector) for key, vector in sources if len(vector) == dimension])


def _version(skill: IndexedSkill) -> int:
    return skill.offer.version

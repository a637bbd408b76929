"""The skills of one project, or of one chain, in memory and ready to be searched."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import TypeAlias
from uuid import UUID

import msgspec

from app.engine.protocol import Vector
from app.records import Offer
from app.skills.ngrams import NgramIndex
from app.skills.retrieval import DEPTH, List, Mode, Scored, fuse, lists_of, rules_of
from app.skills.vector_index import VectorIndex


class Shelved(msgspec.Struct, frozen=True, kw_only=True):
    """A skill as a search sees it."""

    offer: Offer
    slots: tuple[str, ...] = ()  # words of its instruction that were arguments
    scenario: str | None = None
    embedder: str | None = None  # the model of both vectors
    query_vector: Vector | None = None  # (D,) of the instruction
    source_vector: Vector | None = None  # (D,)


Places: TypeAlias = dict[List, Scored[UUID]]


class Shelf:
    """Holds any number of skills; vectors only of the embedder it was made for."""

    def __init__(self, embedder: str | None = None) -> None:
        self._embedder = embedder
        self._skills: dict[UUID, Shelved] = {}
        self._scenarios: defaultdict[str, dict[UUID, None]] = defaultdict(dict)
        self._ngrams: NgramIndex[UUID] = NgramIndex()
        self._queries: VectorIndex[UUID] | None = None
        self._sources: VectorIndex[UUID] | None = None

    def __len__(self) -> int:
        return len(self._skills)

    @property
    def has_vectors(self) -> bool:
        return bool(self._queries)

    def get(self, skill_id: UUID) -> Offer | None:
        found = self._skills.get(skill_id)
        return found.offer if found else None

    def put(self, skills: Sequence[Shelved]) -> None:
        """A skill with a known id is replaced."""
        self.remove([each.offer.skill_id for each in skills])
        for each in skills:
            key = each.offer.skill_id
            self._skills[key] = each
            self._ngrams.add(key, each.offer.instruction, each.slots)
            if each.scenario is not None:
                self._scenarios[each.scenario][key] = None
        self._put_vectors([each for each in skills if each.embedder and each.embedder == self._embedder])

    def remove(self, skill_ids: Iterable[UUID]) -> None:
        """Unknown ids are ignored."""
        gone = [key for key in skill_ids if key in self._skills]
        for key in gone:
            scenario = self._skills.pop(key).scenario
            self._ngrams.remove(key)
            if scenario is not None:
                del self._scenarios[scenario][key]
        for index in (self._queries, self._sources):
            if index is not None:
                index.remove(gone)

    def search(
        self, instruction: str, scenario: str | None, vector: Vector | None, mode: Mode, limit: int
    ) -> list[Offer]:
        """The skills most likely to help, best first; none if none fits.

        `vector` is the instruction's. Where there is none, or no skill has any, the modes that need one fall back
        to n-grams: a library whose embedder is down still works.
        """
        alike = self._ngrams.search(instruction, DEPTH)
        places: Places = {"query_ngram": alike, "scenario": self._of_scenario(scenario, alike)}
        if vector is not None and self._queries is not None and self._sources is not None:
            places["query_embedding"] = self._queries.search(vector, DEPTH)
            places["skill_embedding"] = self._sources.search(vector, DEPTH)
        else:
            mode = "query_ngram" if mode.endswith("embedding") else mode
        wanted = {label: places[label] for label in lists_of(mode) if label in places}
        best = fuse(wanted, rules_of(mode), limit, self._newest)
        return [msgspec.structs.replace(self._skills[key].offer, ranks=ranks) for key, ranks in best]

    def _newest(self, key: UUID) -> tuple[int, str]:
        offer = self._skills[key].offer
        return offer.version, offer.name

    def _of_scenario(self, scenario: str | None, alike: Scored[UUID]) -> Scored[UUID]:
        """All of one scenario, the most alike first."""
        if scenario is None or scenario not in self._scenarios:
            return []
        similarity = dict(alike)
        return [(key, similarity.get(key, 0.0)) for key in self._scenarios[scenario]]

    def _put_vectors(self, skills: Sequence[Shelved]) -> None:
        """What does not have the length of the first is left out: found by n-grams, and no harm to the others."""
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

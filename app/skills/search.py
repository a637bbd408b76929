"""The skills of one project, or of one chain, searchable by n-grams, vectors and scenario."""

import copy
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from uuid import UUID

import msgspec

from app.base.values import Offer
from app.engine.protocol import Vector
from app.skills.descriptions import DescriptionIndex
from app.skills.fusion import DEPTH, Scored
from app.skills.mapped.mapped_index import MappedIndex
from app.skills.ngrams import NgramIndex
from app.skills.vector_index import VectorIndex
from app.skills.visibility import Reach, SkillVersion, newest_visible


class IndexedSkill(msgspec.Struct, frozen=True, kw_only=True):
    """A skill with the keys it is found by."""

    offer: Offer
    described: bool = False  # its instruction is a description of it
    slots: tuple[str, ...] = ()  # words of its instruction that were arguments
    scenario: str | None = None
    owner: str = ""  # whose task wrote it
    reach: Reach = "all"
    embedder: str | None = None  # the model of both vectors
    query_vector: Vector | None = None  # (D,) of the instruction
    source_vector: Vector | None = None  # (D,)


class SkillIndex:
    """Any number of skills, with vectors of one embedder only. It finds all; a view, what a task sees.

    Under those in memory, which are newer, there can be skills that are mapped from files, without the ones that
    were put again or removed since.
    """

    def __init__(self, embedder: str | None = None, mapped: MappedIndex | None = None) -> None:
        self._embedder = embedder
        self._mapped = mapped
        self._skills: dict[UUID, IndexedSkill] = {}
        self._scenarios: defaultdict[str, dict[UUID, None]] = defaultdict(dict)
        self._ngrams: NgramIndex[UUID] = NgramIndex()
        self._descriptions: DescriptionIndex[UUID] = DescriptionIndex()
        for offer in mapped.skills.described() if mapped else ():
            self._descriptions.add(offer.skill_id, offer.name, offer.instruction)
        self._queries: VectorIndex[UUID] | None = None
        self._sources: VectorIndex[UUID] | None = None
        self._versions: defaultdict[str, dict[UUID, SkillVersion]] = defaultdict(dict)  # by name
        self._owners: Collection[str] | None = None  # None: everything is visible

    def view(self, owners: Collection[str]) -> "SkillIndex":
        """The same skills as tasks of these owners see them: of each name the newest version visible to them.

        Valid until the index changes.
        """
        view = copy.copy(self)
        view._owners = owners
        if self._mapped is not None:
            view._mapped = self._mapped.view(owners, view._newest_visible)
        return view

    def __len__(self) -> int:
        return len(self._skills) + (len(self._mapped) if self._mapped else 0)

    @property
    def in_memory(self) -> int:
        """The number of skills that are not mapped."""
        return len(self._skills)

    @property
    def has_vectors(self) -> bool:
        return bool(self._queries) or (self._mapped is not None and self._mapped.has_vectors)

    def put(self, skills: Sequence[IndexedSkill]) -> None:
        """A skill with a known id is replaced."""
        self.remove([each.offer.skill_id for each in skills])
        for each in skills:
            key, name = each.offer.skill_id, each.offer.name
            self._change(name)
            self._skills[key] = msgspec.structs.replace(each, query_vector=None, source_vector=None)
            self._versions[name][key] = SkillVersion(key, each.offer.version, each.owner, each.reach)
            self._ngrams.add(key, each.offer.instruction, each.slots)
            if each.described:
                self._descriptions.add(key, name, each.offer.instruction)
            if each.scenario is not None:
                self._scenarios[each.scenario][key] = None
        self._put_vectors([each for each in skills if each.embedder and each.embedder == self._embedder])

    def remove(self, skill_ids: Iterable[UUID]) -> None:
        """Unknown ids are ignored."""
        ids = list(skill_ids)
        self._remove_mapped(ids)
        for key in ids:
            self._descriptions.remove(key)
        gone = [key for key in ids if key in self._skills]
        for key in gone:
            skill = self._skills.pop(key)
            self._change(skill.offer.name)
            self._drop_version(skill.offer.name, key)
            self._ngrams.remove(key)
            if skill.scenario is not None:
                del self._scenarios[skill.scenario][key]
        for index in (self._queries, self._sources):
            if index is not None:
                index.remove(gone)

    def offer(self, skill_id: UUID) -> Offer:
        """Without its source, which a library reads of those it offers. Raises KeyError for an unknown id."""
        skill = self._skills.get(skill_id)
        if skill is None and self._mapped is not None:
            return self._mapped.offer(skill_id)
        return self._skills[skill_id].offer

    def newest(self, skill_id: UUID) -> tuple[int, str]:
        """Version and name, by which skills of equal similarity are ordered."""
        skill = self._skills.get(skill_id)
        if skill is None and self._mapped is not None:
            return self._mapped.newest(skill_id)
        offer = self._skills[skill_id].offer
        return offer.version, offer.name

    def by_ngrams(self, instruction: str) -> Scored[UUID]:
        """The skills whose instructions share the most n-grams with this one."""
        newer = self._nearest(lambda limit: self._ngrams.search(instruction, limit))
        return newer if self._mapped is None else _merged(newer, self._mapped.by_ngrams(instruction))

    def by_description(self, instruction: str) -> Scored[UUID]:
        """Of the skills that are described, those whose descriptions have most of the instruction's words."""
        return self._descriptions.search(instruction, DEPTH, self._is_shown)

    @property
    def has_descriptions(self) -> bool:
        return bool(self._descriptions)

    def is_described(self, skill_id: UUID) -> bool:
        """Whether the instruction of a skill is a description of it."""
        return skill_id in self._descriptions

    def by_query_vector(self, vector: Vector | None) -> Scored[UUID] | None:
        """The skills whose instructions have the nearest vectors; None where there is nothing to compare."""
        newer = self._nearest_vectors(self._queries, vector)
        mapped = None if self._mapped is None or vector is None else self._mapped.by_query_vector(vector)
        return newer if mapped is None else _merged(newer or [], mapped)

    def by_source_vector(self, vector: Vector | None) -> Scored[UUID] | None:
        """The skills whose sources have the nearest vectors; None where there is nothing to compare."""
        newer = self._nearest_vectors(self._sources, vector)
        mapped = None if self._mapped is None or vector is None else self._mapped.by_source_vector(vector)
        return newer if mapped is None else _merged(newer or [], mapped)

    def in_scenario(self, scenario: str | None, similar: Scored[UUID]) -> Scored[UUID]:
        """All skills of a scenario, with their similarity in `similar`, or 0. Of mapped ones, as many as count."""
        if scenario is None:
            return []
        similarity = dict(similar)
        keys = self._scenarios.get(scenario, ())
        newer = [(key, similarity.get(key, 0.0)) for key in keys if self._is_visible(key)]
        return newer if self._mapped is None else [*newer, *self._mapped.in_scenario(scenario, similarity)]

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

    def _is_shown(self, key: UUID) -> bool:
        """Whether a skill, mapped or not, is visible."""
        if key in self._skills:
            return self._is_visible(key)
        return self._mapped is not None and self._mapped.is_visible(key)

    def _is_visible(self, key: UUID) -> bool:
        return self._owners is None or self._newest_visible(self._skills[key].offer.name) == key

    def _newest_visible(self, name: str) -> UUID | None:
        return newest_visible(self._versions.get(name, {}).values(), self._owners or ())

    def _change(self, name: str) -> None:
        """Before the versions of a name change: from now on their visibility is decided in memory."""
        if self._mapped is None:
            return
        if name not in self._versions:
            self._versions[name].update((each.skill_id, each) for each in self._mapped.versions_of(name))
        self._mapped.change(name)

    def _remove_mapped(self, skill_ids: Iterable[UUID]) -> None:
        for key in skill_ids:
            name = self._mapped.name_of(key) if self._mapped else None
            if self._mapped is not None and name is not None:
                self._change(name)
                self._mapped.change(name, gone=key)
                self._drop_version(name, key)

    def _drop_version(self, name: str, key: UUID) -> None:
        del self._versions[name][key]
        if not self._versions[name] and self._mapped is None:
            del self._versions[name]

    def _put_vectors(self, skills: Sequence[IndexedSkill]) -> None:
        """Vectors of another length than the first are left out: their skills are found by n-grams."""
        queries = [(each.offer.skill_id, each.query_vector) for each in skills if each.query_vector is not None]
        sources = [(each.offer.skill_id, each.source_vector) for each in skills if each.source_vector is not None]
        if self._embedder is None or not (queries or sources):
            return
        if self._queries is None or self._sources is None:
            dimension = len((queries or sources)[0][1])
            self._queries = VectorIndex(self._embedder, dimension)
            self._sources = VectorIndex(self._embedder, dimension)
        dimension = self._queries.dimension
        self._queries.add([(key, vector) for key, vector in queries if len(vector) == dimension])
        self._sources.add([(key, vector) for key, vector in sources if len(vector) == dimension])


def _merged(newer: Scored[UUID], mapped: Scored[UUID]) -> Scored[UUID]:
    """Best first. Of equal ones, those that changed last go first."""
    return sorted([*newer, *mapped], key=lambda entry: -entry[1])[:DEPTH]

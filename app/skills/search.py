"""Finds the skills that may help with an instruction: the index of one project or chain, the retrievals of the
entry-point group `sage.retrieval`, the optional embedder, and why a skill was found or not.

A retrieval is a function `(SkillIndex, Query) -> ranked`. One that compares vectors is marked by
`with_embeddings`.
"""

import asyncio
import copy
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from typing import Any, Final, TypeAlias, TypeVar
from uuid import UUID

import msgspec
import structlog

from app.base import plugins
from app.base.errors import EngineError, EngineRefusalError
from app.base.values import Offer
from app.engine.protocol import Embedder, Vector
from app.skills.mapped_index import MappedIndex
from app.skills.similarity import (
    DEPTH,
    DescriptionIndex,
    FusionWeights,
    NgramIndex,
    Ranked,
    Scored,
    VectorIndex,
    fuse,
)
from app.skills.visibility import Reach, SkillVersion, newest_visible

_log = structlog.get_logger(__name__)
Result = TypeVar("Result")
OpenEmbedder = Callable[[], Awaitable[Embedder]]
"""Returns the embedder once its server answers. Raises EngineError until then."""

OFFERED: Final = 3  # skills, to a task at most
_NEAR = 10  # skills that were found but fit too little, at most
_NEVER_OFFERED = "it is not similar enough: none of its scores reaches its threshold"
SURPLUS = "better skills took all places"
WITHHELD = "withheld: the task is in the share that does without skills, to measure what they are worth"

_NEVER = 2.0  # no cosine is as large
# Measured with one skill for each of the demo environment's 161 templates, queried in all phrasings with other
# details, vectors of all-MiniLM-L6-v2. N-grams of .75 or a cosine of .80: the right skill is offered to 77 % of
# tasks, with 0.2 others; where the right one is missing, 1 % are offered anything. N-grams of .50: 85 %, 1.4 and
# 19 %. A cosine of .70 offers something to 26 % without a right skill. The source's cosine (about .5 for one app,
# whatever the verb) discriminates too little to admit anything; a list used alone has lower thresholds.
# Descriptions of imported skills were measured by `test_skill_descriptions`.
FUSED = FusionWeights(
    weights={
        "query_ngram": 1.0,
        "query_embedding": 0.5,
        "skill_embedding": 0.25,
        "scenario": 4.0,
        "description": 1.0,
        "description_embedding": 1.0,
    },
    thresholds={
        "query_ngram": 0.75,
        "query_embedding": 0.8,
        "skill_embedding": _NEVER,
        "scenario": 0.0,
        "description": 0.55,
        "description_embedding": 0.5,
    },
)

_RETRY_SECONDS, _TIMEOUT_SECONDS = 30.0, 10.0  # of an embedder
_CHARS = 2_000  # a text is cut here: embedders read a few hundred tokens, and some refuse more
_LEAST_CHARS = 100  # of a text that is cut shorter because it was refused
_REFUSED_TEXT = {400, 413, 422}  # statuses of a server that takes other texts


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


class SkillChoice(msgspec.Struct, frozen=True, kw_only=True):
    """A skill that was found. `scores` are its similarities in the retrieval lists that hold it, `ranks` its ranks
    in them, from 1. `reason` says why it was not offered.
    """

    skill_id: UUID
    name: str
    version: int
    offered: bool
    reason: str | None = None
    ranks: dict[str, int] = {}
    scores: dict[str, float] = {}


class SkillSelectionRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What was found when the task began, best first: the skills that were offered, those that could not be or
    that others came before, and at most ten that fit too little. A score that reaches its threshold admits one.
    """

    thresholds: dict[str, float]
    choices: list[SkillChoice]


class RetrievalTrace:
    """Keeps what a retrieval compares. One of a plug-in compares what it likes, and leaves it empty."""

    def __init__(self) -> None:
        self.near: list[Offer] = []  # that were not admitted, the best first
        self._lists: dict[str, dict[UUID, float]] = {}
        self._settings = FusionWeights({}, {})

    def note(self, lists: dict[str, Scored[UUID]], settings: FusionWeights) -> None:
        self._lists = {label: dict(entries) for label, entries in lists.items()}
        self._settings = settings

    def close(self, index: SkillIndex, found: Iterable[UUID]) -> None:
        """Name the skills that were compared and not found."""
        known, least = set(found), self._settings.thresholds
        for label, entries in self._lists.items():
            known.update(key for key, score in entries.items() if score >= least[label])
        lists = {
            label: [entry for entry in entries.items() if entry[0] not in known]
            for label, entries in self._lists.items()
        }
        anything = FusionWeights(self._settings.weights, dict.fromkeys(least, float("-inf")))
        ranked = fuse(lists, anything, _NEAR, index.newest)
        self.near = [index.offer(key) for key, _ in ranked]

    def record(self, offered: Iterable[Offer], others: Iterable[tuple[Offer, str]]) -> SkillSelectionRecord:
        """`others` were found and not offered, each with the reason."""
        choices = [self._choice(offer, None) for offer in offered]
        choices += [self._choice(offer, reason) for offer, reason in others]
        choices += [self._choice(offer, _NEVER_OFFERED) for offer in self.near]
        thresholds = {label: least for label, least in self._settings.thresholds.items() if label in self._lists}
        return SkillSelectionRecord(thresholds=thresholds, choices=choices)

    def _choice(self, offer: Offer, reason: str | None) -> SkillChoice:
        scores = {
            label: round(float(each[offer.skill_id]), 4)
            for label, each in self._lists.items()
            if offer.skill_id in each
        }
        return SkillChoice(
            skill_id=offer.skill_id,
            name=offer.name,
            version=offer.version,
            offered=reason is None,
            reason=reason,
            ranks=offer.ranks,
            scores=scores,
        )


class Query(msgspec.Struct, frozen=True, kw_only=True):
    """The task that skills are retrieved for."""

    instruction: str
    scenario: str | None = None
    vector: Vector | None = None  # (D,) of the instruction; None: not needed, or no embedder works
    limit: int = OFFERED
    trace: RetrievalTrace | None = None  # keeps what is compared


Retrieval: TypeAlias = Callable[[SkillIndex, Query], Ranked[UUID]]


def with_embeddings(retrieval: Retrieval) -> Retrieval:
    """Mark a retrieval that compares vectors: its queries carry the instruction's vector if one is available."""
    marked: Any = retrieval
    marked.needs_embeddings = True
    return retrieval


def needs_embeddings(retrieval: Retrieval) -> bool:
    return getattr(retrieval, "needs_embeddings", False)


def load_retrieval(name: str) -> Retrieval:
    """The retrieval registered under a name, or named as "module:attribute". Raises InvalidError."""
    retrieval: Retrieval = plugins.load("sage.retrieval", name)
    return retrieval


def search(index: SkillIndex, query: Query, retrieval: Retrieval) -> list[Offer]:
    """The skills most likely to help, best first, at most `query.limit`; none if none fits."""
    ranked = retrieval(index, query)[: query.limit]
    if query.trace is not None:
        query.trace.close(index, [key for key, _ in ranked])
    return [msgspec.structs.replace(index.offer(key), ranks=ranks) for key, ranks in ranked]


@with_embeddings
def fused(index: SkillIndex, query: Query) -> Ranked[UUID]:
    """Combine all lists by reciprocal rank fusion; without vectors, n-grams, scenario and descriptions."""
    similar, near = index.by_ngrams(query.instruction), index.by_query_vector(query.vector)
    vectors = {"query_embedding": near, "skill_embedding": index.by_source_vector(query.vector)}
    lists = {
        "query_ngram": similar,
        **{label: scored for label, scored in vectors.items() if scored is not None},
        "scenario": index.in_scenario(query.scenario, similar),
    }
    if index.has_descriptions:
        lists["description"] = index.by_description(query.instruction)
        if near is not None:
            lists["query_embedding"] = [each for each in near if not index.is_described(each[0])]
            lists["description_embedding"] = [each for each in near if index.is_described(each[0])]
    return _fuse(index, query, lists, FUSED)


def query_ngram(index: SkillIndex, query: Query) -> Ranked[UUID]:
    """Rank by the n-grams that the instruction shares with the skill's."""
    return _alone(index, query, "query_ngram", index.by_ngrams(query.instruction), 0.75)


@with_embeddings
def query_embedding(index: SkillIndex, query: Query) -> Ranked[UUID]:
    """Rank by the cosine of the two instructions; without vectors, by n-grams."""
    scored = index.by_query_vector(query.vector)
    return query_ngram(index, query) if scored is None else _alone(index, query, "query_embedding", scored, 0.5)


@with_embeddings
def skill_embedding(index: SkillIndex, query: Query) -> Ranked[UUID]:
    """Rank by the cosine of the instruction and the skill's source; without vectors, by n-grams."""
    scored = index.by_source_vector(query.vector)
    return query_ngram(index, query) if scored is None else _alone(index, query, "skill_embedding", scored, 0.4)


def scenario(index: SkillIndex, query: Query) -> Ranked[UUID]:
    """All skills of the task's scenario, the most similar first."""
    similar = index.by_ngrams(query.instruction)
    return _alone(index, query, "scenario", index.in_scenario(query.scenario, similar), 0.0)


def _alone(index: SkillIndex, query: Query, label: str, scored: Scored[UUID], threshold: float) -> Ranked[UUID]:
    settings = FusionWeights(weights={label: 1.0}, thresholds={label: threshold})
    return _fuse(index, query, {label: scored}, settings)


def _fuse(
    index: SkillIndex, query: Query, lists: dict[str, Scored[UUID]], settings: FusionWeights
) -> Ranked[UUID]:
    if query.trace is not None:
        query.trace.note(lists, settings)
    return fuse(lists, settings, query.limit, index.newest)


class OptionalEmbedder:
    """An embedder that may be absent, down, or not started yet. After a failure it is not called for 30 s."""

    def __init__(
        self,
        embedder: Embedder | None,
        clock: Callable[[], float] = time.monotonic,
        *,
        open_embedder: OpenEmbedder | None = None,
    ) -> None:
        self._embedder = embedder
        self._open_embedder = open_embedder
        self._clock = clock
        self._down_until: float | None = None  # None: the last call succeeded

    @property
    def model(self) -> str | None:
        """None without an embedder, and until it has been opened."""
        return self._embedder.model if self._embedder else None

    async def open(self) -> None:
        """Try to open the embedder, if there is one and it is not open yet."""
        if self._embedder is None and self._open_embedder is not None:
            self._embedder = await self._attempt(self._open_embedder)

    async def embed(self, texts: Sequence[str]) -> Sequence[Vector | None] | None:
        """A vector of each text; None for one that the embedder refuses, even its beginning.

        None for all while no embedder works. Each outage is logged once.
        """
        await self.open()
        if self._embedder is None or not texts:
            return None
        return await self._embed(self._embedder, [text[:_CHARS] for text in texts])

    async def _embed(self, embedder: Embedder, texts: Sequence[str]) -> Sequence[Vector | None] | None:
        """Of texts that are refused each half is tried, down to one text, and then its beginning."""
        found = await self._attempt(lambda: _vectors(embedder, texts))
        if found is None or found:
            return found
        if len(texts) > 1:
            middle = len(texts) // 2
            halves = [await self._embed(embedder, half) for half in (texts[:middle], texts[middle:])]
            return None if halves[0] is None or halves[1] is None else [*halves[0], *halves[1]]
        length = len(texts[0]) // 2
        return await self._embed(embedder, [texts[0][:length]]) if length >= _LEAST_CHARS else [None]

    async def _attempt(self, work: Callable[[], Awaitable[Result]]) -> Result | None:
        if self._down_until is not None and self._clock() < self._down_until:
            return None
        try:
            async with asyncio.timeout(_TIMEOUT_SECONDS):
                result = await work()
        except (EngineError, TimeoutError) as error:
            if self._down_until is None:
                reason = str(error) or f"no answer within {_TIMEOUT_SECONDS:.0f} s"
                _log.warning("the embedder failed: skills are found by n-grams only", reason=reason)
            self._down_until = self._clock() + _RETRY_SECONDS
            return None
        if self._down_until is not None:
            _log.info("the embedder recovered")
        self._down_until = None
        return result


async def _vectors(embedder: Embedder, texts: Sequence[str]) -> Sequence[Vector]:
    """Empty if the embedder refuses these texts. Raises EngineError."""
    try:
        return await embedder.embed(texts)
    except EngineRefusalError as error:
        if error.code in _REFUSED_TEXT:
            return []
        raise

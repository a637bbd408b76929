"""Retrieval of skills for an instruction: the built-in parts of the entry-point group `sage.retrieval`. Pure.

A part is a function `(SkillIndex, Query) -> ranked`. One that compares vectors is marked by `with_embeddings`.
"""

from collections.abc import Callable
from typing import Any, TypeAlias
from uuid import UUID

import msgspec

from app.base import plugins
from app.base.values import Offer
from app.engine.protocol import Vector
from app.skills.fusion import FusionWeights, Ranked, Scored, fuse
from app.skills.skill_choices import RetrievalTrace
from app.skills.skill_index import SkillIndex

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


class Query(msgspec.Struct, frozen=True, kw_only=True):
    """The task that skills are retrieved for."""

    instruction: str
    scenario: str | None = None
    vector: Vector | None = None  # (D,) of the instruction; None: not needed, or no embedder works
    limit: int = 3
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

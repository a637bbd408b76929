"""Imported skills are found by their descriptions: measured on sixty requests, and thirty that none is for."""

import json
from pathlib import Path
from time import process_time
from typing import NamedTuple
from uuid import UUID

import msgspec
import numpy as np
import pytest

from app.engine.protocol import Vector
from app.model_server.embeddings import EmbeddingModel
from app.skills.search import IndexedSkill, SkillIndex, fused
from app.skills.similarity import DescriptionIndex, document_of
from tests.support.skill_search import found
from tests.support.written_functions import offer

_TABLE = json.loads((Path(__file__).parent / "fixtures" / "skill_descriptions.json").read_text())
_PAIRS: list[dict[str, str]] = _TABLE["pairs"]
_FOREIGN: list[str] = _TABLE["foreign"]


class Measured(NamedTuple):
    """The share of the skills meant that was offered, the share of those offered that was meant, and how many
    requests that no skill is for were offered one.
    """

    recall: float
    precision: float
    foreign: int


def indexed(number: int, name: str, text: str, vector: Vector | None = None, *, described: bool) -> IndexedSkill:
    made = msgspec.structs.replace(offer(name, "", number), instruction=text)
    embedder = None if vector is None else "minilm"
    return IndexedSkill(
        offer=made, described=described, embedder=embedder, query_vector=vector, source_vector=vector
    )


async def embedded(model: EmbeddingModel, texts: list[str]) -> list[Vector]:
    return [np.array(each, np.float32) for each in (await model.embed(texts))[0]]


async def measured(*, described: bool, model: EmbeddingModel | None) -> Measured:
    texts = [
        document_of(each["name"], each["description"]) if described else each["description"] for each in _PAIRS
    ]
    requests = [each["question"] for each in _PAIRS] + _FOREIGN
    vectors = [None] * len(texts) if model is None else await embedded(model, texts)
    asked = [None] * len(requests) if model is None else await embedded(model, requests)
    index = SkillIndex("minilm")
    index.put(
        [
            indexed(number, each["name"], each["description"], vector, described=described)
            for number, (each, vector) in enumerate(zip(_PAIRS, vectors, strict=True))
        ]
    )
    offers = [
        [each.name for each in found(index, fused, request, vector=vector)]
        for request, vector in zip(requests, asked, strict=True)
    ]
    right = sum(pair["name"] in names for pair, names in zip(_PAIRS, offers, strict=False))
    return Measured(
        round(right / len(_PAIRS), 2),
        round(right / max(1, sum(map(len, offers))), 2),
        sum(map(bool, offers[len(_PAIRS) :])),
    )


async def test_sixty_requests_find_the_skills_that_are_meant_by_words_alone() -> None:
    assert await measured(described=False, model=None) == (0, 0, 0)
    now = await measured(described=True, model=None)
    assert now.recall >= 0.6, now
    assert now.precision >= 0.9, now
    assert now.foreign <= 2, now


async def test_with_an_embedder_more_of_them_are_found() -> None:
    model = EmbeddingModel("minilm", "cpu")
    try:
        assert (await measured(described=False, model=model)).recall <= 0.05
        now = await measured(described=True, model=model)
    finally:
        model.close()
    assert now.recall >= 0.8, now
    assert now.precision >= 0.85, now
    assert now.foreign <= 3, now


@pytest.mark.parametrize("described", [False, True])
def test_a_skill_that_the_agent_wrote_is_found_by_likeness_and_a_described_one_by_what_it_says(
    described: bool,
) -> None:
    index = SkillIndex()
    text = 'Counts the tickets that are open. Use when the user asks "How many tickets are open?"'
    index.put([indexed(1, "count_tickets", text, described=described)])
    offered = found(index, fused, "How many tickets are open?")
    assert [each.ranks.get("description") for each in offered] == ([1] if described else [])
    index.remove([UUID(int=1)])
    assert found(index, fused, "How many tickets are open?") == []
    assert not index.has_descriptions


@pytest.mark.parametrize(
    ("request_text", "best"),
    [
        ("Close the tickets of Dr. Weiss", "close"),  # a name is a detail
        ("close ticket 4711", "close"),
        ("Count my open tickets", "count"),
        ("tickets", None),  # one word says too little
        ("Pay the salaries of the staff", None),
        ("", None),
    ],
)
def test_most_of_the_words_of_a_request_have_to_be_in_the_description(request_text: str, best: str | None) -> None:
    index: DescriptionIndex[str] = DescriptionIndex()
    index.add("close", "close_tickets", "Closes all tickets of a person.")
    index.add("count", "count_tickets", "Counts the tickets that are open.")
    index.add("mails", "archive_mails", "Archives mails from a sender.")
    admitted = [key for key, score in index.search(request_text, 5, lambda _: True) if score >= 0.55]
    assert admitted[:1] == ([best] if best else [])
    assert [key for key, _ in index.search(request_text, 5, lambda key: key != best)][:1] != [best or "none"]


def test_a_request_is_compared_with_the_words_that_begin_as_its_own_alone() -> None:
    index: DescriptionIndex[int] = DescriptionIndex()
    for number in range(5_000):
        index.add(number, f"w{number:04}a", f"w{number:04}b w{number:04}c w{number:04}d")
    request = " ".join(f"w{number:04}b w{number:04}cc" for number in range(20))
    began = process_time()
    for _ in range(20):
        best = index.search(request, 3, lambda _: True)
    assert process_time() - began < 2
    assert [key for key, _ in best] == [0, 1, 2]
    for number in range(5_000):
        index.remove(number)
    assert index.search(request, 3, lambda _: True) == []

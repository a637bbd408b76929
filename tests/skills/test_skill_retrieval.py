"""Retrieval of skills for an instruction, by n-grams, vectors and scenarios."""

from uuid import UUID

import msgspec
import numpy as np
import pytest

from app.skills.search import (
    IndexedSkill,
    SkillIndex,
    fused,
    needs_embeddings,
    query_embedding,
    query_ngram,
    scenario,
    skill_embedding,
)
from tests.support.skill_search import found
from tests.support.written_functions import offer

VERBS = ["archive", "delete", "star"]
THINGS = ["mails", "notes", "payments"]
PHRASINGS = [
    "{verb} every one of my {things} {where}",
    "{verb} all {things} {where}",
    "please {verb} the {things} {where}",
]
PEOPLE = ["iris", "omar", "lena"]
LABELS = ["travel", "bills", "news"]


def indexed(
    number: int, instruction: str, *slots: str, scenario: str | None = None, version: int = 1
) -> IndexedSkill:
    made = msgspec.structs.replace(offer(f"skill_{number}", "", number), instruction=instruction, version=version)
    return IndexedSkill(offer=made, slots=slots, scenario=scenario)


def test_the_skill_of_a_template_is_found_by_every_phrasing_and_no_other_skill_is() -> None:
    index = SkillIndex()
    templates = [(verb, things, where) for verb in VERBS for things in THINGS for where in ("from", "in")]
    for number, (verb, things, where) in enumerate(templates):
        value = "iris" if where == "from" else "travel"
        text = PHRASINGS[number % 3].format(verb=verb, things=things, where=f"{where} {value}")
        index.put([indexed(number, text, value)])
    for number, (verb, things, where) in enumerate(templates):
        for value in PEOPLE if where == "from" else LABELS:
            for phrasing in PHRASINGS:
                text = phrasing.format(verb=verb, things=things, where=f"{where} {value}")
                offers = found(index, query_ngram, text)
                assert [each.name for each in offers] == [f"skill_{number}"], text


@pytest.mark.parametrize(
    "text",
    [
        "delete every one of my mails from omar",  # another verb
        "archive every one of my files from omar",  # another app
        "archive every one of my mails in travel",  # another selector
        "how many mails from omar do i have",
        "play the longest song",
        "",
    ],
)
def test_nothing_is_offered_for_an_unrelated_instruction(text: str) -> None:
    index = SkillIndex()
    index.put([indexed(1, "archive every one of my mails from iris", "iris")])
    assert found(index, fused, text) == []


def test_a_skill_of_the_scenario_is_offered_whatever_the_wording() -> None:
    index = SkillIndex()
    index.put([indexed(1, "archive mails", scenario="s"), indexed(2, "delete notes", scenario="t")])
    [only] = found(index, fused, "something else", "s")
    assert (only.name, only.ranks) == ("skill_1", {"scenario": 1})
    assert found(index, scenario, "something else", "unknown") == []


def test_within_a_scenario_the_most_similar_comes_first() -> None:
    index = SkillIndex()
    index.put(
        [indexed(number, text, scenario="s") for number, text in enumerate(["count notes", "archive mails", "x"])]
    )
    offers = found(index, scenario, "archive my mails", "s")
    assert [each.name for each in offers] == ["skill_1", "skill_0", "skill_2"]


def test_a_removed_skill_is_not_found() -> None:
    index = SkillIndex()
    index.put([indexed(1, "archive mails", scenario="s")])
    index.remove([UUID(int=1), UUID(int=2)])
    assert found(index, fused, "archive mails", "s") == []
    assert len(index) == 0


def vectors(number: int, query: int, source: int) -> IndexedSkill:
    axes = np.eye(4, dtype=np.float32)
    skill = indexed(number, f"word{number}", scenario=f"s{number}")
    return msgspec.structs.replace(skill, embedder="mini", query_vector=axes[query], source_vector=axes[source])


def test_a_retrieval_ranks_by_its_own_list_only_and_the_fused_one_by_all() -> None:
    index = SkillIndex("mini")
    index.put([vectors(number, query, source) for number, query, source in ((0, 1, 2), (1, 0, 3), (2, 3, 0))])
    axis = np.eye(4, dtype=np.float32)[0]
    ranked = {
        retrieval: [each.name for each in found(index, retrieval, "word0", "s2", axis)]
        for retrieval in (query_ngram, query_embedding, skill_embedding, scenario, fused)
    }
    assert ranked == {
        query_ngram: ["skill_0"],
        query_embedding: ["skill_1"],
        skill_embedding: ["skill_2"],
        scenario: ["skill_2"],
        fused: ["skill_2", "skill_0", "skill_1"],  # 4/61 + .25/61 + ..., 1/61 + ..., .5/61 + ...
    }


def test_only_a_retrieval_that_compares_vectors_needs_embeddings() -> None:
    marked = [
        each for each in (fused, query_ngram, query_embedding, skill_embedding, scenario) if needs_embeddings(each)
    ]
    assert marked == [fused, query_embedding, skill_embedding]


def test_vectors_of_another_embedder_or_length_are_never_compared() -> None:
    axis = np.eye(2, dtype=np.float32)
    index = SkillIndex("mini")
    for number, (model, vector) in enumerate(
        [("mini", axis[0]), ("other", axis[0]), ("mini", np.ones(3, np.float32))]
    ):
        plain = indexed(number, f"word{number}")
        index.put([msgspec.structs.replace(plain, embedder=model, query_vector=vector, source_vector=vector)])
    offers = found(index, query_embedding, "nothing", vector=axis[0])
    assert [each.name for each in offers] == ["skill_0"]


def test_without_a_vector_a_retrieval_by_embedding_falls_back_to_ngrams() -> None:
    index = SkillIndex("mini")
    index.put([indexed(1, "archive mails")])
    [only] = found(index, query_embedding, "archive mails")
    assert only.ranks == {"query_ngram": 1}

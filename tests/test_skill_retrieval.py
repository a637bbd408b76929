"""Retrieval of skills for an instruction: n-grams, vectors, scenarios and their fusion."""

from uuid import UUID

import msgspec
import numpy as np
import pytest

from app.engine.protocol import Vector
from app.records import Offer
from app.skills.fusion import FusionWeights, fuse
from app.skills.ngrams import NgramIndex, ngrams
from app.skills.retrieval import (
    FUSED,
    Query,
    Retrieval,
    fused,
    needs_embeddings,
    query_embedding,
    query_ngram,
    scenario,
    search,
    skill_embedding,
)
from app.skills.skill_index import IndexedSkill, Reach, SkillIndex
from tests.written_functions import offer

VERBS = ["archive", "delete", "star"]
THINGS = ["mails", "notes", "payments"]
PHRASINGS = [
    "{verb} every one of my {things} {where}",
    "{verb} all {things} {where}",
    "please {verb} the {things} {where}",
]
PEOPLE = ["iris", "omar", "lena"]
LABELS = ["travel", "bills", "news"]
EQUAL = FusionWeights(
    weights={"query_ngram": 1.0, "query_embedding": 1.0}, thresholds={"query_ngram": 0.7, "query_embedding": 0.5}
)


def indexed(
    number: int, instruction: str, *slots: str, scenario: str | None = None, version: int = 1
) -> IndexedSkill:
    made = msgspec.structs.replace(offer(f"skill_{number}", "", number), instruction=instruction, version=version)
    return IndexedSkill(offer=made, slots=slots, scenario=scenario)


def found(
    index: SkillIndex,
    retrieval: Retrieval,
    instruction: str,
    label: str | None = None,
    vector: Vector | None = None,
    limit: int = 3,
) -> list[Offer]:
    query = Query(instruction=instruction, scenario=label, vector=vector, limit=limit)
    return search(index, query, retrieval)


def test_jaccard_is_shared_ngrams_over_all_ngrams() -> None:
    index: NgramIndex[str] = NgramIndex()
    index.add("mail", "archive mails from iris")
    # archive, mail, from, iris, archive mail, mail from, from iris | archive, mail, from, omar, ... : 5 of 9
    assert index.search("archive mails from omar", 5) == [("mail", 5 / 9)]


def test_the_word_in_a_slot_does_not_matter() -> None:
    index: NgramIndex[str] = NgramIndex()
    index.add("mail", "archive mails from iris", {"iris"})
    assert index.search("archive mails from omar", 5) == [("mail", 1.0)]
    # 3 of 5 are shared (mail, from, mail from); the slot excuses 2 of the query's other 4
    assert index.search("delete mails from omar", 5) == [("mail", 3 / 7)]


def test_a_possessive_matters_only_after_a_preposition() -> None:
    assert ngrams("archive my mails") == ngrams("archive all mails")
    assert ngrams("mails from my family") != ngrams("mails from family")


def test_an_ngram_never_spans_a_slot() -> None:
    assert ngrams("count mails by iris now", slots={"iris"}) == {
        "count",
        "mail",
        "by",
        "now",
        "count mail",
        "mail by",
    }


def test_a_removed_text_is_not_found_and_a_replaced_one_only_once() -> None:
    index: NgramIndex[int] = NgramIndex()
    index.add(1, "archive mails")
    index.add(2, "archive mails")
    index.remove(1)
    index.add(2, "archive notes")
    assert index.search("archive mails", 5) == [(2, 1 / 5)]
    index.remove(9)
    assert len(index) == 1


def test_compaction_changes_no_result() -> None:
    index: NgramIndex[int] = NgramIndex()
    for number in range(3000):
        index.add(number, f"archive mails number{number} group{number % 7}")
    kept = range(2, 3000, 3)
    for number in set(range(3000)) - set(kept):
        index.remove(number)
    plain: NgramIndex[int] = NgramIndex()
    for number in kept:
        plain.add(number, f"archive mails number{number} group{number % 7}")
    for query in ("archive mails number1001 group0", "group3", "number2"):
        assert index.search(query, 9) == plain.search(query, 9)
    index.add(5000, "number1001")
    assert index.search("number1001", 1) == [(5000, 1.0)]


def test_ties_go_to_the_text_added_last() -> None:
    index: NgramIndex[int] = NgramIndex()
    for number in (3, 1, 2):
        index.add(number, "archive mails")
    assert [key for key, _ in index.search("archive mails", 2)] == [2, 1]


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


def test_fusion_adds_weight_over_sixty_plus_rank() -> None:
    lists = {"query_ngram": [("a", 0.9), ("b", 0.8)], "query_embedding": [("b", 0.9), ("a", 0.8), ("c", 0.7)]}
    ranked = fuse(lists, EQUAL, 5, lambda key: (1, key))
    # a: 1/61 + 1/62, b: 1/62 + 1/61, c: 1/63: a and b are equal, the name decides
    assert ranked == [
        ("a", {"query_ngram": 1, "query_embedding": 2}),
        ("b", {"query_ngram": 2, "query_embedding": 1}),
        ("c", {"query_embedding": 3}),
    ]


def test_in_fusion_ngrams_outweigh_the_embedding() -> None:
    lists = {"query_ngram": [("a", 0.9), ("b", 0.8)], "query_embedding": [("b", 0.9), ("a", 0.8)]}
    # a: 1/61 + .5/62 = .024458, b: 1/62 + .5/61 = .024326
    assert [key for key, _ in fuse(lists, FUSED, 5, lambda key: (1, key))] == ["a", "b"]


def test_ties_go_to_the_newest_version() -> None:
    versions = {"a": 1, "b": 3, "c": 3}
    ranked = fuse({"query_ngram": [(key, 0.9) for key in "abc"]}, EQUAL, 2, lambda key: (versions[key], key))
    assert ranked == [("b", {"query_ngram": 1}), ("c", {"query_ngram": 2})]


def test_one_list_above_its_threshold_admits_a_skill_and_the_source_vector_never_does() -> None:
    lists = {
        "query_ngram": [("a", 0.74)],
        "query_embedding": [("b", 0.81), ("a", 0.79)],
        "skill_embedding": [("c", 1.0)],
    }
    assert [key for key, _ in fuse(lists, FUSED, 5, lambda key: (1, key))] == ["b"]


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


def version(number: int, reach: Reach, owner: str = "", name: str = "f") -> IndexedSkill:
    made = msgspec.structs.replace(offer(name, "", number), instruction="archive my mails", version=number)
    return IndexedSkill(offer=made, owner=owner, reach=reach, scenario="s")


@pytest.mark.parametrize(
    ("versions", "seen"),
    [
        ([version(1, "owner", "ann")], {"ann": 1}),
        ([version(1, "trial", "ann")], {"ann": 1, "bob": 1, "": 1}),
        ([version(1, "all"), version(2, "trial", "ann")], {"ann": 2, "bob": 1, "": 1}),
        ([version(1, "all"), version(2, "owner", "ann")], {"ann": 2, "bob": 1, "": 1}),
        ([version(2, "all"), version(1, "owner", "ann")], {"ann": 2, "bob": 2, "": 2}),
        ([version(1, "trial", "ann"), version(2, "trial", "bob")], {"ann": 1, "bob": 2, "": 1}),
        ([version(1, "owner", "ann"), version(2, "owner", "bob")], {"ann": 1, "bob": 2}),
    ],
)
@pytest.mark.parametrize("retrieval", [query_ngram, scenario, fused])
def test_of_each_name_a_principal_finds_the_newest_version_that_reaches_it(
    versions: list[IndexedSkill], seen: dict[str, int], retrieval: Retrieval
) -> None:
    index = SkillIndex()
    index.put(versions)
    for who in ("ann", "bob", ""):
        offers = found(index.view(who), retrieval, "archive my mails", "s")
        assert [each.version for each in offers] == ([seen[who]] if who in seen else []), who
    assert len(found(index, retrieval, "archive my mails", "s", limit=9)) == len(versions)


@pytest.mark.parametrize("retrieval", [query_ngram, query_embedding, skill_embedding, scenario, fused])
def test_skills_that_a_principal_may_not_see_push_none_out_that_it_may(retrieval: Retrieval) -> None:
    vector = np.array([1, 0], np.float32)
    index = SkillIndex("words")
    hidden = [version(number, "owner", "ann", f"hidden_{number}") for number in range(2, 500)]
    index.put(
        [
            msgspec.structs.replace(each, embedder="words", query_vector=vector, source_vector=vector)
            for each in [version(1, "all"), *hidden]
        ]
    )
    offers = found(index.view("bob"), retrieval, "archive my mails", "s", vector)
    assert [each.name for each in offers] == ["f"]


def test_a_view_sees_a_version_that_another_one_hid_once_that_is_gone() -> None:
    index = SkillIndex()
    index.put([version(1, "trial", "ann"), version(2, "trial", "bob")])
    index.remove([UUID(int=1)])
    assert [each.version for each in found(index.view("eve"), query_ngram, "archive my mails")] == [2]

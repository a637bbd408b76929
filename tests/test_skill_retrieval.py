"""Which skills are offered for an instruction."""

from uuid import UUID

import msgspec
import numpy as np
import pytest

from app.skills.ngrams import NgramIndex, ngrams
from app.skills.retrieval import ALONE, FUSED, fuse, lists_of
from app.skills.skill_index import Shelf, Shelved
from tests.written import offer

VERBS = ["archive", "delete", "star"]
THINGS = ["mails", "notes", "payments"]
PHRASINGS = [
    "{verb} every one of my {things} {where}",
    "{verb} all {things} {where}",
    "please {verb} the {things} {where}",
]
PEOPLE = ["iris", "omar", "lena"]
LABELS = ["travel", "bills", "news"]


def shelved(number: int, instruction: str, *slots: str, scenario: str | None = None, version: int = 1) -> Shelved:
    made = msgspec.structs.replace(offer(f"skill_{number}", "", number), instruction=instruction, version=version)
    return Shelved(offer=made, slots=slots, scenario=scenario)


def test_jaccard_is_shared_ngrams_over_all_ngrams() -> None:
    index: NgramIndex[str] = NgramIndex()
    index.add("mail", "archive mails from iris")
    # archive, mail, from, iris, archive mail, mail from, from iris | archive, mail, from, omar, ... : 5 of 9
    assert index.search("archive mails from omar", 5) == [("mail", 5 / 9)]


def test_what_stands_in_a_slot_does_not_matter() -> None:
    index: NgramIndex[str] = NgramIndex()
    index.add("mail", "archive mails from iris", {"iris"})
    assert index.search("archive mails from omar", 5) == [("mail", 1.0)]
    # 3 of 5 are shared (mail, from, mail from); of the query's other 4 the slot excuses 2
    assert index.search("delete mails from omar", 5) == [("mail", 3 / 7)]


def test_whose_it_is_matters_after_a_preposition_only() -> None:
    assert ngrams("archive my mails") == ngrams("archive all mails")
    assert ngrams("mails from my family") != ngrams("mails from family")


def test_an_ngram_never_reaches_over_a_slot() -> None:
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


def test_compaction_changes_no_answer() -> None:
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


def test_of_equals_the_one_added_last_comes_first() -> None:
    index: NgramIndex[int] = NgramIndex()
    for number in (3, 1, 2):
        index.add(number, "archive mails")
    assert [key for key, _ in index.search("archive mails", 2)] == [2, 1]


def test_the_skill_of_a_template_is_found_by_every_phrasing_and_no_other_skill_is() -> None:
    shelf = Shelf()
    templates = [(verb, things, where) for verb in VERBS for things in THINGS for where in ("from", "in")]
    for number, (verb, things, where) in enumerate(templates):
        value = "iris" if where == "from" else "travel"
        text = PHRASINGS[number % 3].format(verb=verb, things=things, where=f"{where} {value}")
        shelf.put([shelved(number, text, value)])
    for number, (verb, things, where) in enumerate(templates):
        for value in PEOPLE if where == "from" else LABELS:
            for phrasing in PHRASINGS:
                text = phrasing.format(verb=verb, things=things, where=f"{where} {value}")
                found = shelf.search(text, None, None, "query_ngram", 3)
                assert [each.name for each in found] == [f"skill_{number}"], text


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
def test_nothing_is_offered_where_nothing_fits(text: str) -> None:
    shelf = Shelf()
    shelf.put([shelved(1, "archive every one of my mails from iris", "iris")])
    assert shelf.search(text, None, None, "fused", 3) == []


def test_a_skill_of_the_scenario_is_offered_whatever_the_words() -> None:
    shelf = Shelf()
    shelf.put([shelved(1, "archive mails", scenario="s"), shelved(2, "delete notes", scenario="t")])
    [found] = shelf.search("something else", "s", None, "fused", 3)
    assert (found.name, found.ranks) == ("skill_1", {"scenario": 1})
    assert shelf.search("something else", "unknown", None, "scenario", 3) == []


def test_within_a_scenario_the_most_alike_comes_first() -> None:
    shelf = Shelf()
    shelf.put(
        [shelved(number, text, scenario="s") for number, text in enumerate(["count notes", "archive mails", "x"])]
    )
    found = shelf.search("archive my mails", "s", None, "scenario", 3)
    assert [each.name for each in found] == ["skill_1", "skill_0", "skill_2"]


def test_a_removed_skill_is_in_no_list() -> None:
    shelf = Shelf()
    shelf.put([shelved(1, "archive mails", scenario="s")])
    shelf.remove([UUID(int=1), UUID(int=2)])
    assert shelf.search("archive mails", "s", None, "fused", 3) == []
    assert len(shelf) == 0


def test_fusion_adds_weights_over_sixty_plus_place() -> None:
    lists = {"query_ngram": [("a", 0.9), ("b", 0.8)], "query_embedding": [("b", 0.9), ("a", 0.8), ("c", 0.7)]}
    ranked = fuse(lists, ALONE, 5, lambda key: (1, key))  # type: ignore[arg-type]
    # a: 1/61 + 1/62, b: 1/62 + 1/61, c: 1/63: a and b are equal, the name decides
    assert ranked == [
        ("a", {"query_ngram": 1, "query_embedding": 2}),
        ("b", {"query_ngram": 2, "query_embedding": 1}),
        ("c", {"query_embedding": 3}),
    ]


def test_in_fusion_ngrams_outweigh_the_embedding() -> None:
    lists = {"query_ngram": [("a", 0.9), ("b", 0.8)], "query_embedding": [("b", 0.9), ("a", 0.8)]}
    # a: 1/61 + .5/62 = .024458, b: 1/62 + .5/61 = .024326
    assert [key for key, _ in fuse(lists, FUSED, 5, lambda key: (1, key))] == ["a", "b"]  # type: ignore[arg-type]


def test_of_equals_the_newest_version_comes_first() -> None:
    versions = {"a": 1, "b": 3, "c": 3}
    ranked = fuse({"query_ngram": [(key, 0.9) for key in "abc"]}, ALONE, 2, lambda key: (versions[key], key))
    assert ranked == [("b", {"query_ngram": 1}), ("c", {"query_ngram": 2})]


def test_one_list_that_is_sure_is_enough_and_the_source_alone_never_is() -> None:
    lists = {
        "query_ngram": [("a", 0.74)],
        "query_embedding": [("b", 0.81), ("a", 0.79)],
        "skill_embedding": [("c", 1.0)],
    }
    assert [key for key, _ in fuse(lists, FUSED, 5, lambda key: (1, key))] == ["b"]  # type: ignore[arg-type]


def test_a_mode_looks_at_its_own_list_only() -> None:
    assert lists_of("skill_embedding") == ("skill_embedding",)
    assert lists_of("fused") == ("query_ngram", "query_embedding", "skill_embedding", "scenario")


def test_vectors_of_another_embedder_or_length_are_never_compared() -> None:
    axis = np.eye(2, dtype=np.float32)
    shelf = Shelf("mini")
    for number, (model, vector) in enumerate(
        [("mini", axis[0]), ("other", axis[0]), ("mini", np.ones(3, np.float32))]
    ):
        plain = shelved(number, f"word{number}")
        shelf.put([msgspec.structs.replace(plain, embedder=model, query_vector=vector, source_vector=vector)])
    found = shelf.search("nothing", None, axis[0], "query_embedding", 5)
    assert [each.name for each in found] == ["skill_0"]


def test_without_a_vector_an_embedding_mode_falls_back_to_ngrams() -> None:
    shelf = Shelf("mini")
    shelf.put([shelved(1, "archive mails")])
    [found] = shelf.search("archive mails", None, None, "query_embedding", 5)
    assert found.ranks == {"query_ngram": 1}

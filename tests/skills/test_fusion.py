"""Several rankings as one: weights, ties and thresholds."""

from app.skills.search import FUSED
from app.skills.similarity import FusionWeights, fuse

EQUAL = FusionWeights(
    weights={"query_ngram": 1.0, "query_embedding": 1.0}, thresholds={"query_ngram": 0.7, "query_embedding": 0.5}
)


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

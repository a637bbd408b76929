"""Nearest-neighbour search, in memory."""

import numpy as np
import pytest
from numpy.typing import NDArray

from app.skills.similarity import VectorIndex

DIMENSION = 16


@pytest.fixture(scope="module")
def vectors() -> NDArray[np.float32]:
    """(3000, D) of norm 1."""
    drawn = np.random.default_rng(0).normal(size=(3000, DIMENSION)).astype(np.float32)
    vectors: NDArray[np.float32] = drawn / np.linalg.norm(drawn, axis=1, keepdims=True)
    return vectors


def index_of(vectors: NDArray[np.float32]) -> VectorIndex[int]:
    index: VectorIndex[int] = VectorIndex("mini", DIMENSION)
    index.add(list(enumerate(vectors)))
    return index


def nearest(vectors: NDArray[np.float32], query: NDArray[np.float32], gone: set[int], count: int) -> list[int]:
    order = np.argsort(-(vectors @ query), kind="stable").tolist()
    return [number for number in order if number not in gone][:count]


def test_results_are_sorted_by_cosine(vectors: NDArray[np.float32]) -> None:
    found = index_of(vectors).search(vectors[7], 5)
    assert [key for key, _ in found] == nearest(vectors, vectors[7], set(), 5)
    assert found[0][1] == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize("count", [10, 2000])  # masked, and taken out in a batch
def test_a_removed_vector_is_not_found(vectors: NDArray[np.float32], count: int) -> None:
    index = index_of(vectors)
    gone = set(range(count))
    index.remove([*gone, -5])
    for query in vectors[:5]:
        assert [key for key, _ in index.search(query, 5)] == nearest(vectors, query, gone, 5)
    assert len(index) == 3000 - count


def test_a_known_key_is_replaced(vectors: NDArray[np.float32]) -> None:
    index = index_of(vectors[:10])
    index.add([(3, vectors[20]), (3, vectors[21])])
    assert index.search(vectors[21], 1)[0][0] == 3
    assert sorted(key for key, _ in index.search(vectors[3], 20)) == list(range(10))
    assert index.search(vectors[3], 1)[0][1] < 0.99  # what it was is gone


def test_an_empty_index_finds_nothing(vectors: NDArray[np.float32]) -> None:
    index = index_of(vectors[:1])
    index.remove([0])
    assert index.search(vectors[0], 3) == []
    assert VectorIndex[int]("mini", DIMENSION).search(vectors[0], 3) == []


def test_a_vector_of_another_length_is_refused(vectors: NDArray[np.float32]) -> None:
    with pytest.raises(ValueError, match="vectors of mini have 16 numbers, these have 3"):
        index_of(vectors).add([(1, np.ones(3, np.float32))])

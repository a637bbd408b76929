"""Nearest-neighbor search over vectors in files, exact and nearly exact."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from app.skills.mapped_index import MappedVectors, write_vectors

COUNT, DIMENSION, ROWS = 6000, 33, 6400


def vectors() -> NDArray[np.float32]:
    """(COUNT, DIMENSION) of norm 1, in 60 clusters."""
    draw = np.random.default_rng(0)
    drawn = draw.normal(size=(60, DIMENSION))[draw.integers(0, 60, COUNT)]
    drawn += 0.4 * draw.normal(size=(COUNT, DIMENSION))
    normed: NDArray[np.float32] = (drawn / np.linalg.norm(drawn, axis=1, keepdims=True)).astype(np.float32)
    return normed


@pytest.mark.parametrize(("exact", "least"), [(COUNT, 1.0), (1000, 0.99)])
def test_the_nearest_visible_vectors_are_found(exact: int, least: float, tmp_path: Path) -> None:
    all_vectors = vectors()
    rows = np.random.default_rng(1).permutation(ROWS)[:COUNT]
    write_vectors(tmp_path, "queries", all_vectors, rows, exact=exact)
    index = MappedVectors(tmp_path, "queries")
    assert (len(index), index.dimension) == (COUNT, DIMENSION)
    hidden = np.arange(COUNT) % 3 == 0
    visible = np.isin(np.arange(ROWS), rows[~hidden])
    hits = 0
    for query in all_vectors[:50]:
        cosines = np.where(hidden, -2, all_vectors @ query)
        nearest = np.argsort(-cosines)[:10]
        found, scores = index.search(query, 10, visible)
        assert list(scores) == sorted(scores, reverse=True)
        assert scores == pytest.approx(cosines[[list(rows).index(row) for row in found]], abs=2e-4)
        hits += len(set(found) & set(rows[nearest]))
    assert hits / 500 >= least


def test_fewer_vectors_than_requested_are_all_found(tmp_path: Path) -> None:
    few = vectors()[:5]
    write_vectors(tmp_path, "queries", few, np.array([3, 64, 65, 7, 200]))
    found, _ = MappedVectors(tmp_path, "queries").search(few[1], 10, np.isin(np.arange(256), [3, 64, 200]))
    assert found[0] == 64
    assert set(found) == {3, 64, 200}

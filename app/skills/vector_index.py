"""Nearest-neighbor search over vectors in memory. A cache: it can be rebuilt from the skills table."""

from collections.abc import Hashable, Sequence
from typing import Any, Generic, TypeVar

import faiss
import numpy as np

from app.engine.protocol import Vector

Key = TypeVar("Key", bound=Hashable)


class VectorIndex(Generic[Key]):
    """Exact cosine similarity of one embedder's vectors.

    Removed vectors are masked until they are a fifth of all, then deleted in one pass.
    """

    def __init__(self, model: str, dimension: int) -> None:
        self.model = model
        self.dimension = dimension
        # Any: FAISS's types lack the attributes of the wrapped index
        self._index: Any = faiss.IndexIDMap(faiss.IndexFlatIP(dimension))
        self._keys: dict[int, Key] = {}  # number in FAISS -> key
        self._numbers: dict[Key, int] = {}
        self._next = 0
        self._removed: list[int] = []

    def __len__(self) -> int:
        return len(self._numbers)

    def add(self, entries: Sequence[tuple[Key, Vector]]) -> None:
        """Vectors have norm 1. A known key is replaced. Raises ValueError for a wrong dimension."""
        added = dict(entries)
        if not added:
            return
        vectors = np.stack(list(added.values())).astype(np.float32)  # (N, D)
        if vectors.shape[1] != self.dimension:
            raise ValueError(
                f"vectors of {self.model} have {self.dimension} numbers, these have {vectors.shape[1]}"
            )
        self.remove(list(added))
        numbers = np.arange(self._next, self._next + len(added), dtype=np.int64)
        self._next += len(added)
        self._numbers.update(zip(added, numbers.tolist(), strict=True))
        self._keys.update(zip(numbers.tolist(), added, strict=True))
        self._index.add_with_ids(vectors, numbers)

    def remove(self, keys: Sequence[Key]) -> None:
        """Unknown keys are ignored."""
        gone = [self._numbers.pop(key) for key in keys if key in self._numbers]
        for number in gone:
            del self._keys[number]
        self._removed += gone
        if len(self._removed) > 64 + len(self._numbers) // 4:
            self._index.remove_ids(faiss.IDSelectorBatch(np.array(self._removed, np.int64)))
            self._removed = []

    def search(self, query: Vector, limit: int) -> list[tuple[Key, float]]:
        """The nearest keys and their cosines, best first; ties go to the one added last."""
        count = min(limit, len(self._numbers))
        if not count:
            return []
        masked = faiss.IDSelectorBatch(np.array(self._removed, np.int64))
        remaining = faiss.IDSelectorNot(masked)
        settings: Any = faiss.SearchParameters()
        if self._removed:
            settings.sel = remaining
        # (1, count) each; number -1: fewer vectors than requested
        cosines, numbers = self._index.search(
            query[None, :].astype(np.float32), count, params=settings
        )  # (1, count)
        pairs = zip(cosines[0].tolist(), numbers[0].tolist(), strict=True)
        best = sorted((pair for pair in pairs if pair[1] >= 0), reverse=True)
        return [(self._keys[number], cosine) for cosine, number in best]

"""Attention of passes with one token per row that reads each key and value where it lies, of all rows in one call.

Scores are a product of matrices sampled where a query may look, and the rest are weighted sums of rows of a table.
"""

import warnings
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor


def can_sample(dtype: torch.dtype, device: torch.device) -> bool:
    if dtype != torch.float32 or device.type != "cpu" or not torch.backends.mkl.is_available():
        return False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the first matrix of a process warns that the format is in beta
        torch.sparse_csr_tensor([0, 0], [], [], (1, 1), check_invariants=False)
    return True


class SampledPositions:
    """slots: the positions that each row reads, in order; lane: the number of positions of a head in the cache."""

    def __init__(self, slots: Sequence[np.ndarray], lane: int) -> None:
        self._slots, self._lane = slots, lane
        self._pattern: Tensor | None = None
        self._starts = self._columns = self._weights = torch.empty(0)
        self._rows: list[Tensor] = []

    def attend(self, query: Tensor, keys: Tensor, values: Tensor, scaling: float) -> Tensor:
        """query: (rows, query heads, 1, width); keys and values: (heads x lane, width). Returns query's shape."""
        if self._pattern is None:
            self._pattern = self._sample(query.shape[1], len(keys))
        flat = query.reshape(-1, query.shape[-1])
        torch.sparse.sampled_addmm(self._pattern, flat, keys.t(), beta=0.0, alpha=scaling, out=self._pattern)
        for row in self._rows:
            torch.softmax(row, -1, out=row)
        mixed, *_ = torch.embedding_bag(
            values, self._columns, self._starts, mode=0, per_sample_weights=self._weights, include_last_offset=True
        )
        return mixed.view(query.shape)

    def _sample(self, query_heads: int, positions: int) -> Tensor:
        """The matrix of scores. Its values are those of `_weights`, which each layer writes anew."""
        heads = np.repeat(np.arange(positions // self._lane), query_heads * self._lane // positions)[:, None]
        kind = np.int32 if positions < 2**31 else np.int64
        columns = np.concatenate([(heads * self._lane + slots).ravel() for slots in self._slots], dtype=kind)
        lengths = np.repeat([len(slots) for slots in self._slots], query_heads)
        self._columns = torch.from_numpy(columns)
        self._starts = torch.from_numpy(np.concatenate([[0], lengths.cumsum()], dtype=kind))
        self._weights = torch.zeros(len(columns))
        sizes = [query_heads * len(slots) for slots in self._slots]
        self._rows = [part.view(query_heads, -1) for part in self._weights.split(sizes)]
        return torch.sparse_csr_tensor(
            self._starts, self._columns, self._weights, (len(lengths), positions), check_invariants=False
        )

"""A KV cache of all rows in one block of memory, written in place, and the attention that reads it."""

import torch
import torch.nn.functional as functional
from torch import Tensor, nn
from transformers.cache_utils import Cache
from transformers.modeling_utils import AttentionInterface

ATTENTION = "rows"
_INITIAL_POSITIONS = 512  # doubled as sequences grow


class RowCache(Cache):
    """One row per sequence. Call `select_row` or `select_rows` before each forward pass.

    `block` is (layers, 2, rows, heads, positions, width): keys and values. Rows in use are 0 to n - 1, so a pass
    over all of them reads views and copies nothing.
    """

    def __init__(self, *, layers: int, rows: int, heads: int, width: int, dtype: torch.dtype, device: str) -> None:
        super().__init__(layers=[])
        self.heads, self.rows = heads, rows
        self.block = torch.zeros(layers, 2, rows, heads, _INITIAL_POSITIONS, width, dtype=dtype, device=device)
        self._row: int | None = None
        self._first, self._start = 0, 0
        self._indices = torch.empty(0, dtype=torch.long)
        self._length = 0

    def select_row(self, row: int, start: int, count: int) -> None:
        """The next pass holds `count` tokens of one row, from position `start`."""
        self._grow(start + count)
        self._row, self._start, self._length = row, start, start + count

    def select_rows(self, first: int, positions: Tensor, length: int) -> None:
        """The next pass holds tokens of n neighboring rows. positions: (n, tokens), all below `length`."""
        self._grow(length)
        capacity = self.block.shape[4]
        lanes = (
            torch.arange(len(positions) * self.heads, device=self.block.device).view(-1, self.heads, 1) * capacity
        )
        self._indices = (lanes + positions[:, None]).flatten()
        self._row, self._first, self._length = None, first, length

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: object, **__: object
    ) -> tuple[Tensor, Tensor]:
        """key_states: (n, heads, tokens, width). Returns all keys and values so far: (n, heads, length, width)."""
        keys, values = self.block[layer_idx, 0], self.block[layer_idx, 1]
        if self._row is not None:
            rows = slice(self._row, self._row + 1)
            keys[rows, :, self._start : self._length] = key_states
            values[rows, :, self._start : self._length] = value_states
        else:
            rows = slice(self._first, self._first + key_states.shape[0])
            width = keys.shape[-1]
            keys[rows].view(-1, width).index_copy_(0, self._indices, key_states.reshape(-1, width))
            values[rows].view(-1, width).index_copy_(0, self._indices, value_states.reshape(-1, width))
        return keys[rows, :, : self._length], values[rows, :, : self._length]

    def copy(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` positions of one row to another."""
        self.block[:, :, target, :, :length] = self.block[:, :, source, :, :length]

    def read(self, row: int, length: int) -> Tensor:
        """A copy of a row: (layers, 2, heads, length, width)."""
        return self.block[:, :, row, :, :length].clone()

    def write(self, row: int, block_part: Tensor, length: int) -> None:
        self._grow(length)
        self.block[:, :, row, :, :length] = block_part[:, :, :, :length]

    def zero(self, row: int) -> None:
        """Clear non-finite values: even masked ones would spoil the row's next sequence (0 * nan)."""
        self.block[:, :, row] = 0

    def _grow(self, length: int) -> None:
        capacity = self.block.shape[4]
        if length <= capacity:
            return
        while capacity < length:
            capacity *= 2
        layers, two, rows, heads, old, width = self.block.shape
        grown = self.block.new_zeros(layers, two, rows, heads, capacity, width)
        grown[:, :, :, :, :old] = self.block
        self.block = grown


def attend(
    module: nn.Module,  # noqa: ARG001  the interface's
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **_: object,
) -> tuple[Tensor, None]:
    """query: (n, query heads, tokens, width); attention_mask: added to the scores, None for plain causal.

    For one token per row, the two products are batched over rows and key heads: measured faster than
    scaled_dot_product_attention, because keys shared by several query heads are read once.
    """
    rows, query_heads, tokens, width = query.shape
    heads = key.shape[1]
    if tokens > 1:
        mixed = functional.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=attention_mask,
            is_causal=attention_mask is None,
            scale=scaling,
            enable_gqa=heads != query_heads,
        )
        return mixed.transpose(1, 2), None
    scaled = (query * (width**-0.5 if scaling is None else scaling)).reshape(rows * heads, -1, width)
    scores = torch.bmm(scaled, key.flatten(0, 1).transpose(1, 2)).view(rows, heads, query_heads // heads, -1)
    if attention_mask is not None:
        scores += attention_mask
    weights = torch.softmax(scores, -1, dtype=torch.float32).to(value.dtype)
    mixed = torch.bmm(weights.flatten(0, 1), value.flatten(0, 1))
    return mixed.view(rows, 1, query_heads, width), None


def register_attention() -> None:
    AttentionInterface.register(ATTENTION, attend)

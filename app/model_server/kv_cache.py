"""A KV cache in blocks of fixed size: which blocks are free, and what holds the others; the keys and values of
finished rows kept in them, so that the next turn of a rollout computes only its new tokens; and the attention that
reads them through block tables. That of passes with one token per row reads each key and value where it lies, of
all rows in one call.
"""

import math
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
import torch
import torch.nn.functional as functional
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers.cache_utils import Cache
from transformers.modeling_utils import AttentionInterface

from app.base.errors import ModelError

Ids = NDArray[np.int32]

ATTENTION = "paged_rows"
BLOCK = 32
"""Positions of a block. Smaller ones waste less at the end of a row; larger ones are gathered faster."""
SINK = 0  # the block that takes the keys of padding; never read
_FEWEST_BLOCKS = 3  # the sink, and two rows of the decoder's self-check
_ENOUGH = 4
"""Consecutive blocks that are worth a cached prefix. With agents that share a beginning and take several turns,
this loses 0.1 % of the cached tokens and makes runs three times as long; twice as many lose 2 %."""
MIN_PREFIX = 16  # a shorter common prefix is not worth keeping
_MAX_ENTRIES = 256  # entries with the same start are compared one by one
_FEW_TOKENS = 16  # a pass of so few per row reads keys faster with batched products
_GATHERED_BYTES = {"cpu": 4 * 2**20}  # of keys and values at a time: what stays in the caches of a core
_GATHERED_BYTES_OF_OTHERS = 256 * 2**20
_VIEWED_BYTES = {"cpu": 128 * 2**10}
"""Of one layer's keys and values in a run of consecutive blocks: from here on, products over each run cost less
than gathering it with those of other rows."""


class BlockPool:
    """A block is held by running rows, by cached prefixes, or by both; several may share one.

    `evict` drops a cached prefix, and returns False if there is none.
    """

    def __init__(self, blocks: range, evict: Callable[[], bool]) -> None:
        self._free = np.zeros(blocks.stop, bool)
        self._free[blocks.start :] = True
        self._evict = evict
        self.size = len(blocks)
        self.in_use = 0  # by running rows
        self._rows = [0] * blocks.stop
        self._prefixes = [0] * blocks.stop

    @property
    def free(self) -> int:
        """Blocks that nothing holds."""
        return int(self._free.sum())

    def is_free(self, block: int) -> bool:
        return bool(self._free[block])

    def find_run(self, wanted: int, claims: Iterable[range]) -> range:
        """At most `wanted` consecutive free blocks, outside of the claims if possible. Evicts prefixes until there
        are enough.

        The caller has reserved one, so that running rows alone never hold all blocks.
        """
        while len(found := self._longest(wanted, claims)) < min(wanted, _ENOUGH) and self._evict():
            pass
        if found:
            return found
        longest = max(_runs(self._free), key=len)
        return longest[len(longest) // 2 :][:wanted]  # who claims it is allocated its beginning first

    def _longest(self, wanted: int, claims: Iterable[range]) -> range:
        """Of the runs outside of the claims: the shortest that holds `wanted`, or else the longest."""
        unclaimed = self._free.copy()
        for claim in claims:
            unclaimed[claim.start : claim.stop] = False
        runs = _runs(unclaimed)
        fitting = [run for run in runs if len(run) >= wanted]
        return min(fitting, key=len)[:wanted] if fitting else max(runs, key=len, default=range(0))

    def held(self, blocks: Iterable[int]) -> int:
        """How many of them running rows hold."""
        return sum(self._rows[block] > 0 for block in blocks)

    def hold(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            self._free[block] = False
            self.in_use += not self._rows[block]
            self._rows[block] += 1

    def release(self, blocks: Iterable[int]) -> list[int]:
        """Returns those that are free now."""
        freed = []
        for block in blocks:
            self._rows[block] -= 1
            self.in_use -= not self._rows[block]
            freed += self._freed(block)
        return freed

    def keep(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            self._prefixes[block] += 1

    def drop(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            self._prefixes[block] -= 1
            self._freed(block)

    def _freed(self, block: int) -> list[int]:
        if self._rows[block] or self._prefixes[block]:
            return []
        self._free[block] = True
        return [block]


def _runs(free: np.ndarray) -> list[range]:
    """
    >>> _runs(np.array([False, True, True, False, True]))
    [range(1, 3), range(4, 5)]
    """
    edges = np.flatnonzero(np.diff(free, prepend=False, append=False)).tolist()
    return [range(start, stop) for start, stop in zip(edges[::2], edges[1::2], strict=True)]


class CachedPrefix(msgspec.Struct, frozen=True):
    adapter: int  # keys and values depend on the weights
    ids: Ids
    blocks: Sequence[int]  # of the KV cache


class PrefixCache:
    """`keep` and `drop` hold and free the blocks of an entry. The least recently used are dropped beyond a few
    hundred, or by `drop_oldest`.
    """

    def __init__(self, keep: Callable[[Sequence[int]], None], drop: Callable[[Sequence[int]], None]) -> None:
        self._keep, self._release = keep, drop
        self._entries: OrderedDict[int, CachedPrefix] = OrderedDict()
        self._by_start: dict[tuple[int, bytes], list[int]] = {}  # adapter and first ids -> numbers of entries
        self._next = 0
        self.version = 0  # changes with every entry that is added or dropped

    def longest_match(self, adapter: int, ids: Ids) -> tuple[int, Sequence[int]]:
        """The number of leading ids that the best entry shares, and its blocks. The entry counts as used."""
        best, number = self._best(adapter, ids)
        if number is None:
            return 0, ()
        self._entries.move_to_end(number)
        return best, self._entries[number].blocks

    def shared_tokens(self, adapter: int, ids: Ids) -> int:
        """The number of leading ids that the best entry shares, until `version` changes."""
        return self._best(adapter, ids)[0]

    def _best(self, adapter: int, ids: Ids) -> tuple[int, int | None]:
        """The most leading ids that an entry shares, and its number."""
        best, best_number = 0, None
        for number in self._by_start.get(start_key(adapter, ids), ()):
            if (shared := common_prefix(self._entries[number].ids, ids)) > best:
                best, best_number = shared, number
        return best, best_number

    def add(self, adapter: int, ids: Ids, blocks: Sequence[int]) -> None:
        """Replace entries that the new row extends."""
        if len(ids) < MIN_PREFIX:
            return
        for number in list(self._by_start.get(start_key(adapter, ids), ())):
            cached = self._entries[number].ids
            if common_prefix(cached, ids) == len(cached):
                self._drop(number)
        self.version += 1
        self._keep(blocks)
        self._entries[self._next] = CachedPrefix(adapter, ids, blocks)
        self._by_start.setdefault(start_key(adapter, ids), []).append(self._next)
        self._next += 1
        while len(self._entries) > _MAX_ENTRIES:
            self.drop_oldest()

    def drop_oldest(self) -> bool:
        """False if there is none."""
        if self._entries:
            self._drop(next(iter(self._entries)))
            return True
        return False

    def drop_adapter(self, adapter: int) -> None:
        for number in [number for number, entry in self._entries.items() if entry.adapter == adapter]:
            self._drop(number)

    def _drop(self, number: int) -> None:
        self.version += 1
        entry = self._entries.pop(number)
        self._release(entry.blocks)
        start = start_key(entry.adapter, entry.ids)
        self._by_start[start].remove(number)
        if not self._by_start[start]:
            del self._by_start[start]


def start_key(adapter: int, ids: Ids) -> tuple[int, bytes]:
    """Equal for two rows that are worth comparing."""
    return adapter, ids[:MIN_PREFIX].tobytes()


def as_ids(values: Sequence[int]) -> Ids:
    return np.asarray(values, np.int32)


def common_prefix(one: Ids, other: Ids) -> int:
    """
    >>> common_prefix(as_ids([1, 2, 3]), as_ids([1, 2, 4, 5]))
    2
    >>> common_prefix(as_ids([1, 2]), as_ids([1, 2, 4]))
    2
    """
    length = min(len(one), len(other))
    differ = one[:length] != other[:length]
    first = int(differ.argmax()) if length else 0
    return first if length and differ[first] else length


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


class GatheredRows(NamedTuple):
    """Rows of a pass whose keys and values are gathered together."""

    rows: slice
    chunks: Tensor | None  # indices of keys, then of values; None: nothing was cached before this pass
    mask: Tensor | None  # (rows, 1, tokens, positions), added to scores; None: plain causal


class ViewedRows(NamedTuple):
    """One row, or several of one sequence, that read keys and values where they lie: in runs, then by layers."""

    rows: slice
    keys: list[tuple[Tensor, ...]]  # (heads, width, positions)
    values: list[tuple[Tensor, ...]]  # (heads, positions, width)
    mask: Tensor | None  # (rows, 1, positions), added to scores


class PagedCache(Cache):
    """Call `select` before each forward pass. Raises ModelError if `max_bytes` hold next to nothing.

    `blocks` is (layers, 2 x heads, blocks, BLOCK, width): keys of all heads, then values. On a CPU the system
    commits its memory page by page, when a block is first written.
    """

    def __init__(
        self, *, layers: int, heads: int, width: int, dtype: torch.dtype, device: torch.device, max_bytes: int
    ) -> None:
        super().__init__(layers=[])
        self.heads, self.width = heads, width
        self.block_bytes = layers * 2 * heads * BLOCK * width * dtype.itemsize
        self.count = max_bytes // self.block_bytes
        if self.count < _FEWEST_BLOCKS:
            raise ModelError(
                f"a KV cache of {max_bytes // 2**20} MB holds {self.count * BLOCK} tokens of this model: "
                "raise SAGE_ENGINE_KV_MB (--kv-mb)."
            )
        self.blocks = _zeros((layers, 2 * heads, self.count, BLOCK, width), dtype, device)
        self._gather_limit = _GATHERED_BYTES.get(device.type, _GATHERED_BYTES_OF_OTHERS)
        self._viewed_bytes = _VIEWED_BYTES.get(device.type, math.inf)
        self._slots = torch.empty(0, dtype=torch.long)
        self.can_sample = can_sample(dtype, device)
        self._sampled: SampledPositions | None = None
        self._groups: list[GatheredRows | ViewedRows] = []

    @property
    def device(self) -> torch.device:
        return self.blocks.device

    def select(self, tables: Sequence[Sequence[int]], starts: Sequence[int], counts: Sequence[int]) -> Tensor:
        """The next pass holds counts[i] tokens of row i from position starts[i], in the blocks of tables[i].

        Returns the positions, (rows, max(counts)). Shorter rows are padded at the end.
        """
        width = max(counts)
        used = [-(-(start + count) // BLOCK) for start, count in zip(starts, counts, strict=True)]
        longest = max(used)
        # Padded with a block of the row itself, so that values that are not finite stay in their row.
        table = torch.tensor(
            [[*row[:n], *[row[0]] * (longest - n)] for row, n in zip(tables, used, strict=True)],
            device=self.device,
        )
        first = torch.tensor(starts, device=self.device)[:, None]
        steps = torch.arange(width, device=self.device)
        positions = first + steps
        slots = table.gather(1, (positions // BLOCK).clamp_max(longest - 1)) * BLOCK + positions % BLOCK
        if min(counts) < width:
            padding = steps >= torch.tensor(counts, device=self.device)[:, None]
            slots = torch.where(padding, SINK * BLOCK, slots)
        lanes = torch.arange(2 * self.heads, device=self.device) * self.count * BLOCK
        self._slots = (slots[..., None] + lanes).flatten()
        self._groups = []
        self._sampled = None
        if width == 1 and self._samples(tables, sum(used)):
            read = [slots[: start + 1] for slots, start in zip(_slots(table), starts, strict=True)]
            self._sampled = SampledPositions(read, self.count * BLOCK)
            return positions
        for rows, runs in self._split(tables, used, width):
            if runs:
                self._groups.append(self._view(rows, runs, starts[rows]))
            else:
                cached = any(starts[rows]) or width == 1
                self._groups.append(self._gather(rows, table, positions, max(used[rows]), cached=cached))
        return positions

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: object, **__: object
    ) -> tuple[Tensor, Tensor]:
        """What transformers' layers call. key_states, value_states: (rows, heads, tokens, width)."""
        self.write(layer_idx, torch.cat((key_states, value_states), 1).transpose(1, 2))
        return key_states, value_states

    def write(self, layer: int, lanes: Tensor) -> None:
        """Keys of all heads of the pass, then values: (rows, tokens, 2 x heads, width)."""
        self.blocks[layer].view(-1, self.width).index_copy_(0, self._slots, lanes.reshape(-1, self.width))

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """query: (rows, query heads, tokens, width); key and value: of this pass alone. Returns query's shape."""
        if self._sampled:
            keys, values = self.blocks[layer].view(2, -1, self.width)
            return self._sampled.attend(query, keys, values, scaling)
        chunks = self.blocks[layer].view(-1, BLOCK * self.width)
        mixed = []
        for group in self._groups:
            rows = group.rows
            if isinstance(group, ViewedRows):
                mixed.append(_attend_views(query[rows], group, layer, scaling))
                continue
            if group.chunks is None:
                keys, values = key[rows], value[rows]
            else:
                count = rows.stop - rows.start
                keys, values = chunks.index_select(0, group.chunks).view(2, count, self.heads, -1, self.width)
            mixed.append(_attend(query[rows], keys, values, group.mask, scaling))
        return mixed[0] if len(mixed) == 1 else torch.cat(mixed)

    def copy(self, source: int, target: int) -> None:
        self.blocks[:, :, target] = self.blocks[:, :, source]

    def zero(self, blocks: Sequence[int]) -> None:
        """Clear non-finite values: even masked ones would spoil the next sequence (0 * nan)."""
        self.blocks[:, :, list(blocks)] = 0

    def _samples(self, tables: Sequence[Sequence[int]], blocks: int) -> bool:
        """Several sequences, which are long enough on average. One is read as fast by a view."""
        several = any(table is not tables[0] for table in tables)
        bytes_of_layer = blocks * self.block_bytes // self.blocks.shape[0]
        return self.can_sample and several and bytes_of_layer >= self._viewed_bytes * len(tables)

    def _split(
        self, tables: Sequence[Sequence[int]], used: Sequence[int], width: int
    ) -> Iterator[tuple[slice, list[tuple[int, int]]]]:
        """Neighboring rows of one sequence with the runs of their blocks; or without, neighbors whose blocks,
        padded to the longest, may be gathered at a time.
        """
        limit = max(1, self._gather_limit * self.blocks.shape[0] // self.block_bytes)
        start, longest, row = 0, 0, 0
        while row < len(used):
            end = row + 1
            while width == 1 and end < len(used) and tables[end] is tables[row]:
                end += 1
            most = max(used[row:end])
            runs = self._runs(tables[row][:most]) if width == 1 else []
            if row > start and (runs or max(longest, most) * (end - start) > limit):
                yield slice(start, row), []
                start, longest = row, 0
            if runs:
                yield slice(row, end), runs
                start, most = end, 0
            longest, row = max(longest, most), end
        if row > start:
            yield slice(start, row), []

    def _runs(self, blocks: Sequence[int]) -> list[tuple[int, int]]:
        """First block and number of blocks of each consecutive run; empty if they are too short to be worth it."""
        bytes_of_layer = len(blocks) * self.block_bytes // self.blocks.shape[0]
        if bytes_of_layer < self._viewed_bytes:
            return []
        ids = np.asarray(blocks)
        ends = [*(np.flatnonzero(np.diff(ids) != 1) + 1).tolist(), len(ids)]
        if bytes_of_layer < self._viewed_bytes * len(ends):
            return []
        return [(blocks[start], end - start) for start, end in zip([0, *ends], ends, strict=False)]

    def _view(self, rows: slice, runs: Sequence[tuple[int, int]], starts: Sequence[int]) -> ViewedRows:
        length = max(starts) + 1
        lanes = self.blocks.view(-1, 2, self.heads, self.count * BLOCK, self.width)
        keys, values = [], []
        for block, count in runs:
            first = block * BLOCK
            part = lanes[:, :, :, first : first + min(count * BLOCK, length)]
            keys.append(part[:, 0].transpose(2, 3).unbind())
            values.append(part[:, 1].unbind())
            length -= count * BLOCK
        if len(starts) == 1:
            return ViewedRows(rows, keys, values, None)
        later = torch.arange(max(starts) + 1) > torch.tensor(starts)[:, None, None]
        mask = torch.zeros(later.shape, dtype=self.blocks.dtype).masked_fill_(later, float("-inf"))
        return ViewedRows(rows, keys, values, mask)

    def _gather(
        self, rows: slice, table: Tensor, positions: Tensor, longest: int, *, cached: bool
    ) -> GatheredRows:
        if not cached:
            return GatheredRows(rows, None, None)
        lanes = torch.arange(2 * self.heads, device=self.device).view(2, 1, self.heads, 1) * self.count
        chunks = (lanes + table[rows, None, :longest]).flatten()
        later = torch.arange(longest * BLOCK, device=self.device) > positions[rows, None, :, None]
        mask = torch.zeros(later.shape, dtype=self.blocks.dtype, device=self.device)
        return GatheredRows(rows, chunks, mask.masked_fill_(later, float("-inf")))


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """torch.zeros would touch every page; numpy's zeros are the system's."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    return torch.from_numpy(np.zeros(math.prod(shape) * dtype.itemsize, np.uint8)).view(dtype).view(shape)


def _slots(table: Tensor) -> np.ndarray:
    """table: (rows, blocks). Returns the positions in them: (rows, blocks x BLOCK)."""
    found: np.ndarray = (table.numpy()[..., None] * BLOCK + np.arange(BLOCK)).reshape(len(table), -1)
    return found


def _attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float) -> Tensor:
    """key and value: (rows, heads, positions, width); mask: None for plain causal.

    For few tokens per row, the two products are batched over rows and key heads: measured faster than
    scaled_dot_product_attention, because keys shared by several query heads are read once.
    """
    rows, query_heads, tokens, width = query.shape
    heads = key.shape[1]
    if mask is not None and heads != query_heads and tokens > _FEW_TOKENS and query.device.type != "cpu":
        # GPUs' kernels that take a mask take no shared heads: what is left would keep the scores of all of them.
        key, value = (part.repeat_interleave(query_heads // heads, 1) for part in (key, value))
        heads = query_heads
    if mask is None or tokens > _FEW_TOKENS:
        return functional.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=mask,
            is_causal=mask is None,
            scale=scaling,
            enable_gqa=heads != query_heads,
        )
    scaled = (query * scaling).reshape(rows * heads, -1, width)
    scores = torch.bmm(scaled, key.flatten(0, 1).transpose(1, 2)).view(rows, query_heads, tokens, -1)
    scores += mask
    weights = torch.softmax(scores, -1, dtype=torch.float32).to(value.dtype)
    return torch.bmm(weights.view(rows * heads, -1, weights.shape[-1]), value.flatten(0, 1)).view_as(query)


def _attend_views(query: Tensor, group: ViewedRows, layer: int, scaling: float) -> Tensor:
    """query: (rows, query heads, 1, width). Returns its shape."""
    rows, query_heads, _, width = query.shape
    heads = group.keys[0][layer].shape[0]
    scaled = (query * scaling).view(rows, heads, -1, width).transpose(0, 1).reshape(heads, -1, width)
    scores = [torch.bmm(scaled, keys[layer]) for keys in group.keys]
    joined = scores[0] if len(scores) == 1 else torch.cat(scores, -1)
    if group.mask is not None:
        joined.view(heads, rows, -1, joined.shape[-1]).add_(group.mask)
    weights = torch.softmax(joined, -1, dtype=torch.float32).to(query.dtype)
    parts = weights.split([part.shape[-1] for part in scores], -1)
    mixed = torch.bmm(parts[0], group.values[0][layer])
    for part, values in zip(parts[1:], group.values[1:], strict=True):
        mixed += torch.bmm(part, values[layer])
    return mixed.view(heads, rows, -1, width).transpose(0, 1).reshape(rows, query_heads, 1, width)


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,  # noqa: ARG001  the interface's
    scaling: float | None = None,
    *,
    paged_cache: PagedCache,
    **_: object,
) -> tuple[Tensor, None]:
    """The attention of transformers' interface, over what `paged_cache` has selected."""
    layer: int = module.layer_idx  # type: ignore[assignment]  # by transformers' convention
    mixed = paged_cache.attend(layer, query, key, value, query.shape[-1] ** -0.5 if scaling is None else scaling)
    return mixed.transpose(1, 2), None


def register_attention() -> None:
    AttentionInterface.register(ATTENTION, attend)

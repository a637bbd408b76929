"""The blocks of the KV cache: which are free, what holds the others, and the keys and values of finished rows
kept in them, so that the next turn of a rollout computes only its new tokens.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

_ENOUGH = 4
"""Consecutive blocks that are worth a cached prefix. With agents that share a beginning and take several turns,
this loses 0.1 % of the cached tokens and makes runs three times as long; twice as many lose 2 %."""

Ids = NDArray[np.int32]
_MAX_ENTRIES = 256  # entries with the same start are compared one by one
MIN_PREFIX = 16  # a shorter common prefix is not worth keeping


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

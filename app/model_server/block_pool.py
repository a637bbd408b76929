"""Which blocks of the KV cache are free, and what holds the others."""

from collections.abc import Callable, Iterable

import numpy as np

_ENOUGH = 4
"""Consecutive blocks that are worth a cached prefix. With agents that share a beginning and take several turns,
this loses 0.1 % of the cached tokens and makes runs three times as long; twice as many lose 2 %."""


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

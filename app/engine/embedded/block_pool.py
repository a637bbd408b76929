"""Which blocks of the KV cache are free, and what holds the others."""

from collections.abc import Callable, Iterable


class BlockPool:
    """A block is held by running rows, by cached prefixes, or by both; several may share one.

    `evict` is called while no block is free, and must drop a cached prefix.
    """

    def __init__(self, blocks: Iterable[int], evict: Callable[[], None]) -> None:
        self._free = sorted(blocks, reverse=True)  # freed last, used first
        self._evict = evict
        self.size = len(self._free)
        self.in_use = 0  # by running rows
        self._rows = dict.fromkeys(self._free, 0)
        self._prefixes = dict.fromkeys(self._free, 0)

    def allocate(self) -> int:
        """The caller has reserved it, so that running rows alone never hold all blocks."""
        while not self._free:
            self._evict()
        block = self._free.pop()
        self.hold([block])
        return block

    def held(self, blocks: Iterable[int]) -> int:
        """How many of them running rows hold."""
        return sum(self._rows[block] > 0 for block in blocks)

    def hold(self, blocks: Iterable[int]) -> None:
        for block in blocks:
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
        self._free.append(block)
        return [block]

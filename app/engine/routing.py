"""Chooses the replica for a prompt by load and prefix cache affinity. Pure."""

from collections import OrderedDict
from collections.abc import Iterable, Sequence

import msgspec

BLOCK_TOKENS = 64
_MAX_BLOCKS = 16_384  # remembered per replica: a million tokens, about what its cache holds
MAX_IMBALANCE = 4  # requests more than the idlest replica that a prompt accepts for a cached prefix


class ReplicaLoad(msgspec.Struct, frozen=True):
    """A replica that may serve a prompt."""

    in_flight: int
    matched: int  # leading blocks of the prompt that it processed recently


def hash_blocks(model: str, prompt_ids: Sequence[int]) -> tuple[int, ...]:
    """One hash per whole block, over everything up to its end: equal only if the whole prefix is.

    >>> short, long = hash_blocks("base", [7] * 64), hash_blocks("base", [7] * 130)
    >>> len(long), long[:1] == short, hash_blocks("other", [7] * 64) == short
    (2, True, False)
    """
    hashes, last = list[int](), hash(model)
    for start in range(0, len(prompt_ids) - BLOCK_TOKENS + 1, BLOCK_TOKENS):
        last = hash((last, *prompt_ids[start : start + BLOCK_TOKENS]))
        hashes.append(last)
    return tuple(hashes)


def choose_replica(loads: Sequence[ReplicaLoad]) -> int:
    """The index of the replica to use: of those nearly as idle as the idlest, the one with the longest match.

    >>> choose_replica([ReplicaLoad(2, 0), ReplicaLoad(1, 0)])
    1
    >>> choose_replica([ReplicaLoad(2, 9), ReplicaLoad(1, 0)])
    0
    >>> choose_replica([ReplicaLoad(6, 9), ReplicaLoad(1, 0)])
    1
    """
    idle = min(load.in_flight for load in loads)
    near = [index for index, load in enumerate(loads) if load.in_flight <= idle + MAX_IMBALANCE]
    return min(near, key=lambda index: (-loads[index].matched, loads[index].in_flight))


class RecentPrefixes:
    """The blocks that a replica processed recently; the least recently used are dropped first."""

    def __init__(self, max_blocks: int = _MAX_BLOCKS) -> None:
        self._max_blocks = max_blocks
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def add(self, blocks: Sequence[int]) -> None:
        for block in reversed(blocks):  # blocks are useful only together with all blocks before them
            self._blocks[block] = None
            self._blocks.move_to_end(block)
        while len(self._blocks) > self._max_blocks:
            self._blocks.popitem(last=False)

    def match(self, blocks: Iterable[int]) -> int:
        """The number of leading blocks that were processed recently."""
        known = 0
        for block in blocks:
            if block not in self._blocks:
                break
            known += 1
        return known

    def clear(self) -> None:
        self._blocks.clear()

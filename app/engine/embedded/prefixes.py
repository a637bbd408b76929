"""Keys and values of finished rows, so that the next turn of a rollout computes only what is new."""

from collections import OrderedDict
from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Ids = NDArray[np.int32]
_MOST = 256  # those that begin alike are compared one by one
SHORTEST = 16  # a shorter common prefix is not worth copying


class Kept(msgspec.Struct, frozen=True):
    adapter: int  # keys and values are of one set of weights
    ids: Ids
    block: Tensor  # (layers, 2, heads, len(ids), width)


class Prefixes:
    """The last rows, a few hundred or as many as fit into a number of bytes."""

    def __init__(self, room: int) -> None:
        self.room, self.size = room, 0
        self._kept: OrderedDict[int, Kept] = OrderedDict()
        self._alike: dict[tuple[int, bytes], list[int]] = {}  # adapter and first ids -> which of them
        self._next = 0

    def longest(self, adapter: int, ids: Ids) -> tuple[int, Tensor | None]:
        """How many leading ids one of them shares, and its keys and values."""
        best, found = 0, None
        for number in self._alike.get(start_of(adapter, ids), ()):
            if (shared := common_prefix(self._kept[number].ids, ids)) > best:
                best, found = shared, number
        if found is None:
            return 0, None
        self._kept.move_to_end(found)
        return best, self._kept[found].block

    def keep(self, adapter: int, ids: Ids, block: Tensor) -> None:
        """A kept row that the new one extends is forgotten: the new one serves in its place."""
        if len(ids) < SHORTEST:
            return
        alike = self._alike.get(start_of(adapter, ids), ())
        kept = [(number, self._kept[number].ids) for number in alike]
        for number in [number for number, other in kept if common_prefix(other, ids) == len(other)]:
            self._forget(number)
        self._kept[self._next] = Kept(adapter, ids, block)
        self._alike.setdefault(start_of(adapter, ids), []).append(self._next)
        self._next += 1
        self.size += block.nbytes
        while self.size > self.room or len(self._kept) > _MOST:
            self._forget(next(iter(self._kept)))

    def forget_adapter(self, adapter: int) -> None:
        for number in [number for number, kept in self._kept.items() if kept.adapter == adapter]:
            self._forget(number)

    def _forget(self, number: int) -> None:
        kept = self._kept.pop(number)
        self.size -= kept.block.nbytes
        start = start_of(kept.adapter, kept.ids)
        self._alike[start].remove(number)
        if not self._alike[start]:
            del self._alike[start]


def start_of(adapter: int, ids: Ids) -> tuple[int, bytes]:
    """What two rows have in common if they are worth comparing."""
    return adapter, ids[:SHORTEST].tobytes()


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

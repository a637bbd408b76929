"""Which replica answers a prompt: pure choices over what is known of each."""

from collections import OrderedDict
from collections.abc import Iterable, Sequence

import msgspec

BLOCK = 64  # tokens hashed together
_ROOM = 16_384  # blocks remembered of one replica: a million tokens, about what its cache holds
SLACK = 4  # requests more than the idlest replica has, which a prompt may meet where its beginning was seen


class Load(msgspec.Struct, frozen=True):
    """A replica that may answer."""

    in_flight: int
    prefix: int  # blocks of the prompt's beginning that it saw lately


def blocks_of(model: str, prompt_ids: Sequence[int]) -> tuple[int, ...]:
    """A hash for every whole block, of everything up to its end: equal only where the whole beginning is.

    >>> short, long = blocks_of("base", [7] * 64), blocks_of("base", [7] * 130)
    >>> len(long), long[:1] == short, blocks_of("other", [7] * 64) == short
    (2, True, False)
    """
    hashes, last = list[int](), hash(model)
    for start in range(0, len(prompt_ids) - BLOCK + 1, BLOCK):
        last = hash((last, *prompt_ids[start : start + BLOCK]))
        hashes.append(last)
    return tuple(hashes)


def choose(loads: Sequence[Load]) -> int:
    """The index of the one to ask: of those about as idle as the idlest, that which knows most of the prompt.

    >>> choose([Load(2, 0), Load(1, 0)])
    1
    >>> choose([Load(2, 9), Load(1, 0)])
    0
    >>> choose([Load(6, 9), Load(1, 0)])
    1
    """
    idle = min(load.in_flight for load in loads)
    near = [index for index, load in enumerate(loads) if load.in_flight <= idle + SLACK]
    return min(near, key=lambda index: (-loads[index].prefix, loads[index].in_flight))


class Seen:
    """The blocks a replica saw lately; the longest unseen are forgotten first."""

    def __init__(self, room: int = _ROOM) -> None:
        self._room = room
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def add(self, blocks: Sequence[int]) -> None:
        for block in reversed(blocks):  # a beginning is of use without its end, not the other way round
            self._blocks[block] = None
            self._blocks.move_to_end(block)
        while len(self._blocks) > self._room:
            self._blocks.popitem(last=False)

    def prefix(self, blocks: Iterable[int]) -> int:
        """How many of the first blocks it knows, up to the first that it does not."""
        known = 0
        for block in blocks:
            if block not in self._blocks:
                break
            known += 1
        return known

    def clear(self) -> None:
        self._blocks.clear()

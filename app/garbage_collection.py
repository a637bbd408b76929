"""When Python looks for unused objects that refer to each other."""

import gc

_ALLOCATIONS = 10_000  # between two collections of new objects; Python's own 700 take a third of torch's import
_COLLECTIONS = 20  # of a generation, between two of the next


def collect_seldom() -> None:
    """Call it before large imports."""
    gc.set_threshold(_ALLOCATIONS, _COLLECTIONS, _COLLECTIONS)


def freeze_memory() -> None:
    """Spare later garbage collections what is loaded at the start: to go through it holds up all for 0.1 s."""
    gc.collect()
    gc.freeze()

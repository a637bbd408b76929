"""Bounds for work on hostile input, in this process's own time, since the machine may do other work too."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

_SECONDS = 30
Made = TypeVar("Made")


@contextmanager
def within() -> Iterator[None]:
    """A bound that no machine's pace reaches: what it looks for takes minutes, or does not end."""
    started = time.process_time()
    yield
    assert time.process_time() - started < _SECONDS


def growth(made: Callable[[int], Made], work: Callable[[Made], object]) -> float:
    """The time of eight times the work, divided by that of the work: 8 if linear, 64 if quadratic."""
    once, eight = made(1), made(8)
    work(once)
    return min(_seconds(work, eight) for _ in range(3)) / min(_seconds(work, once) for _ in range(3))


def _seconds(work: Callable[[Made], object], given: Made) -> float:
    started = time.process_time()
    work(given)
    return time.process_time() - started

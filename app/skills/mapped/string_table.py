"""Sorted strings in mapped files: found by bisection, never loaded whole."""

from bisect import bisect_left
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


class StringTable:
    """Strings by number, and numbers by string. The order is that of code points."""

    def __init__(self, text: NDArray[Any], ends: NDArray[Any]) -> None:
        """`text` (B,) has the strings as UTF-8, one after the other; `ends` (S,) says where each one ends."""
        self._text, self._ends = text.data, ends.data

    @classmethod
    def open(cls, directory: Path, name: str) -> "StringTable":
        """Raises OSError and ValueError for files that `write` did not leave."""
        return cls(map_array(directory, f"{name}_text"), map_array(directory, f"{name}_ends"))

    @staticmethod
    def write(directory: Path, name: str, strings: Iterable[bytes]) -> None:
        """In the order given, which must be sorted for `find`."""
        ends = np.cumsum(np.array([len(each) for each in strings], np.int64), dtype=np.int64)
        save_array(directory, f"{name}_text", np.frombuffer(b"".join(strings), np.uint8))
        save_array(directory, f"{name}_ends", ends)

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, number: int) -> bytes:
        return bytes(self._text[self._ends[number - 1] if number else 0 : self._ends[number]])

    def find(self, text: str) -> int | None:
        """The number of a string, if the table has it."""
        wanted = encoded(text)
        number = bisect_left(self, wanted)
        return number if number < len(self) and self[number] == wanted else None


def encoded(text: str) -> bytes:
    """As UTF-8, also what is no Unicode text: such a string is in no table, or in one of the same spelling."""
    return text.encode("utf-8", "surrogatepass")


def save_array(directory: Path, name: str, array: NDArray[Any]) -> None:
    np.save(directory / f"{name}.npy", array, allow_pickle=False)


def map_array(directory: Path, name: str) -> NDArray[Any]:
    """Read when it is used, and shared by all processes that map it. Raises OSError and ValueError."""
    mapped: NDArray[Any] = np.load(directory / f"{name}.npy", mmap_mode="r", allow_pickle=False)
    return mapped.view(np.ndarray)

"""A server that nobody here wrote, as the benchmark uses it: how it runs, and tasks on its API."""

import ast
import re
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any, Generic, TypeAlias, TypeVar

import httpx
import msgspec

S = TypeVar("S")  # what the server holds
Check = Callable[[S, S, str], bool]
Expected: TypeAlias = bool | float | str | list[str] | set[str]


class OtherTask(msgspec.Struct, Generic[S], frozen=True):
    """A task, whether the states before and after and an answer fulfil it, and code that solves it.

    `kind` says in words what is asked of what, so that results can be counted by it. In the code, `<GET /path>`
    stands for an operation, and what it assigns to `answer` is the answer.
    """

    kind: str
    instruction: str
    check: Check[S]
    solution: str


class OtherServer(msgspec.Struct, Generic[S], frozen=True):
    """`run(directory, port)` yields a client with its credentials; `api` says with it how the API is registered.

    A call of `proof` without arguments succeeds where the API can be called at all. The `first` twenty tasks find
    few things, those of `more` many, with look-alikes: `seed(client, many)` makes the server hold these alone.
    """

    package: str  # whose pinned requirements are installed
    name: str  # of the API
    run: Callable[[Path, int], AbstractContextManager[httpx.Client]]
    api: Callable[[httpx.Client], dict[str, Any]]
    proof: tuple[str, str]
    seed: Callable[[httpx.Client, bool], None]
    read_state: Callable[[httpx.Client], S]
    first: tuple[OtherTask[S], ...]
    more: tuple[OtherTask[S], ...]

    @property
    def tasks(self) -> tuple[OtherTask[S], ...]:
        return self.first + self.more

    def set_up(self, client: httpx.Client, task: OtherTask[S]) -> S:
        """What the server holds after it was made ready for the task."""
        self.seed(client, task in self.more)
        return self.read_state(client)


def is_answer(said: str, expected: Expected) -> bool:
    """Whether an answer says this: a number by its value, True as "yes", text exactly.

    A list is one of Python's or JSON's, or has its items behind commas or on lines; a set is one in any order.
    """
    said = said.strip()
    if isinstance(expected, bool):
        return said.lower().rstrip(".") in (("yes", "true") if expected else ("no", "false"))
    if isinstance(expected, int | float):
        with suppress(ValueError):
            return float(said) == expected
        return False
    if isinstance(expected, str):
        return said == expected
    return _items(said) == expected if isinstance(expected, list) else sorted(_items(said)) == sorted(expected)


def _items(said: str) -> list[str]:
    with suppress(ValueError, SyntaxError):
        read = ast.literal_eval(said)
        if isinstance(read, list | tuple | set):
            return list(map(str, read))
    return [re.sub(r"""^(["'])(.*)\1$""", r"\2", each.strip(" -*\t")) for each in re.split("[,\n]", said)]

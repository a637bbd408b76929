"""A server that nobody here wrote, as the benchmark uses it: how it runs, and simple tasks on its API."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Generic, TypeVar

import httpx
import msgspec

S = TypeVar("S")  # what the server holds
Check = Callable[[S, S, str], bool]


class OtherTask(msgspec.Struct, Generic[S], frozen=True):
    """A task, whether the states before and after and an answer fulfil it, and code that solves it.

    In the code, `<GET /path>` stands for an operation, and what it assigns to `answer` is the answer.
    """

    instruction: str
    check: Check[S]
    solution: str


class OtherServer(msgspec.Struct, Generic[S], frozen=True):
    """`run(directory, port)` yields a client with its credentials; `api` says with it how the API is registered.

    A call of `proof` without arguments succeeds where the API can be called at all.
    """

    package: str  # whose pinned requirements are installed
    name: str  # of the API
    run: Callable[[Path, int], AbstractContextManager[httpx.Client]]
    api: Callable[[httpx.Client], dict[str, Any]]
    proof: tuple[str, str]
    seed: Callable[[httpx.Client], None]
    read_state: Callable[[httpx.Client], S]
    tasks: tuple[OtherTask[S], ...]

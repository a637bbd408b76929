"""Serves the worlds of another package to the trainer: one JSON object a line in, and one a line out.

It runs in the package's own Python, which has nothing of this project, so hosts import the standard library, their
package and this module alone. Each message has one member: a request the name of a method with its arguments, an
answer a `result` or an `error`.
"""

import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, Protocol, cast

Json = Any


class RefusedCallError(Exception):
    """A call that the world answers with an error, which the agent sees."""


class World(Protocol):
    """One task, set up for one rollout."""

    now: str  # ISO 8601; "": it does not matter

    def call(self, app: str, operation: str, arguments: dict[str, Json]) -> Json:
        """Raises RefusedCallError."""
        ...

    def verify(self, answer: Json, completed: bool) -> dict[str, Json]:
        """How many checks `passed`, of how many in `total`, and the `failures` for people."""
        ...

    def solve(self) -> Json:
        """Do the task by the reference solution. Its answer. Raises RefusedCallError without one."""
        ...

    def close(self) -> None: ...


class Scripted(World, Protocol):
    """A world whose reference solutions can be carried out from outside, call by call."""

    def reference(self, goal: str) -> dict[str, Json]:
        """The `instruction` of a goal, the `calls` that reach it, as operation and arguments, and its `answer`."""
        ...


class Programmed(World, Protocol):
    """A world that knows how an agent would program its task."""

    def program(self) -> dict[str, Json]:
        """A `function` with its `name`, a `careless` one that forgets something, a `call`, and the `app`."""
        ...


class Host(Protocol):
    """The tasks of a package."""

    def tasks(self) -> list[dict[str, Json]]:
        """All, by `id`, with `instruction`, `split`, `family` and the key of their `apps`."""
        ...

    def apps(self, key: str) -> list[dict[str, Json]]:
        """What a task may call: apps with `name`, `description` and `operations`. These have a `name`, a
        `description`, the JSON schemas `parameters` and `returns`, and whether they are `safe`.
        """
        ...

    def open(self, task: str) -> World: ...


def serve(load: Callable[[], Host]) -> None:
    """Answer requests until the trainer goes away."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a world prints is no answer
    requests = _Requests()
    session: _Session | None = None
    for request in requests:
        ((method, arguments),) = request.items()
        try:
            session = session or _Session(load())
            answer = {"result": getattr(session, method)(**arguments)}
        except RefusedCallError as error:
            answer = {"refused": str(error)}
        except Exception as error:  # noqa: BLE001  the package may raise anything
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer, default=str) + "\n")
        answers.flush()


class _Session:
    """The methods that the trainer may call."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._worlds: dict[int, World] = {}
        self._opened = 0

    def tasks(self) -> Json:
        return self._host.tasks()

    def apps(self, key: str) -> Json:
        return self._host.apps(key)

    def open(self, task: str) -> Json:
        world = self._host.open(task)
        self._opened += 1
        self._worlds[self._opened] = world
        return {"world": self._opened, "now": world.now}

    def call(self, world: int, app: str, operation: str, arguments: dict[str, Json]) -> Json:
        return self._worlds[world].call(app, operation, arguments)

    def verify(self, world: int, answer: Json, completed: bool) -> Json:
        return self._worlds[world].verify(answer, completed)

    def solve(self, world: int) -> Json:
        return self._worlds[world].solve()

    def program(self, world: int) -> Json:
        return cast("Programmed", self._worlds[world]).program()

    def reference(self, world: int, goal: str) -> Json:
        return cast("Scripted", self._worlds[world]).reference(goal)

    def close(self, world: int) -> None:
        self._worlds.pop(world).close()


class _Requests:
    """Read in a thread of their own, which ends all processes of this host with the trainer, whatever they do."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._there = threading.Semaphore(0)
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in sys.stdin:
            self._lines.append(line)
            self._there.release()
        os.killpg(0, signal.SIGKILL)

    def __iter__(self) -> Iterator[dict[str, dict[str, Json]]]:
        while True:
            self._there.acquire()
            yield json.loads(self._lines.pop(0))

"""Processes that hold the worlds of other packages: started as rollouts need them, ended if they hang, replaced if
they die.

Each runs a host ([hosts/host.py]) in the Python of its package, without this process's environment variables: the
package is not ours.
"""

import asyncio
import json
import os
import select
import signal
import subprocess
import tempfile
import time
import weakref
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import IO, Final

import msgspec

from app.base.errors import WorldError
from app.base.values import Json

_INHERITED: Final = ("PATH", "HOME", "LANG")


class RefusedCallError(Exception):
    """The world answers a call with an error, which the agent sees."""


class HostCommand(msgspec.Struct, frozen=True, kw_only=True):
    """How a host is started, and how many it may be."""

    world: str  # for messages
    python: Path
    script: Path
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = {}
    most: int = 2  # processes
    shared: int = 64  # worlds of one process at a time
    lifetime: int | None = None  # worlds of one process in all, where the package leaks memory
    seconds: float = 120.0  # of one answer; a large world takes long to set up


class WorldProcess:
    """One host. Its requests are answered one at a time, in the order of their arrival."""

    def __init__(self, command: HostCommand) -> None:
        self.worlds = 0  # open ones
        self.opened = 0  # ever
        self._command = command
        self._messages = tempfile.TemporaryFile()  # noqa: SIM115  the package's last words
        self._files = tempfile.TemporaryDirectory(prefix="sage-world-", ignore_cleanup_errors=True)
        inherited = {name: os.environ[name] for name in _INHERITED if name in os.environ}
        self._process = subprocess.Popen(
            [str(command.python), str(command.script), *command.arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._messages,
            env=inherited | {"TMPDIR": self._files.name} | dict(command.environment),
            start_new_session=True,  # the processes that a world leaks end with it
        )
        self._unread = b""
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"world {command.world}")
        self._end = weakref.finalize(self, _end, self._process, self._messages, self._files, self._thread)

    @property
    def alive(self) -> bool:
        return self._end.alive and self._process.poll() is None

    async def ask(self, method: str, **arguments: Json) -> Json:
        """Raises RefusedCallError, and WorldError where the package fails or gives no answer in time. Without an
        answer, all worlds of this process are lost.
        """
        return await asyncio.wrap_future(self._submit(method, arguments))

    def ask_now(self, method: str, **arguments: Json) -> Json:
        """As `ask`, and waits."""
        return self._submit(method, arguments).result()

    def _submit(self, method: str, arguments: Mapping[str, Json]) -> Future[Json]:
        try:
            return self._thread.submit(self._result, method, arguments)
        except RuntimeError as error:  # it has been ended
            raise WorldError(f"the worlds of {self._command.world} that shared its process are lost") from error

    def _result(self, method: str, arguments: Mapping[str, Json]) -> Json:
        answer = self._answer(method, arguments)
        if "refused" in answer:
            raise RefusedCallError(answer["refused"])
        if "error" in answer:
            raise WorldError(f"{self._command.world} failed: {answer['error']}")
        return answer["result"]

    def _answer(self, method: str, arguments: Mapping[str, Json]) -> dict[str, Json]:
        if not self.alive:
            raise WorldError(f"the worlds of {self._command.world} that shared its process are lost")
        requests, answers = self._process.stdin, self._process.stdout
        assert requests is not None
        assert answers is not None
        try:
            requests.write(json.dumps({method: arguments}).encode() + b"\n")
            requests.flush()
            line = self._line(answers, time.monotonic() + self._command.seconds)
            return msgspec.json.decode(line, type=dict[str, Json])
        except TimeoutError as error:
            self._end()
            command = self._command
            reason = f"{command.world} gave no answer within {command.seconds:.0f} s: its process was ended"
            raise WorldError(reason) from error
        except (OSError, EOFError) as error:
            reason = f"the process of {self._command.world} ended: {self._last_words()}"
            self._end()
            raise WorldError(reason) from error

    def _line(self, answers: IO[bytes], deadline: float) -> bytes:
        while b"\n" not in self._unread:
            ready, _, _ = select.select([answers], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise TimeoutError
            read = os.read(answers.fileno(), 1 << 20)
            if not read:
                raise EOFError
            self._unread += read
        line, _, self._unread = self._unread.partition(b"\n")
        return line

    def _last_words(self) -> str:
        self._messages.seek(max(0, self._messages.seek(0, os.SEEK_END) - 10_000))
        lines = self._messages.read().decode(errors="replace").split("\n")
        return next((line for line in reversed(lines) if line.strip()), "without a message")


def _end(
    process: subprocess.Popen[bytes],
    messages: IO[bytes],
    files: tempfile.TemporaryDirectory[str],
    thread: ThreadPoolExecutor,
) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for file in (process.stdin, process.stdout, messages):
        with suppress(OSError):  # of a request that was not sent
            if file is not None:
                file.close()
    files.cleanup()
    thread.shutdown(wait=False)  # after the requests that wait, which find the process ended


class WorldPool:
    """The processes of one kind of world. Not for more than one event loop at a time."""

    def __init__(self, command: HostCommand) -> None:
        self._command = command
        self._processes: list[WorldProcess] = []
        self._places = asyncio.Semaphore(command.most * command.shared)

    @asynccontextmanager
    async def place(self) -> AsyncIterator[WorldProcess]:
        """A process with room for a world, as soon as there is one."""
        async with self._places:
            process = self._with_room()
            process.worlds += 1
            process.opened += 1
            try:
                yield process
            finally:
                process.worlds -= 1

    def ask_now(self, method: str, **arguments: Json) -> Json:
        """Ask any process, and wait. Raises WorldError."""
        return self._with_room().ask_now(method, **arguments)

    def _with_room(self) -> WorldProcess:
        self._processes = [each for each in self._processes if each.alive and not self._is_worn(each)]
        idlest = min(self._processes, key=lambda each: each.worlds, default=None)
        if idlest is None or (idlest.worlds and len(self._processes) < self._command.most):
            idlest = WorldProcess(self._command)
            self._processes.append(idlest)
        return idlest

    def _is_worn(self, process: WorldProcess) -> bool:
        """Without a reference to it, it ends."""
        lifetime = self._command.lifetime
        return lifetime is not None and not process.worlds and process.opened >= lifetime

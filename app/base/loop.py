"""Background loops that only their owner can stop, and the signs of life of a process to its supervisor.

Whatever else ends a loop, it is started again and counted. Signs of life follow the protocol of systemd's
watchdog: datagrams to the Unix socket that NOTIFY_SOCKET names, for which neither the database nor a disk has
to work.
"""

import asyncio
import signal
import socket
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Self
from weakref import WeakSet

import structlog

from app.base.errors import first_line
from app.base.files import scratch_directory

log = structlog.get_logger(__name__)

Tick = Callable[[], Awaitable[float | None]]
"""One round. Returns the seconds until the next one; None means the loop's own pace, 0 at once."""

BACKGROUND = "background"
_TOLERATED = 1  # failures in a row: a connection may break
_MAX_PAUSE = 10.0  # seconds until a failed round is tried again, also in a loop that is slower

_running: "WeakSet[Loop]" = WeakSet()
UNRESPONSIVE = signal.SIGPROF
"""Ends a process whose own watchdog finds that it does not respond."""
_INTERVAL = 0.5  # seconds between two signs of life
_SIGN = b"READY=1\nWATCHDOG=1"  # systemd wants the first line once, and ignores it later


class Loop:
    """Calls `tick` every `every` seconds, and at once after `wake`. Use it as an async context manager.

    A call of `wake` during a round triggers another. `expected` are errors that pass by themselves, such as
    an unavailable database: they are logged as warnings, all others as defects with their traceback. `part` is
    the part of the server that is not ready while the loop fails, or while a round takes longer than `limit`
    seconds.
    """

    def __init__(
        self,
        name: str,
        tick: Tick,
        every: float,
        *,
        expected: tuple[type[BaseException], ...] = (),
        part: str = BACKGROUND,
        limit: float | None = None,
    ) -> None:
        self.name, self.part = name, part
        self.failures = 0  # rounds in a row that raised
        self.failed = 0  # rounds that raised, ever
        self.restarts = 0
        self._tick, self._every, self._expected, self._limit = tick, every, expected, limit
        self._cause = ""  # of the last failure
        self._round_began: float | None = None  # None between rounds
        self._woken = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._event_loop: asyncio.AbstractEventLoop | None = None
        self._restart: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def start(self) -> None:
        """For owners that are context managers themselves, and call `stop` at their end."""
        self._event_loop = asyncio.get_running_loop()
        _running.add(self)
        self._spawn()

    def wake(self) -> None:
        """Start the next round now. Safe to call before the loop runs and after it was stopped."""
        self._woken.set()

    def recover(self) -> None:
        """For a round that lasts: it works now, so the failures before it are over."""
        self.failures = 0

    async def stop(self) -> None:
        """Cancel the round under way, and wait until it has ended. Safe to call twice."""
        _running.discard(self)
        if self._restart is not None:
            self._restart.cancel()
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with suppress(asyncio.CancelledError, Exception):  # an error of its last moment helps nobody
                await task

    @property
    def fault(self) -> str | None:
        """Why its work is not done at present; None if it is."""
        if self.failures > _TOLERATED:
            return f"{self.name}: {self.failures} rounds in a row failed, the last one with {self._cause}"
        taken = 0.0 if self._round_began is None else time.monotonic() - self._round_began
        if self._limit is not None and taken > self._limit:
            return f"{self.name}: its round has taken {taken:.0f} s"
        return None

    def runs_here(self) -> bool:
        """It belongs to the running event loop."""
        return self._event_loop is asyncio.get_running_loop()

    def _spawn(self) -> None:
        self._task = asyncio.create_task(self._run(), name=self.name)
        self._task.add_done_callback(self._revive)

    def _revive(self, ended: "asyncio.Task[None]") -> None:
        """The last resort: a round that cancelled its own task, or a failure that could not even be logged."""
        if ended is not self._task:  # it was stopped
            return
        error = None if ended.cancelled() else ended.exception()
        self.restarts += 1
        if self._round_began is not None:  # otherwise `_fail` has counted it
            self._count(error or asyncio.CancelledError())
        self._restart = ended.get_loop().call_later(self._pause_after_failure(), self._spawn)
        with suppress(Exception):
            log.error(f"{self.name}: it ended and is started again", restarts=self.restarts, exc_info=error)

    async def _run(self) -> None:
        while True:
            self._woken.clear()  # before the round: a wake during the round triggers another
            pause = await self._round()
            with suppress(
                TimeoutError
            ):  # not wait_for: Python 3.11's forgets a cancellation that meets the result
                async with asyncio.timeout(pause):
                    await self._woken.wait()

    async def _round(self) -> float:
        self._round_began = time.monotonic()
        try:
            pause = await self._tick()
        except self._expected as error:
            self._count(error)
            log.warning(f"{self.name}: this round failed", failures=self.failures, cause=first_line(error))
        except Exception as error:  # the last resort: otherwise this work would silently never be done again
            self._count(error)
            log.exception(f"{self.name}: this round failed", failures=self.failures)
        else:
            self.failures = 0
            self._round_began = None
            return self._every if pause is None else pause
        return self._pause_after_failure()

    def _count(self, error: BaseException) -> None:
        self._round_began = None
        self.failures += 1
        self.failed += 1
        foreseen = isinstance(error, self._expected)  # others may quote anything: the log has them
        self._cause = first_line(error) if foreseen else type(error).__name__

    def _pause_after_failure(self) -> float:
        """Wait longer each time, but not for the next round of a slow loop: its part is not ready until then."""
        return min(self._every, _MAX_PAUSE, 2.0 ** (min(self.failures, 10) - 1))


class Looping:
    """Runs its `_loop` while it is entered. A subclass sets it, and may do more at its exit."""

    _loop: Loop

    async def __aenter__(self) -> Self:
        self._loop.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._loop.stop()


def running_loops() -> list[Loop]:
    """Those of the running event loop, as `asyncio.all_tasks` lists its tasks."""
    return sorted((each for each in _running if each.runs_here()), key=lambda each: each.name)


def faults_by_part() -> dict[str, str]:
    """What is wrong with the loops of the running event loop."""
    faults = dict[str, list[str]]()
    for each in running_loops():
        if each.fault is not None:
            faults.setdefault(each.part, []).append(each.fault)
    return {part: "; ".join(causes) for part, causes in faults.items()}


class LivenessReporter(Looping):
    """While entered, reports that the running event loop runs. Without an address it does nothing."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._loop = Loop("report a sign of life", self._report, _INTERVAL)

    async def _report(self) -> None:
        report_life(self._address)


def report_life(address: str) -> None:
    """Never blocks. A supervisor that is gone, or does not read, is none of the process's business."""
    if not address:
        return
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as connection:
        connection.setblocking(False)
        connection.sendto(_SIGN, address.replace("@", "\0", 1) if address.startswith("@") else address)


class LivenessListener:
    """The supervisor's end: `address` is what the process gets as NOTIFY_SOCKET. Only its user can write to it."""

    def __init__(self) -> None:
        self._kept = ExitStack()
        directory = self._kept.enter_context(scratch_directory(Path(tempfile.gettempdir()), "sage-notify-"))
        self.address = str(directory / "notify")
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._socket.bind(self.address)

    def heard(self) -> bool:
        """Whether a sign has arrived since the last call."""
        heard = False
        with suppress(BlockingIOError):
            while self._socket.recv(len(_SIGN)):
                heard = True
        return heard

    def close(self) -> None:
        self._socket.close()
        self._kept.close()

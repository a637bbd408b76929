"""A trace of how a runner ended: by itself, or killed from outside, by an operator or for lack of memory."""

import faulthandler
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Self

from app.base.loop import Loop

_PULSES = 4  # within the seconds after which the event loop counts as stuck
_KEPT_SECONDS = 86_400.0  # the file of a runner whose end nobody has noticed


class CrashFile:
    """While entered, the file of this runner in `directory` is empty unless its event loop has not responded for
    `seconds`. A fatal signal of its own also leaves a trace, SIGKILL leaves none.

    Both are written by C code that needs no GIL. Without a file that can be written, ends look like kills.
    """

    def __init__(self, directory: Path, owner: str, seconds: float) -> None:
        self._directory, self._owner, self._seconds = directory, owner, seconds
        self._file: BinaryIO | None = None
        self._loop = Loop("keep the crash file empty", self._pulse, seconds / _PULSES)

    async def __aenter__(self) -> Self:
        with suppress(OSError):
            self._directory.mkdir(parents=True, exist_ok=True)
            self._sweep()
            self._file = self._path(self._owner).open("ab", buffering=0)
            faulthandler.enable(self._file, all_threads=False)
            self._loop.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._loop.stop()
        faulthandler.cancel_dump_traceback_later()
        if self._file is not None:
            faulthandler.disable()
            self._file.close()
            self._path(self._owner).unlink(missing_ok=True)

    def ended_by_itself(self, owner: str) -> bool:
        """Whether another runner, which is dead, left a trace. Ask once: its file is deleted."""
        try:
            found = self._path(owner).stat().st_size > 0
            self._path(owner).unlink()
        except OSError:
            return False
        return found

    async def _pulse(self) -> None:
        assert self._file is not None
        os.ftruncate(self._file.fileno(), 0)
        faulthandler.dump_traceback_later(self._seconds, file=self._file)

    def _path(self, owner: str) -> Path:
        return self._directory / f"{owner}.crash"

    def _sweep(self) -> None:
        for path in self._directory.glob("*.crash"):
            with suppress(OSError):
                if time.time() - path.stat().st_mtime > _KEPT_SECONDS:
                    path.unlink()

"""Copy the end of a run's log into the database, where every API server can read it."""

import asyncio
import os
import time
from pathlib import Path
from uuid import UUID

from app.db import run_logs
from app.db.database import Sessions

_MOST = 64 * 1024  # bytes
_SECONDS = 5.0  # between two copies while the run goes on


class LogCopy:
    """The stored copy of one run's log."""

    def __init__(self, run_id: UUID, directory: Path) -> None:
        """`directory` is the run's."""
        self._run_id, self._path = run_id, directory / "log"
        self._copied: str | None = None
        self._at = -_SECONDS

    async def refresh(self, sessions: Sessions) -> None:
        """Call it often: it copies every few seconds, if there is anything new."""
        if time.monotonic() - self._at >= _SECONDS:
            await self.copy(sessions)
            self._at = time.monotonic()

    async def copy(self, sessions: Sessions) -> None:
        """Copy at most the last 64 KiB, from the beginning of a line."""
        end = await asyncio.to_thread(_end, self._path)
        if end != self._copied:
            async with sessions.begin() as session:
                await run_logs.store(session, self._run_id, end)
            self._copied = end


def _end(path: Path) -> str:
    """Empty for a log that cannot be read."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _MOST))
            content = file.read(_MOST)
    except OSError:
        return ""
    text = content.decode("utf-8", "replace").replace("\0", "\N{REPLACEMENT CHARACTER}")
    return text.partition("\n")[2] if size > _MOST else text

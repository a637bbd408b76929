"""The logs of training runs, which workers write into the data directory."""

import asyncio
import os
from pathlib import Path
from uuid import UUID

import msgspec

_MOST = 64 * 1024  # bytes


class RunLogs(msgspec.Struct, frozen=True):
    """Those of the workers that share this server's data directory: on one machine, all of them."""

    directory: Path | None = None

    async def tail(self, run_id: UUID) -> str | None:
        """The last 64 KiB, from the beginning of a line. None for a log that is not on this machine."""
        return (
            None
            if self.directory is None
            else await asyncio.to_thread(_tail, self.directory / str(run_id) / "log")
        )


def _tail(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _MOST))
            content = file.read(_MOST)
    except OSError:
        return None
    text = content.decode("utf-8", "replace")
    return text.partition("\n")[2] if size > _MOST else text

"""The host's end of one confined process: its messages, its CPU time, its end."""

import asyncio
from contextlib import suppress

from app.records import Json
from app.sandbox.fork import Fork
from app.sandbox.frames import pack
from app.sandbox.reader import MessageReader, SessionMessage

_GROWTH = 6  # a byte of text takes up to 6 bytes as JSON
_SLACK = 1 << 16


class ConfinedProcess:
    """A fork and its socket. Its runs are numbered: every message names the run it belongs to."""

    def __init__(
        self, fork: Fork, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, frame_bytes: int
    ) -> None:
        self.fork = fork
        self.alive = True
        self._messages = MessageReader(reader, frame_bytes)
        self._writer = writer
        self._frame_bytes = frame_bytes
        self._runs = 0

    async def start(self, message: Json) -> None:
        """Send the message that begins the next run."""
        self._runs += 1
        await self.send(message)

    async def send(self, message: Json) -> None:
        """Raises ConnectionError if the process died."""
        self._writer.write(pack(message, self._frame_bytes * _GROWTH + _SLACK))
        await self._writer.drain()

    async def next(self, messages_left: int) -> SessionMessage:
        """The next message of this run. Raises IncompleteReadError, ConnectionError or ViolationError."""
        return await self._messages.next(self._runs, messages_left)

    async def close(self) -> None:
        """Kill the process."""
        self.alive = False
        self.fork.close()
        self._writer.close()
        with suppress(OSError):
            await self._writer.wait_closed()

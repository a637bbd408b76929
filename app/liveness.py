"""Signs of life from a process without a port to its supervisor, by the protocol of systemd's watchdog.

The process sends datagrams to the Unix socket that NOTIFY_SOCKET names. Nothing else has to work for that: neither
the database nor a disk.
"""

import shutil
import signal
import socket
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Self

from app.loop import Loop

UNRESPONSIVE = signal.SIGPROF
"""Ends a process whose own watchdog finds that it does not respond."""
_INTERVAL = 0.5  # seconds between two signs
_SIGN = b"READY=1\nWATCHDOG=1"  # systemd wants the first line once, and ignores it later


class LivenessReporter:
    """While entered, reports that the running event loop runs. Without an address it does nothing."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._loop = Loop("report a sign of life", self._report, _INTERVAL)

    async def __aenter__(self) -> Self:
        self._loop.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._loop.stop()

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
        self._directory = Path(tempfile.mkdtemp(prefix="sage-"))
        self.address = str(self._directory / "notify")
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
        shutil.rmtree(self._directory, ignore_errors=True)

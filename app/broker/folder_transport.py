"""The broker where no BROKER_URL is set: messages as files in a folder that all processes of a host share.

Kombu's own filesystem transport lets a worker read a message that is half written, which ends the worker.
"""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Empty
from typing import Any
from uuid import uuid4

import msgspec
from kombu.exceptions import ChannelError
from kombu.transport import filesystem, virtual


class FolderChannel(filesystem.Channel):
    """Writes messages atomically, and delivers each to one worker."""

    def _put(self, queue: str, message: dict[str, Any], **_: Any) -> None:  # type: ignore[override]
        """Raises ChannelError if the message cannot be written."""
        name = f"{time.time_ns()}_{uuid4()}.{queue}.msg"
        file, partial = (Path(self.data_folder_out, each) for each in (name, f".{name}"))
        try:
            partial.write_bytes(msgspec.json.encode(message))
            partial.rename(file)
        except OSError as error:
            raise ChannelError(f"the message {file} cannot be written: {error.strerror}") from error

    def _get(self, queue: str, timeout: float | None = None) -> dict[str, Any]:  # noqa: ARG002
        """The oldest message. Raises Empty if there is none."""
        for name in sorted(os.listdir(self.data_folder_in)):
            if name.partition(".")[2] == f"{queue}.msg":
                file = Path(self.data_folder_in, name)
                try:
                    content = file.read_bytes()
                    file.unlink()  # only one worker succeeds
                    return msgspec.json.decode(content, type=dict[str, Any])
                except (FileNotFoundError, msgspec.DecodeError):  # taken by another, or cut off by a full disk
                    continue
        raise Empty

    def get_table(self, exchange: str) -> list[Any]:
        with self._locked():
            table: list[Any] = super().get_table(exchange)
            return table

    def _queue_bind(self, *arguments: Any) -> None:
        with self._locked():
            super()._queue_bind(*arguments)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Kombu truncates its table of queues before it locks it, so readers need a lock of our own."""
        self.control_folder.mkdir(parents=True, exist_ok=True)
        with (self.control_folder / "lock").open("ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


class FolderTransport(filesystem.Transport):
    """Keeps declared queues per connection: another connection may use other folders."""

    Channel = FolderChannel

    def __init__(self, client: Any, **options: Any) -> None:
        super().__init__(client, **options)
        self.state = virtual.BrokerState()

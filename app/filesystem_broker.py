"""The doorbell where no broker is named: messages as files in a folder that all processes of a host share.

Kombu's own transport writes a message where a worker may take it half written, which ends the worker.
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


class Channel(filesystem.Channel):
    """A message is there whole or not at all, and goes to one worker."""

    def _put(self, queue: str, message: dict[str, Any], **_: Any) -> None:  # type: ignore[override]
        """Raises ChannelError where it cannot be written."""
        name = f"{time.time_ns()}_{uuid4()}.{queue}.msg"
        file, draft = (Path(self.data_folder_out, each) for each in (name, f".{name}"))
        try:
            draft.write_bytes(msgspec.json.encode(message))
            draft.rename(file)
        except OSError as error:
            raise ChannelError(f"the message {file} cannot be written: {error.strerror}") from error

    def _get(self, queue: str, timeout: float | None = None) -> dict[str, Any]:  # noqa: ARG002
        """The oldest. Raises Empty where there is none."""
        for name in sorted(os.listdir(self.data_folder_in)):
            if name.partition(".")[2] == f"{queue}.msg":
                file = Path(self.data_folder_in, name)
                try:
                    content = file.read_bytes()
                    file.unlink()  # whoever succeeds has it
                    return msgspec.json.decode(content, type=dict[str, Any])
                except (FileNotFoundError, msgspec.DecodeError):  # another has it, or a disk was full
                    continue
        raise Empty

    def get_table(self, exchange: str) -> list[Any]:
        with self._alone():
            table: list[Any] = super().get_table(exchange)
            return table

    def _queue_bind(self, *arguments: Any) -> None:
        with self._alone():
            super()._queue_bind(*arguments)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """A table is emptied before it is locked: nobody may look at it then."""
        self.control_folder.mkdir(parents=True, exist_ok=True)
        with (self.control_folder / "lock").open("ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


class Transport(filesystem.Transport):
    """What a connection declared is remembered with it: another may be to other folders."""

    Channel = Channel

    def __init__(self, client: Any, **options: Any) -> None:
        super().__init__(client, **options)
        self.state = virtual.BrokerState()

"""Marks of calls that went out, on this machine's disk: a killed runner cannot tell the database any more."""

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Self
from uuid import UUID

import msgspec

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_KEPT_SECONDS = 86_400.0
_BEGUN, _SENT = b"b", b"s"


class _Mark(msgspec.Struct, array_like=True, frozen=True):
    boot: str
    seq: int
    sealed: bytes


class SentMarks:
    """A file for each task, of its latest call that must not be repeated: whether a byte of it may have left.

    What a killed process wrote is there, so that whoever goes on with its task knows the call was not sent. What a
    machine wrote before it crashed may not be: marks of an earlier boot count for nothing.
    """

    def __init__(self, directory: Path, boot: str) -> None:
        self._directory, self._boot = directory, boot

    @classmethod
    def open(cls, directory: Path) -> Self | None:
        """None where no marks can be kept: then the call that a killed runner began is in doubt."""
        try:
            boot = _BOOT.read_text().strip()
            directory.mkdir(parents=True, exist_ok=True)
        except OSError:
            return None
        for path in directory.iterdir():
            with suppress(OSError):
                if time.time() - path.stat().st_mtime > _KEPT_SECONDS:
                    path.unlink()
        return cls(directory, boot)

    def begin(self, task_id: UUID, seq: int, sealed: bytes) -> None:
        """Call before the row of the call is committed. Without room on the disk there is no mark."""
        content = _BEGUN + msgspec.msgpack.encode(_Mark(self._boot, seq, sealed))
        try:
            self._path(task_id).write_bytes(content)
        except OSError:
            self.forget(task_id)

    def sent(self, task_id: UUID) -> None:
        """Call before the first byte leaves. Raises OSError if that cannot be marked: then nothing may be sent."""
        try:
            file = os.open(self._path(task_id), os.O_WRONLY)
        except FileNotFoundError:
            return
        try:
            os.pwrite(file, _SENT, 0)
        finally:
            os.close(file)

    def unsent(self, task_id: UUID) -> tuple[int, bytes] | None:
        """The call, by its number and its sealed arguments, that began and of which no byte has left."""
        try:
            content = self._path(task_id).read_bytes()
            mark = msgspec.msgpack.decode(content[1:], type=_Mark)
        except (OSError, msgspec.DecodeError):
            return None
        is_unsent = content.startswith(_BEGUN) and mark.boot == self._boot
        return (mark.seq, mark.sealed) if is_unsent else None

    def forget(self, task_id: UUID) -> None:
        with suppress(OSError):
            self._path(task_id).unlink()

    def _path(self, task_id: UUID) -> Path:
        return self._directory / str(task_id)

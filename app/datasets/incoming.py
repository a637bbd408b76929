"""A dataset that is being uploaded: written to a file, hashed and validated as it arrives."""

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import IO

from app.base.errors import InvalidError, StorageError
from app.datasets.chat_lines import from_line

_BATCH = 1 << 20  # bytes that are handed to a thread at once
_MAX_LINE = 2 << 20  # bytes of one conversation
_PARTIAL = ".partial-"  # prefix of a file that is being written
_LEFT_SECONDS = 86_400.0  # since the last write to one that nobody writes any more


class IncomingDataset:
    """`path` is complete, and the other fields are true, once `receive` has returned."""

    def __init__(self, file: IO[bytes], max_bytes: int) -> None:
        self.path = Path(file.name)
        self.bytes = 0
        self.conversations = 0
        self._file = file
        self._max_bytes = max_bytes
        self._digest = hashlib.sha256()
        self._lines = 0
        self._rest = bytearray()  # of a line whose end has not arrived

    @property
    def digest(self) -> str:
        """The sha256 of the content, in hex."""
        return self._digest.hexdigest()

    async def receive(self, body: AsyncIterator[bytes]) -> None:
        """Raises InvalidError that names the line that does not fit, StorageError if it cannot be written."""
        batch = bytearray()
        async for chunk in body:
            batch += chunk
            if len(batch) >= _BATCH:
                await asyncio.to_thread(self._add, bytes(batch))
                batch.clear()
        await asyncio.to_thread(self._end, bytes(batch))

    def _add(self, data: bytes) -> None:
        self.bytes += len(data)
        if self.bytes > self._max_bytes:
            raise InvalidError(f"the file has more than {self._max_bytes:,} bytes: split it")
        self._digest.update(data)
        with _storing():
            self._file.write(data)
        whole, newline, rest = data.rpartition(b"\n")
        if newline:
            self._validate(bytes(self._rest) + whole + newline)
            self._rest.clear()
        self._rest += rest
        if len(self._rest) > _MAX_LINE:
            raise self._too_long(self._lines + 1)

    def _end(self, data: bytes) -> None:
        self._add(data)
        self._validate(bytes(self._rest))
        if not self.conversations:
            raise InvalidError("the file holds no conversation: it needs one JSON object per line")
        with _storing():
            self._file.flush()

    def _validate(self, lines: bytes) -> None:
        """The same lines, numbered in the same way, as those that a run reads."""
        for line in (lines if self._lines else lines.removeprefix(b"\xef\xbb\xbf")).splitlines():
            self._lines += 1
            if len(line) > _MAX_LINE:
                raise self._too_long(self._lines)
            if line.strip():
                try:
                    from_line(line)
                except InvalidError as error:
                    raise InvalidError(f"line {self._lines}: {error}") from error
                self.conversations += 1

    def _too_long(self, line: int) -> InvalidError:
        return InvalidError(f"line {line} has more than {_MAX_LINE:,} bytes: leave the conversation out")


@asynccontextmanager
async def incoming(directory: Path, max_bytes: int) -> AsyncIterator[IncomingDataset]:
    """The file is deleted on leaving, unless it was moved. Raises StorageError."""
    file = await asyncio.to_thread(_create_in, directory)
    dataset = IncomingDataset(file, max_bytes)
    try:
        yield dataset
    finally:
        file.close()
        dataset.path.unlink(missing_ok=True)


def _create_in(directory: Path) -> IO[bytes]:
    """Also delete what uploads left behind whose process was killed."""
    with _storing():
        directory.mkdir(parents=True, exist_ok=True)
        for left in directory.glob(f"{_PARTIAL}*"):
            with suppress(FileNotFoundError):
                if time.time() - left.stat().st_mtime > _LEFT_SECONDS:
                    left.unlink()
        return NamedTemporaryFile(prefix=_PARTIAL, dir=directory, delete=False)


@contextmanager
def _storing() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(f"the dataset cannot be written: {error.strerror or error}") from error

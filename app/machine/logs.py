"""The log files of the child processes, and of the embedded database."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from app.loop import Loop
from app.settings import Settings

_SECONDS = 1.0  # between two looks at their sizes
_TAIL_BYTES = 64 << 10  # of a log, read for the reason of a death


def rotation(settings: Settings) -> Loop:
    """While entered, keeps the logs in the data directory within SAGE_LOG_MB and SAGE_LOG_FILES."""

    async def rotate_all() -> None:
        for path in _logs(settings.data_dir):
            rotate(path, settings.log_mb << 20, settings.log_files)

    return Loop("rotate logs", rotate_all, _SECONDS, expected=(OSError,))


def rotate(path: Path, max_bytes: int, keep: int) -> None:
    """Empty a log beyond `max_bytes`, after a copy to `<name>.1`; older copies move on to `<name>.2` and so on, up
    to `keep` of them. Its process goes on writing to the same file, which it must have opened to append.

    On a full disk, what cannot be copied is dropped.
    """
    if not path.exists() or path.stat().st_size <= max_bytes:
        return
    copies = [path.with_name(f"{path.name}.{number}") for number in range(1, keep + 1)]
    for older, newer in zip(reversed(copies[1:]), reversed(copies[:-1]), strict=True):
        if newer.exists():
            newer.replace(older)
    if copies:
        try:
            shutil.copyfile(path, copies[0])
        except OSError:
            copies[0].unlink(missing_ok=True)
    os.truncate(path, 0)


def last_error(path: Path, start: int) -> str:
    """One line about why a process died: the last error after byte `start`, or the last line."""
    try:
        lines = _tail(path, start)
    except OSError as error:
        return f"its log cannot be read: {error.strerror}"
    errors = [line for line in lines if "Error: " in line]
    return (errors or lines or ["it logged nothing"])[-1].removeprefix("Error: ")


def says_what_to_mend(path: Path, start: int) -> bool:
    """The last line after byte `start` is the message of a command that refuses to run."""
    try:
        return any(line.startswith("Error: ") for line in _tail(path, start)[-1:])
    except OSError:
        return False


def _tail(path: Path, start: int) -> list[str]:
    """The last lines after byte `start`, or of the whole log if it is shorter, because it was rotated."""
    with path.open("rb") as log:
        size = log.seek(0, os.SEEK_END)
        log.seek(max(start if start <= size else 0, size - _TAIL_BYTES))
        return log.read().decode(errors="replace").strip().splitlines()


def _logs(data_dir: Path) -> Iterator[Path]:
    yield from (data_dir / "logs").glob("*.log")
    yield data_dir / "postgres" / "log"
    yield from (data_dir / "runs").glob("*/log")

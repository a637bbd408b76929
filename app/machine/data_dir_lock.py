"""The lock on a data directory: only one `sage up` may use it."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from app.errors import ConflictError, SettingError


class DataDirLockedError(ConflictError):
    """Another process uses this data directory."""


@contextmanager
def lock_data_dir(data_dir: Path) -> Iterator[None]:
    """Create the directory, and lock it until the block or this process ends.

    Raises DataDirLockedError if another process holds the lock, and SettingError if it cannot be written.
    """
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
        lock = (data_dir / "up.lock").open("w")
    except OSError as error:
        raise SettingError(f"{data_dir} cannot be written ({error.strerror}): set SAGE_DATA_DIR") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise DataDirLockedError(
                f"another `sage up` uses {data_dir}: stop it, or set SAGE_DATA_DIR"
            ) from error
        yield

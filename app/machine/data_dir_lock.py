"""The lock on a data directory: only one `sage up` may use it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from app.errors import ConflictError
from app.exclusive_lock import exclusive_lock


class DataDirLockedError(ConflictError):
    """Another process uses this data directory."""


@contextmanager
def lock_data_dir(data_dir: Path) -> Iterator[None]:
    """Create the directory, and lock it until the block or this process ends.

    Raises DataDirLockedError if another process holds the lock, and SettingError if it cannot be written.
    """
    taken = DataDirLockedError(f"another `sage up` uses {data_dir}: stop it, or set SAGE_DATA_DIR")
    with exclusive_lock(data_dir / "up.lock", taken):
        yield

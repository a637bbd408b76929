"""Who keeps the processes of a data directory: one at a time."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from app.errors import ConflictError, SettingError


class HeldError(ConflictError):
    """Another process keeps this data directory."""


@contextmanager
def hold(data_dir: Path) -> Iterator[None]:
    """Makes the directory and keeps it from others until the block, or this process, ends.

    Raises HeldError where another has it, and SettingError where it cannot be written.
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
            raise HeldError(f"another `sage up` runs on {data_dir}: stop it, or set SAGE_DATA_DIR") from error
        yield

"""A lock on a directory of this machine, which ends with the process that holds it."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from app.errors import ConflictError, SettingError


@contextmanager
def exclusive_lock(path: Path, taken: ConflictError) -> Iterator[None]:
    """Create the directory of the lock file `path`, and lock it until the block or this process ends.

    Raises `taken` if another process holds the lock, and SettingError if the directory cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = path.open("w")
    except OSError as error:
        raise SettingError(f"{path.parent} cannot be written ({error.strerror}): set SAGE_DATA_DIR") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise taken from error
        yield

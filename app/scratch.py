"""Directories for a while, which outlive not even a killed process: the next one removes what is left."""

import fcntl
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import mkdtemp

PARTIAL = ".partial-"
"""Prefix of what becomes an adapter, or part of a backup."""
_OWNER = ".owner"  # locked while its process lives
_UNOWNED_SECONDS = 86_400.0  # until one that names no owner is taken for left behind


@contextmanager
def scratch_directory(parent: Path, prefix: str = PARTIAL) -> Iterator[Path]:
    """A new directory in `parent`, readable by its user only, and removed at the end. Raises OSError."""
    remove_left(parent, prefix)
    directory = Path(mkdtemp(prefix=prefix, dir=parent))
    try:
        unnamed = directory / f"{_OWNER}.new"
        with unnamed.open("w") as owner:
            with suppress(OSError):  # a file system without locks
                fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
                unnamed.rename(directory / _OWNER)
            yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def remove_left(parent: Path, prefix: str = PARTIAL) -> None:
    """Remove those that ended processes have left, of this user."""
    for directory in parent.glob(f"{prefix}*"):
        with suppress(OSError):  # another process was faster, or it is another user's
            if directory.is_dir() and not directory.is_symlink():
                _remove_if_left(directory)


def _remove_if_left(directory: Path) -> None:
    try:
        owner = (directory / _OWNER).open("r+")
    except FileNotFoundError:
        if time.time() - directory.stat().st_mtime > _UNOWNED_SECONDS:
            shutil.rmtree(directory)
        return
    with owner:
        fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(directory)

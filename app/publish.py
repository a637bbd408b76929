"""Puts a file or a directory in its place, whole or not at all."""

import errno
import os
from pathlib import Path

_UNSUPPORTED = (errno.EBADF, errno.EINVAL)  # what file systems answer that cannot sync directories


def publish(partial: Path, target: Path) -> None:
    """Rename it once all of its content is on the disk: a power failure leaves no file of another content."""
    for path in (*sorted(each for each in partial.rglob("*") if each.is_file()), partial):
        _sync(path)
    partial.rename(target)
    _sync(target.parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if not (path.is_dir() and error.errno in _UNSUPPORTED):
            raise
    finally:
        os.close(descriptor)

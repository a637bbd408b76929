"""Atomic file writes: after a crash, also of the machine, a file has its old content or its new one, never part of
one.
"""

from pathlib import Path

from app.base.errors import StorageError
from app.base.files import publish


def write_atomically(content: bytes, path: Path) -> None:
    """Write `content` to `path`. Raises StorageError if the write fails; no partial file is left behind."""
    partial = path.with_name(f"{path.name}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_bytes(content)
        publish(partial, path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise StorageError(
            f"{path} could not be written ({error.strerror}): free disk space, then retry"
        ) from error

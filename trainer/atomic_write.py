"""Write a file of a run so that a crash leaves the old one or the new one, never half of one."""

import os
from pathlib import Path

from app.errors import StorageError


def keep(content: bytes, path: Path) -> None:
    """Raises StorageError if the disk does not take it; nothing is left of it then."""
    partial = path.with_name(f"{path.name}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_bytes(content)
        os.replace(partial, path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise StorageError(f"{path} could not be written ({error.strerror}): make room, then retry") from error

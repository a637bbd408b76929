"""The first admin key, in a file of the data directory that only its owner can read: `sage` finds it there."""

import os
from contextlib import suppress
from pathlib import Path

from app.errors import StorageError

_NAME = "admin.key"


def admin_key_file(data_dir: Path) -> Path:
    return data_dir / _NAME


def read_admin_key(data_dir: Path) -> str | None:
    """None if there is no such file, or this user may not read it."""
    with suppress(OSError):
        return admin_key_file(data_dir).read_text().strip() or None
    return None


def write_admin_key(data_dir: Path, secret: str) -> None:
    """Replaces an older one. Raises StorageError if it cannot be written."""
    path = admin_key_file(data_dir)
    try:
        path.unlink(missing_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(f"{secret}\n")
    except OSError as error:
        raise StorageError(f"{path} cannot be written ({error.strerror}): check SAGE_DATA_DIR") from error

"""The first admin key, in a file of the data directory that only its owner can read.

`sage` finds it from any directory: while a server runs, a file in its user's home, named after the port, has the
path of the data directory.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
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


@contextmanager
def noted_place(port: int, data_dir: Path) -> Iterator[None]:
    """Has `data_dir_at` find the data directory of the server at this port. Without a home to write to, it finds
    nothing.
    """
    with suppress(OSError, RuntimeError):
        place = _place(port)
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        place.write_text(str(data_dir.absolute()))
    try:
        yield
    finally:
        with suppress(OSError, RuntimeError):
            _place(port).unlink(missing_ok=True)


def data_dir_at(port: int) -> Path | None:
    """The data directory of the server of this user that runs at this port; None if there is none."""
    with suppress(OSError, RuntimeError):
        return Path(_place(port).read_text())
    return None


def _place(port: int) -> Path:
    return Path.home() / ".local" / "state" / "sage" / "servers" / str(port)


def write_admin_key(data_dir: Path, secret: str) -> None:
    """Replaces an older one. Raises StorageError if it cannot be written."""
    path = admin_key_file(data_dir)
    try:
        path.unlink(missing_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(f"{secret}\n")
    except OSError as error:
        raise StorageError(f"{path} cannot be written ({error.strerror}): check SAGE_DATA_DIR") from error

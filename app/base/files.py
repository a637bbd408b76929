"""Files and directories of this machine: put in place whole or not at all, kept for a while, locked by a process;
and the file of the first admin key, which `sage` finds from any directory.
"""

import errno
import fcntl
import hashlib
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import mkdtemp

from app.base.errors import ConflictError, SettingError, StorageError

PARTIAL = ".partial-"
"""Prefix of what becomes an adapter, or part of a backup."""
_OWNER = ".owner"  # locked while its process lives
_LEFT_SECONDS = 86_400.0  # until what is without an owner is taken for left behind
_UNSUPPORTED = (errno.EBADF, errno.EINVAL)  # what file systems answer that cannot sync directories


def publish(partial: Path, target: Path) -> None:
    """Rename it once all of its content is on the disk: a power failure leaves no file of another content."""
    for path in (*sorted(each for each in partial.rglob("*") if each.is_file()), partial):
        _sync(path)
    partial.rename(target)
    _sync(target.parent)


def write_atomically(content: bytes, path: Path) -> None:
    """Write `content` to `path`: after a crash, also of the machine, it has its old content or its new one.

    Raises StorageError if the write fails.
    """
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


def sha256_of(path: Path) -> str:
    """Of its content, in hex. Raises OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if not (path.is_dir() and error.errno in _UNSUPPORTED):
            raise
    finally:
        os.close(descriptor)


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
        if _is_old(directory):
            shutil.rmtree(directory)
        return
    with owner:
        fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(directory)


def remove_old(directory: Path, pattern: str = "*") -> None:
    """Remove the files that were last written a day ago or earlier, by processes that were killed."""
    for path in directory.glob(pattern):
        with suppress(OSError):  # another process was faster
            if _is_old(path):
                path.unlink()


def _is_old(path: Path) -> bool:
    return time.time() - path.stat().st_mtime > _LEFT_SECONDS


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


def admin_key_file(data_dir: Path) -> Path:
    return data_dir / "admin.key"


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
    """Raises as `write_private`."""
    write_private(admin_key_file(data_dir), f"{secret}\n")


def write_private(path: Path, text: str) -> None:
    """A file that only this user can read, in place of an older one. Raises StorageError."""
    try:
        path.unlink(missing_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise StorageError(f"{path} cannot be written ({error.strerror}): check SAGE_DATA_DIR") from error

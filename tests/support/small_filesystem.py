"""A file system of a few megabytes, to be filled to the last byte."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

FILLER = "filler"


@contextmanager
def small_filesystem(directory: Path, megabytes: int) -> Iterator[Path]:
    """Mount one at `directory`. Skips the test where this user may not mount."""
    directory.mkdir()
    if not _mount(directory, megabytes):
        pytest.skip("mounting a file system takes privileges")
    try:
        yield directory
    finally:
        subprocess.run(["umount", "--lazy", str(directory)], check=True)


def can_mount() -> bool:
    """This user may mount a file system."""
    with TemporaryDirectory() as directory:
        mounted = _mount(Path(directory), 1)
        if mounted:
            subprocess.run(["umount", directory], check=True)
    return mounted


def _mount(directory: Path, megabytes: int) -> bool:
    mount = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(directory)]
    try:
        subprocess.run(mount, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        return False
    return True


def fill(directory: Path, leave: int = 0) -> Path:
    """Write a file until so many bytes are free. Returns it."""
    path = directory / FILLER
    with path.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(b"x" * 4096)
    if leave:
        with path.open("r+b") as file:
            file.truncate(path.stat().st_size - leave)
    return path

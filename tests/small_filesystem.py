"""A file system of a few megabytes, to be filled to the last byte."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest


@contextmanager
def small_filesystem(directory: Path, megabytes: int) -> Iterator[Path]:
    """Mount one at `directory`. Skips the test where this user may not mount."""
    directory.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(directory)]
    try:
        subprocess.run(mount, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("mounting a file system takes privileges")
    try:
        yield directory
    finally:
        subprocess.run(["umount", "--lazy", str(directory)], check=True)


def fill(directory: Path, leave: int = 0) -> Path:
    """Write a file until so many bytes are free. Returns it."""
    path = directory / "filler"
    with path.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(b"x" * 4096)
    if leave:
        with path.open("r+b") as file:
            file.truncate(path.stat().st_size - leave)
    return path

"""Puts an adapter in its directory, where it stays: whole, and on the disk."""

import shutil
from pathlib import Path

from app.base.files import publish
from app.engine.adapter_files import CONFIG, WEIGHTS, content_hash


def is_intact(path: Path) -> bool:
    """Whether it has the files that it is named after. A power failure, or a disk, may have damaged them."""
    try:
        return all((path / file).is_file() for file in (CONFIG, WEIGHTS)) and content_hash(path) == path.name
    except OSError:
        return False


def place(contents: Path, final: Path) -> None:
    """Rename a directory of checked files to `final`, which is named after them.

    An intact one that is there stays, a damaged one is replaced. Raises OSError.
    """
    if final.exists() and not is_intact(final):
        shutil.rmtree(final)
    try:
        publish(contents, final)
    except OSError:
        if not is_intact(final):  # no other process was faster
            raise

"""What a run read, kept in its directory: a second attempt learns from the same, whatever was served meanwhile."""

import os
from pathlib import Path
from typing import TypeVar

import msgspec

from app.errors import InvalidError
from trainer.logged.read import Best, Logged

Read = TypeVar("Read", Logged, Best)


def remember(read: Logged | Best, path: Path) -> None:
    """Whole or not at all. OSError if the disk does not take it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_bytes(msgspec.msgpack.encode(read))
    os.replace(partial, path)


def recall(path: Path, kind: type[Read]) -> Read | None:
    """None: nothing was read yet. Raises InvalidError for a file that is none of ours."""
    if not path.exists():
        return None
    try:
        return msgspec.msgpack.decode(path.read_bytes(), type=kind)
    except msgspec.DecodeError as error:
        raise InvalidError(
            f"{path} cannot be read ({error}): delete it, and the run reads its data anew"
        ) from error

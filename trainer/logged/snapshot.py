"""What a run read, kept in its directory: a second attempt learns from the same, whatever was served meanwhile."""

import os
from pathlib import Path
from uuid import UUID

import msgspec

from app.db.session import Sessions
from app.errors import InvalidError
from app.run_settings import RunSettings
from trainer.logged.faults import BaseModel
from trainer.logged.read import Logged, read_logged

_NAME = "logged.msgpack"


async def read_once(
    sessions: Sessions, project_id: UUID, settings: RunSettings, base: BaseModel, directory: Path
) -> Logged:
    """As `read_logged` at the first call for a directory; later the same again.

    Raises also InvalidError for a file that is none of ours, and OSError if the disk does not take it.
    """
    path = directory / _NAME
    if path.exists():
        return _recall(path)
    async with sessions() as session:
        logged = await read_logged(session, project_id, settings, base)
    _store(logged, path)
    return logged


def _store(logged: Logged, path: Path) -> None:
    """Whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_bytes(msgspec.msgpack.encode(logged))
    os.replace(partial, path)


def _recall(path: Path) -> Logged:
    try:
        return msgspec.msgpack.decode(path.read_bytes(), type=Logged)
    except msgspec.DecodeError as error:
        raise InvalidError(
            f"{path} cannot be read ({error}): delete it, and the run reads its data anew"
        ) from error

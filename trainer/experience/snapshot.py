"""What a run read, kept in its directory: a second attempt learns from the same, whatever was served meanwhile."""

from pathlib import Path
from uuid import UUID

import msgspec

from app.db.database import Sessions
from app.errors import InvalidError
from app.run_settings import RunSettings
from trainer.atomic_write import write_atomically
from trainer.experience.filters import BaseModel
from trainer.experience.read import Logged, read_logged

_NAME = "logged.msgpack"


async def read_once(
    sessions: Sessions, project_id: UUID, settings: RunSettings, base: BaseModel, directory: Path
) -> Logged:
    """As `read_logged` at the first call for a directory; later the same again.

    Raises also InvalidError for a file that is none of ours, and StorageError if the disk does not take it.
    """
    path = directory / _NAME
    if path.exists():
        return _recall(path)
    async with sessions() as session:
        logged = await read_logged(session, project_id, settings, base)
    write_atomically(msgspec.msgpack.encode(logged), path)
    return logged


def _recall(path: Path) -> Logged:
    try:
        return msgspec.msgpack.decode(path.read_bytes(), type=Logged)
    except msgspec.DecodeError as error:
        raise InvalidError(
            f"{path} cannot be read ({error}): delete it, and the run reads its data anew"
        ) from error

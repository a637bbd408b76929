"""A run's logged experience, kept in its directory so that a retry learns from the same data."""

from pathlib import Path
from uuid import UUID

import msgspec

from app.db.database import Sessions
from app.errors import InvalidError
from app.run_settings import RunSettings
from trainer.atomic_write import write_atomically
from trainer.experience.filters import BaseModel
from trainer.experience.read_experience import LoggedExperience, read_logged

_NAME = "logged.msgpack"


async def read_once(
    sessions: Sessions, project_id: UUID, settings: RunSettings, base: BaseModel, directory: Path
) -> LoggedExperience:
    """`read_logged` on the first call for a directory, the same result on later ones.

    Raises also InvalidError for a snapshot that cannot be read, and StorageError if it cannot be written.
    """
    path = directory / _NAME
    if path.exists():
        return _load(path)
    async with sessions() as session:
        experience = await read_logged(session, project_id, settings, base)
    write_atomically(msgspec.msgpack.encode(experience), path)
    return experience


def _load(path: Path) -> LoggedExperience:
    try:
        return msgspec.msgpack.decode(path.read_bytes(), type=LoggedExperience)
    except msgspec.DecodeError as error:
        raise InvalidError(
            f"{path} cannot be read ({error}): delete it to make the run read its data again"
        ) from error

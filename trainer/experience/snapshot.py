"""A run's logged experience, kept in its directory so that a retry learns from the same data."""

from collections.abc import Awaitable, Callable, Collection
from pathlib import Path
from typing import TypeAlias
from uuid import UUID

import msgspec

from app.db.database import Sessions, reading
from app.errors import InvalidError
from app.run_settings import RunSettings
from app.settings import Settings
from trainer.atomic_write import write_atomically
from trainer.experience.filters import BaseModel
from trainer.experience.judging import judge_window
from trainer.experience.read_experience import LoggedExperience, read_logged

_NAME = "logged.msgpack"

RecordTasks: TypeAlias = Callable[[Collection[UUID]], Awaitable[bool]]
"""Records the tasks that a run learns from. False if one of them was erased since it was read."""


async def read_once(
    sessions: Sessions,
    project_id: UUID,
    settings: RunSettings,
    base: BaseModel,
    directory: Path,
    record: RecordTasks,
    *,
    deployment: Settings = Settings(),  # noqa: B008  frozen
) -> LoggedExperience:
    """`read_logged` on the first call for a directory, the same result on later ones that continue the same
    weights. The judge of the deployment is asked before.

    Raises also InvalidError for a snapshot that cannot be read, and StorageError if it cannot be written.
    """
    path = directory / _NAME
    if path.exists() and (kept := _load(path)).start == base.start:
        return kept
    await judge_window(sessions, project_id, settings, deployment)
    while True:  # each round again has fewer tasks
        async with reading(sessions) as session:
            experience = await read_logged(session, project_id, settings, base)
        if await record({each.trajectory.task.id for step in experience.steps for each in step}):
            break
    write_atomically(msgspec.msgpack.encode(experience), path)
    return experience


def _load(path: Path) -> LoggedExperience:
    try:
        return msgspec.msgpack.decode(path.read_bytes(), type=LoggedExperience)
    except msgspec.DecodeError as error:
        raise InvalidError(
            f"{path} cannot be read ({error}): delete it to make the run read its data again"
        ) from error

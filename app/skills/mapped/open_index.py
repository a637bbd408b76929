"""Opens the index of a project from its mapped files, if they are intact and of this database."""

import asyncio
from typing import NamedTuple
from uuid import UUID

import structlog

from app.db import skill_changes
from app.db.database import Sessions, reading
from app.skills.mapped.index_files import DamagedIndexError, IndexFiles
from app.skills.mapped.mapped_index import MappedIndex

_UNMAPPED = 20_000  # skills of a project that are searched without files

log = structlog.get_logger(__name__)


class OpenedIndex(NamedTuple):
    """What files hold of a project as of revision `rev`; without files, nothing up to it is known."""

    rev: int
    name: str | None = None  # of the files
    mapped: MappedIndex | None = None


async def open_index(sessions: Sessions, files: IndexFiles, project_id: UUID, embedder: str | None) -> OpenedIndex:
    """Discards files that cannot be used, so that others are written. Until then the newest skills are found."""
    name = files.current(project_id)
    if name is not None:
        try:
            manifest, skills = await asyncio.to_thread(files.open, project_id, name)
            async with reading(sessions) as session:
                if not await skill_changes.has_state(
                    session, project_id, manifest.rev, manifest.last, manifest.last_rev
                ):
                    raise DamagedIndexError(f"{name} is of another state of the database")
            mapped = MappedIndex(skills, compare_vectors=manifest.embedder == embedder)
            return OpenedIndex(manifest.rev, name, mapped)
        except DamagedIndexError as error:
            files.discard(project_id, name)
            log.warning(
                "index files are discarded: others will be written", project=str(project_id), cause=str(error)
            )
    async with reading(sessions) as session:
        rev = await skill_changes.rev_before(session, project_id, _UNMAPPED)
    if rev:
        log.warning(
            f"only the newest {_UNMAPPED} skills are found until index files are written", project=str(project_id)
        )
    return OpenedIndex(rev)

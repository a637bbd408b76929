"""Has the mapped files of projects written, once enough of their skills have changed."""

import asyncio
import os
from uuid import UUID

import structlog

from app.base.loop import Loop
from app.base.processes import python_module
from app.db import skill_changes
from app.db.database import TRANSIENT, Sessions
from app.skills.mapped.build_process import BUSY
from app.skills.mapped.index_files import IndexFiles

_CHANGES = 2_000  # skills that every process keeps in memory before files are worth writing
_SHARE = 100  # of more skills than that, a hundredth
_SECONDS = 10.0  # between two looks at the database
_LONGEST_PAUSE = 600.0

log = structlog.get_logger(__name__)


class IndexUpkeep:
    """Any number of processes of a host may do this: one at a time writes the files of a project."""

    def __init__(
        self, sessions: Sessions, files: IndexFiles, database_url: str, *, changes: int = _CHANGES
    ) -> None:
        self._sessions = sessions
        self._files = files
        self._database_url = database_url
        self._changes = changes
        self._seen: dict[UUID, tuple[int, str | None]] = {}  # revision and files in use when none were due
        self._failures = 0

    def loop(self) -> Loop:
        return Loop("write index files", self.write_due, _SECONDS, expected=(*TRANSIENT, OSError))

    async def write_due(self) -> float | None:
        """Write the files of all projects that need new ones. Returns the seconds until the next attempt."""
        async with self._sessions() as session:
            revs = await skill_changes.revs(session)
        await asyncio.to_thread(self._files.keep_only, set(revs))
        due = [each for each in revs.items() if (each[1], self._files.current(each[0])) != self._seen.get(each[0])]
        done = [await self._write(project) for project, rev in due if await self._is_due(project, rev)]
        self._failures = 0 if all(done) else self._failures + 1
        return None if not self._failures else min(_SECONDS * 2**self._failures, _LONGEST_PAUSE)

    async def _is_due(self, project_id: UUID, latest: int) -> bool:
        name = self._files.current(project_id)
        manifest = await asyncio.to_thread(self._files.manifest, project_id)
        rev, count = (manifest.rev, manifest.count) if manifest else (0, 0)
        limit = max(self._changes, count // _SHARE)
        async with self._sessions() as session:
            changed = await skill_changes.count_changes(session, project_id, rev, limit)
        if changed < limit:
            self._seen[project_id] = latest, name
        return changed >= limit

    async def _write(self, project_id: UUID) -> bool:
        """False if it failed; what was there is used further."""
        process = await asyncio.create_subprocess_exec(
            *python_module("app.skills.mapped.build_process", str(self._files.directory), str(project_id)),
            env={**os.environ, "DATABASE_URL": self._database_url},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            _, said = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode in (0, BUSY):
            return True
        cause = said.decode(errors="replace").strip().rpartition("\n")[2] or f"exit code {process.returncode}"
        log.warning("index files could not be written: those in use stay", project=str(project_id), cause=cause)
        return False

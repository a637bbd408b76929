"""What a run keeps on its host: files to be resumed from, until it never will be, and its log.

The end of the log is copied into the database, where every API server can read it.
"""

import asyncio
import os
import shutil
import time
from pathlib import Path
from uuid import UUID

from sqlalchemy import and_, or_, select

from app.base.files import write_atomically
from app.db import tables
from app.db.database import Sessions
from app.db.queries import in_array
from app.db.tables import OPEN_RUNS, RunState
from app.projects import audit
from app.runs import store as runs

_LOG = "log"
_PROJECT = "project"  # the id of the run's, by which it is known once its row is gone
_MOST = 64 * 1024  # bytes of a log
_SECONDS = 5.0  # between two copies of it while the run goes on


def note_project(directory: Path, project_id: UUID) -> None:
    """Call it before the run keeps anything in its directory. Raises StorageError."""
    write_atomically(str(project_id).encode(), directory / _PROJECT)


def clear(directory: Path) -> None:
    """Delete checkpoints and copies of tasks. The log stays."""
    for path in _resumable(directory):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


async def clear_ended(sessions: Sessions, runs: Path) -> list[UUID]:
    """Clear the directories in `runs` of runs that are done, that learned from a task that is deleted, or whose
    project was deleted.

    Returns the runs. A process that was killed may have left the files, and those of other runs are for a retry.
    """
    found = await asyncio.to_thread(_with_files, runs)
    run = tables.TrainingRun
    ended = or_(run.state == RunState.DONE, and_(run.erased, run.state.not_in(OPEN_RUNS)))
    async with sessions() as session:
        rows = await session.execute(select(run.id, ended).where(in_array(run.id, found)))
        over = {run_id: bool(is_over) for run_id, is_over in rows}
        projects = {each: _project_of(found[each]) for each in found.keys() - over.keys()}
        deleted = await audit.deleted(session, [each for each in projects.values() if each is not None])
    over |= {each: project in deleted for each, project in projects.items()}
    ids = [each for each, is_over in over.items() if is_over]
    for each in ids:
        await asyncio.to_thread(clear, found[each])
    return ids


def _with_files(runs: Path) -> dict[UUID, Path]:
    directories = [path for path in runs.iterdir() if path.is_dir()] if runs.is_dir() else []
    return {UUID(path.name): path for path in directories if _is_id(path.name) and _resumable(path)}


def _project_of(directory: Path) -> UUID | None:
    """None for a run of an earlier version, which noted none."""
    try:
        return UUID((directory / _PROJECT).read_text())
    except (OSError, ValueError):
        return None


def _resumable(directory: Path) -> list[Path]:
    return [path for path in directory.iterdir() if path.name not in (_LOG, _PROJECT) and path.suffix != ".log"]


def _is_id(name: str) -> bool:
    try:
        return str(UUID(name)) == name
    except ValueError:
        return False


class LogCopy:
    """The stored copy of one run's log."""

    def __init__(self, run_id: UUID, directory: Path) -> None:
        """`directory` is the run's."""
        self._run_id, self._path = run_id, directory / "log"
        self._copied: str | None = None
        self._at = -_SECONDS

    async def refresh(self, sessions: Sessions) -> None:
        """Call it often: it copies every few seconds, if there is anything new."""
        if time.monotonic() - self._at >= _SECONDS:
            await self.copy(sessions)
            self._at = time.monotonic()

    async def copy(self, sessions: Sessions) -> None:
        """Copy at most the last 64 KiB, from the beginning of a line."""
        end = await asyncio.to_thread(_end, self._path)
        if end != self._copied:
            async with sessions.begin() as session:
                await runs.store(session, self._run_id, end)
            self._copied = end


def _end(path: Path) -> str:
    """Empty for a log that cannot be read."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _MOST))
            content = file.read(_MOST)
    except OSError:
        return ""
    text = content.decode("utf-8", "replace").replace("\0", "\N{REPLACEMENT CHARACTER}")
    return text.partition("\n")[2] if size > _MOST else text

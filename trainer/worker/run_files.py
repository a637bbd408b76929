"""Deletes what runs keep on this host to be resumed, once they never will be."""

import asyncio
import shutil
from pathlib import Path
from uuid import UUID

from sqlalchemy import and_, or_, select

from app.db import models
from app.db.database import Sessions
from app.db.in_array import in_array
from app.db.learning import OPEN_RUNS
from app.db.models import RunState

_LOG = "log"


def clear(directory: Path) -> None:
    """Delete checkpoints and copies of tasks. The log stays."""
    for path in _resumable(directory):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


async def clear_ended(sessions: Sessions, runs: Path) -> list[UUID]:
    """Clear the directories in `runs` of runs that are done, or that learned from a task that is erased.

    Returns the runs. A process that was killed may have left the files, and those of other runs are for a retry.
    """
    found = await asyncio.to_thread(_with_files, runs)
    run = models.TrainingRun
    ended = or_(run.state == RunState.DONE, and_(run.erased, run.state.not_in(OPEN_RUNS)))
    async with sessions() as session:
        ids = list(await session.scalars(select(run.id).where(in_array(run.id, found), ended)))
    for each in ids:
        await asyncio.to_thread(clear, found[each])
    return ids


def _with_files(runs: Path) -> dict[UUID, Path]:
    directories = [path for path in runs.iterdir() if path.is_dir()] if runs.is_dir() else []
    return {UUID(path.name): path for path in directories if _is_id(path.name) and _resumable(path)}


def _resumable(directory: Path) -> list[Path]:
    return [path for path in directory.iterdir() if path.name != _LOG and path.suffix != ".log"]


def _is_id(name: str) -> bool:
    try:
        return str(UUID(name)) == name
    except ValueError:
        return False

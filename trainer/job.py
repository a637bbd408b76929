"""What a training run is given, how it tells how far it is, and what it leaves."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Protocol
from uuid import UUID

import msgspec
from sqlalchemy.ext.asyncio import AsyncSession

from app.errors import AppError
from app.records import Json
from app.run_settings import RunSettings
from app.settings import Settings


class RunCancelledError(AppError):
    """Someone asked for the end of this run."""

    status = 409


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt at a training run."""

    id: UUID  # of the run
    project_id: UUID
    project: str  # its name
    settings: RunSettings
    directory: Path  # of this run alone, kept between attempts: checkpoints and logs
    deployment: Settings  # where database, engines and adapters are
    attempt: int = 1


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What a run leaves; stored with its row."""

    adapter: str = ""  # content hash
    release_id: UUID | None = None
    decision: str = ""  # of the gate: passed, rejected or waiting
    reason: str = ""
    data: dict[str, Json] = {}  # trajectories, groups and tokens it learned from, and why others were dropped
    figures: dict[str, Json] = {}


def run_directory(settings: Settings, run_id: UUID) -> Path:
    """Of one run alone; its log lies there, too."""
    return settings.data_dir.absolute() / "runs" / str(run_id)


class Progress(Protocol):
    """Where a run tells how far it is."""

    async def step(self, index: int, total: int, metrics: dict[str, Json]) -> None:
        """Step `index` of `total`, from 1, is done. Raises RunCancelledError; ConflictError: the run was lost."""

    async def hold(self, session: AsyncSession) -> None:
        """Before a change that outlasts the run, in its transaction: nobody else can take the run up till it ends.

        Raises as `step`.
        """


CarryOut = Callable[[Job, Progress], Awaitable[Result]]
"""Carries a run out. Raises AppError, whose name and message are stored with the run."""

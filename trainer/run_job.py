"""The interface of a training run: its input, its progress and its result."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Protocol
from uuid import UUID

import msgspec
from sqlalchemy.ext.asyncio import AsyncSession

from app.base.errors import AppError
from app.base.run_settings import RunSettings
from app.base.settings import Settings
from app.base.values import Json


class RunCancelledError(AppError):
    """The cancellation of this run was requested."""

    status = 409


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt at a training run."""

    id: UUID  # of the run
    project_id: UUID
    project: str  # its name
    settings: RunSettings
    directory: Path  # of this run only, kept between attempts: checkpoints and logs
    deployment: Settings  # where database, engines and adapters are
    attempt: int = 1


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a run, stored with its row."""

    adapter: str = ""  # content hash
    release_id: UUID | None = None
    decision: str = ""  # of the gate: passed, rejected or waiting
    reason: str = ""
    data: dict[str, Json] = {}  # trajectories, groups and tokens it learned from, and why others were dropped
    evidence: dict[str, Json] = {}  # of the gate, as on the release; of kind `exam` what was found of each release


def run_directory(settings: Settings, run_id: UUID) -> Path:
    """The directory of a run's checkpoints and log."""
    return runs_directory(settings) / str(run_id)


def runs_directory(settings: Settings) -> Path:
    """Has a directory for each run that this host executed."""
    return settings.data_dir.absolute() / "runs"


class RunProgress(Protocol):
    """Receives the progress of a run."""

    def part(self, phase: str, done: int, total: int) -> None:
        """Show how much is done of what the run does now. Returns at once: it is a hint."""

    async def step(self, index: int, total: int, metrics: dict[str, Json]) -> None:
        """Report step `index` of `total`, from 1, as done. Raises RunCancelledError; ConflictError if lost."""

    async def hold(self, session: AsyncSession) -> None:
        """Keep others from claiming the run until this transaction ends, for changes that outlast the run.

        Raises as `step`.
        """


ExecuteRun = Callable[[Job, RunProgress], Awaitable[Result]]
"""Executes a run. Raises AppError, whose name and message are stored with the run."""

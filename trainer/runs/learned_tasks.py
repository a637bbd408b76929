"""Records which served tasks a run learns from, so that their erasure can name it."""

from collections.abc import Awaitable, Callable, Collection
from pathlib import Path
from uuid import UUID

from app.db import learning
from app.db.database import Sessions
from trainer.run_job import Job, RunProgress
from trainer.runs.start_adapter import name_of


def recorder(
    job: Job, progress: RunProgress, sessions: Sessions, start: Path | None
) -> Callable[[Collection[UUID]], Awaitable[bool]]:
    """A function that records the tasks, the adapter that the run continues and its rate, before it learns.

    It returns False, and records none, if a task was erased since it was read: then read again. Raises what
    `progress` raises.
    """

    async def record(task_ids: Collection[UUID]) -> bool:
        async with sessions.begin() as session:
            await progress.hold(session)
            return await learning.record(session, job.id, name_of(start), task_ids, job.settings.lr)

    return record

"""Tasks that cannot go on for now, through no fault of their own."""

from app.db import models, releases
from app.db.database import Sessions
from app.errors import AdapterError, AppError, EngineError, EngineRefusalError, SandboxError

_MAX_SANDBOX_FAILURES = 3


class PostponedError(Exception):
    """The task is to be handed back, and resumed after a while; its attempt does not count.

    Until then, other tasks of its project would fare the same, unless it was the sandbox.
    """

    def __init__(self, cause: str, *, sandbox: bool) -> None:
        super().__init__(cause)
        self.sandbox = sandbox


async def is_postponed(sessions: Sessions, row: models.Task, error: AppError) -> bool:
    """Whether the task goes on once what failed works again.

    A sandbox that always fails may be the task's doing, and a canary that cannot be loaded is evidence against it.
    """
    if isinstance(error, SandboxError):
        return row.sandbox_failures < _MAX_SANDBOX_FAILURES
    if isinstance(error, AdapterError):
        async with sessions() as session:
            return (await releases.active(session, row.project_id)).id == row.release_id
    return isinstance(error, EngineError) and not isinstance(error, EngineRefusalError)

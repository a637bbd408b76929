"""Tasks that cannot go on for now, through no fault of their own."""

from app.base.errors import AdapterError, AppError, EngineError, EngineRefusalError, SandboxError
from app.db import tables
from app.db.database import Sessions
from app.db.tables import ReleaseState
from app.engine.protocol import MAX_BROKEN
from app.releases import store as releases

_MAX_SANDBOX_FAILURES = 3
_SERVING = (ReleaseState.ACTIVE, ReleaseState.CANARY)


class PostponedError(Exception):
    """The task is to be handed back, and resumed after a while; its attempt does not count.

    Until then, other tasks of its project would fare the same, unless it was the sandbox. With a `shortage` of the
    host, all tasks would. `broken_answers` of a hosted model count for the task.
    """

    def __init__(
        self, cause: str, *, sandbox: bool = False, shortage: str | None = None, broken_answers: int = 0
    ) -> None:
        super().__init__(cause)
        self.sandbox = sandbox
        self.broken_answers = broken_answers
        self.shortage = shortage


async def is_postponed(sessions: Sessions, row: tables.Task, error: AppError) -> bool:
    """Whether the task goes on once what failed works again.

    A sandbox that always fails may be the task's doing, and so may be a hosted model whose answers break off: each
    may have been billed. An adapter is loaded again while its release serves.
    """
    if isinstance(error, SandboxError):
        return row.sandbox_failures < _MAX_SANDBOX_FAILURES
    if isinstance(error, AdapterError) and row.release_id is not None:
        async with sessions() as session:
            return (await releases.get(session, row.release_id)).state in _SERVING
    if isinstance(error, EngineError) and error.broken_answers:
        return row.broken_answers + error.broken_answers < MAX_BROKEN
    return is_passing(error)


def is_passing(error: AppError) -> bool:
    """Whether a model cannot be asked for now, and nothing was billed."""
    is_final = isinstance(error, EngineRefusalError)
    return isinstance(error, EngineError) and not is_final and not error.broken_answers

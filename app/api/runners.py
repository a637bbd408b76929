"""Route for the runner processes."""

from datetime import datetime

import msgspec
from litestar import Controller, get

from app.base.errors import ForbiddenError
from app.db import runners
from app.web.access import Caller, Db
from app.web.fields import columns
from app.web.problem import problems


class RunnerView(msgspec.Struct, frozen=True, kw_only=True):
    """`in_flight` are tasks, `capacity` their limit; `error` is why it cannot execute any, `faults` what is wrong
    by part. One that is `draining` only ends what it has. `prompt_hash` is of the prompt it serves with.
    """

    id: str
    host: str
    pid: int
    started_at: datetime
    seen_at: datetime
    in_flight: int
    capacity: int
    memory_bytes: int
    sandbox: str
    prompt: str | None = msgspec.field(name="prompt_hash")
    draining: bool
    error: str | None
    faults: dict[str, str]


class RunnerController(Controller):
    path = "/runners"
    tags = ("Health",)
    opt = {"scope": "admin"}  # noqa: RUF012

    @get(summary="List runners", responses=problems(401, 403))
    async def index(self, session: Db, access: Caller) -> list[RunnerView]:
        """The processes that execute tasks and reported within the last seconds, oldest first. Not for a key that
        is limited to a project.
        """
        if access.project_id is not None:
            raise ForbiddenError("this key is limited to a project, and runners belong to all projects")
        return [RunnerView(**columns(each, RunnerView)) for each in await runners.live(session)]

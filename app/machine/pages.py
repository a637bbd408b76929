"""Health: whether tasks can be served, what to do if not, and the processes, servers and disks behind it."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final
from uuid import UUID

import msgspec
from litestar import Controller, Response, get
from litestar.di import NamedDependency
from sqlalchemy.ext.asyncio import AsyncSession

from app.db import runners, tables
from app.db.disk_space import Disk
from app.db.tables import AuditAction
from app.engine.client import ModelServer
from app.machine.routes import ReadinessCheck, readiness
from app.projects import audit
from app.releases import store as releases
from app.runs import store as runs
from app.tasks import queue
from app.tasks.queue import QueueDepth
from app.web.access import Db
from app.web.pages import Visitor, page

_SWAPS: Final = (AuditAction.ACTIVATED, AuditAction.REFUSED, AuditAction.RESTORED)
_MEANINGS: Final = {
    "database": "it answers, with the schema of this version",
    "engine": "a model server can be used",
    "adapters": "the adapters of active releases can be loaded",
    "model": "the model can use the APIs of the projects, as far as it was tried",
    "hosted models": "those that serve have answered their latest request",
    "process": "this API process is not shutting down",
    "runners": "a runner can execute tasks",
    "claims": "runners claim tasks",
    "sandbox": "runners can open sandboxes",
    "host": "the runners' hosts have files, processes, memory and disk space left",
    "disk": "there is space for the API and the runners",
    "notifications": "this process hears of changes in the database",
    "background": "the background work of this process succeeds",
}


class Fleet(msgspec.Struct, frozen=True, kw_only=True):
    """What all projects share."""

    queue: QueueDepth
    servers: Sequence[ModelServer]
    serving: Mapping[str, list[str]]  # by adapter, the releases that serve with it
    runners: Sequence[tables.RunnerProcess]
    workers: Sequence[str]
    runs: runs.OpenRuns
    disks: Sequence[Disk]
    swaps: Sequence[tables.AuditEntry]
    numbers: Mapping[UUID, int]  # of the releases that were swapped


class HealthPages(Controller):
    path = "/health"
    opt = {"scope": "admin"}  # noqa: RUF012

    @get()
    async def show(
        self,
        visit: Visitor,
        session: Db,
        readiness_checks: NamedDependency[Mapping[str, ReadinessCheck]],
        model_servers: NamedDependency[Callable[[], Sequence[ModelServer]]],
        disks: NamedDependency[Callable[[], Awaitable[Sequence[Disk]]]],
    ) -> Response[str]:
        """A key of one project sees whether the server is ready, and not what other projects share with it."""
        all_ = visit.access.project_id is None
        fleet = await _fleet(session, model_servers(), await disks()) if all_ else None
        found = await readiness(readiness_checks)
        return page(visit, "health.html", found=found, meanings=_MEANINGS, fleet=fleet)


async def _fleet(session: AsyncSession, servers: Sequence[ModelServer], disks: Sequence[Disk]) -> Fleet:
    serving: dict[str, list[str]] = {}
    for project, release in await releases.serving(session):
        serving.setdefault(release.model, []).append(f"{project}, release {release.number}")
    swaps = (await audit.page(session, None, actions=_SWAPS, limit=10)).items
    return Fleet(
        queue=await queue.read(session),
        servers=servers,
        serving=serving,
        runners=await runners.live(session),
        workers=await runs.workers(session),
        runs=await runs.progress(session),
        disks=disks,
        swaps=swaps,
        numbers=await releases.numbers(session, {each.release_id for each in swaps if each.release_id}),
    )

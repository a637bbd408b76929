"""Route for the watch of a release: the comparison with the release that it replaced."""

from datetime import datetime
from typing import Self
from uuid import UUID

import msgspec
from litestar import Controller, get
from litestar.params import FromPath

from app.db import releases, tables
from app.release import watch
from app.release.matched_pairs import PairedDifference
from app.release.watch import WatchBaseline, WatchStatus
from app.release.watch_decision import NotCounted, ScenarioComparison, WatchAction
from app.web.access import Caller, Db
from app.web.problem import problems


class WatchView(msgspec.Struct, frozen=True, kw_only=True):
    """A promoted release compared with the one that served before, its `baseline`. `action` is the automatic
    decision so far.

    Pairs of tasks of one scenario are compared. The intervals of all metrics hold simultaneously, at any time,
    with 95 % confidence per watch. `not_counted` names the tasks that show nothing about the release.
    """

    release_id: UUID
    number: int
    since: datetime
    until: datetime
    baseline: WatchBaseline
    action: WatchAction
    reason: str
    tasks: dict[str, int]
    metrics: dict[str, PairedDifference]
    scenarios: list[ScenarioComparison]
    not_counted: NotCounted

    @classmethod
    def of(cls, row: tables.Release, status: WatchStatus) -> Self:
        return cls(
            release_id=row.id,
            number=row.number,
            since=status.since,
            until=status.until,
            baseline=status.baseline,
            **msgspec.structs.asdict(status.decision),
        )


class WatchController(Controller):
    path = "/releases/{release_id:uuid}/watch"
    tags = ("Releases",)
    opt = {"scope": "tasks"}  # noqa: RUF012

    @get(summary="Show the metrics of a watch", responses=problems(400, 401, 403, 404, 409))
    async def show_watch(self, release_id: FromPath[UUID], session: Db, access: Caller) -> WatchView:
        """409 if the release is not watched. One that was has the result in `evidence`."""
        row = await releases.get(session, release_id, access.project_id)
        return WatchView.of(row, await watch.evaluate(session, row))

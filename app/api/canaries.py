"""POST to have a release serve a share of the new tasks, then ask how it does."""

from datetime import datetime
from typing import Annotated, Self
from uuid import UUID

import msgspec
from litestar import Controller, delete, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody

from app.api.access import Caller, Db, find_release
from app.api.problem import problems
from app.api.releases import ReleaseView
from app.db import models
from app.db.database import Sessions
from app.release import canary
from app.release.canary import Against, Standing
from app.release.canary_decision import Action, Figure
from app.release.promote import Promoter

_MOVE = problems(400, 401, 403, 404, 409)


class CanaryRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`percent` of the project's new tasks. At 100 none is left to compare it with, so it waits for a person."""

    percent: Annotated[float, msgspec.Meta(gt=0, le=100)]


class CanaryView(msgspec.Struct, frozen=True, kw_only=True):
    """How a canary does against the active release. `action` is what comes of it by itself: `wait` is nothing yet.

    `reason` says what is still missing. Each figure has means and intervals for both, and for the difference,
    canary minus active. The intervals of all figures hold together, at all times, with 95 %
    per comparison: it begins anew when another release becomes active.
    """

    release_id: UUID
    number: int
    percent: float | None
    since: datetime
    against: Against
    action: Action
    reason: str
    figures: dict[str, Figure]

    @classmethod
    def of(cls, row: models.Release, standing: Standing) -> Self:
        return cls(
            release_id=row.id,
            number=row.number,
            percent=row.canary_percent,
            since=standing.since,
            against=standing.against,
            action=standing.verdict.action,
            reason=standing.verdict.reason,
            figures=standing.verdict.figures,
        )


class CanaryController(Controller):
    path = "/releases/{release_id:uuid}/canary"
    tags = ("Releases",)
    opt = {"scope": "admin"}  # noqa: RUF012

    @post(
        status_code=200,
        summary="Serve a share of the new tasks",
        responses=problems(400, 401, 403, 404, 409, 503),
    )
    async def begin(
        self,
        release_id: FromPath[UUID],
        data: JSONBody[CanaryRequest],
        session: Db,
        sessions: NamedDependency[Sessions],
        access: Caller,
        promoter: NamedDependency[Promoter],
    ) -> ReleaseView:
        """The model servers prove that they have its weights, then it gets its share: by a hash of each task's id.
        It takes over, or is rejected, by itself as soon as the figures of both tell. One at a time."""
        await find_release(session, access, release_id)
        await session.commit()  # no transaction is held while weights are loaded
        row = await canary.begin(promoter, sessions, release_id, data.percent, access.actor)
        return ReleaseView.of(row)

    @delete(status_code=200, summary="End a canary", responses=_MOVE)
    async def end(
        self, release_id: FromPath[UUID], session: Db, sessions: NamedDependency[Sessions], access: Caller
    ) -> ReleaseView:
        """A candidate again: new tasks are pinned to the active release alone, tasks of the canary keep it. Its
        figures so far are on the release, and in the log."""
        await find_release(session, access, release_id)
        await session.commit()
        return ReleaseView.of(await canary.end(sessions, release_id, access.actor))

    @get(summary="How a canary does", opt={"scope": "tasks"}, responses=_MOVE)
    async def figures(self, release_id: FromPath[UUID], session: Db, access: Caller) -> CanaryView:
        """Live figures. 409 for a release that is none; one that was has its figures in `evidence`."""
        row = await find_release(session, access, release_id)
        return CanaryView.of(row, await canary.judge(session, row))

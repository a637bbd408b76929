"""Routes for canaries: releases that serve a share of the new tasks and are compared with the active release."""

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Self
from uuid import UUID

import msgspec
from litestar import Controller, delete, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody

from app.api.releases import AllowRejected, ReleaseView
from app.db import releases, tables
from app.db.canaries import CanaryShare
from app.db.database import Sessions
from app.release import canary, canary_trial
from app.release.canary_decision import CanaryAction
from app.release.canary_metrics import MetricComparison
from app.release.canary_traffic import UncountedTraffic
from app.release.canary_trial import CanaryBaseline, CanaryStatus
from app.release.promote import Promoter
from app.web.access import Caller, Db
from app.web.problem import problems

_MOVE = problems(400, 401, 403, 404, 409)


class CanaryRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The share of new tasks to serve. At 100 nothing is left to compare with, so a person has to decide."""

    percent: Annotated[float, msgspec.Meta(gt=0, le=100)]


class CanaryView(msgspec.Struct, frozen=True, kw_only=True):
    """A canary compared with the active release, its `baseline`. `action` is the automatic decision so far.

    `reason` names what is missing while `action` is `wait`. Each metric has the means of both, and the
    difference (canary minus baseline) with bounds that hold at any time; a bound is wrong with a probability of
    1 %. `shares` are those of the new tasks that it has served since it began. `not_counted` names what shows
    nothing about it. A comparison restarts when another release becomes active.
    """

    release_id: UUID
    number: int
    percent: float | None
    since: datetime
    baseline: CanaryBaseline
    action: CanaryAction
    reason: str
    shares: Sequence[CanaryShare]
    metrics: dict[str, MetricComparison]
    not_counted: UncountedTraffic

    @classmethod
    def of(cls, row: tables.Release, status: CanaryStatus) -> Self:
        return cls(
            release_id=row.id,
            number=row.number,
            percent=row.canary_percent,
            since=status.since,
            baseline=status.baseline,
            action=status.decision.action,
            reason=status.decision.reason,
            shares=status.shares,
            metrics=status.decision.metrics,
            not_counted=status.decision.not_counted,
        )


class CanaryController(Controller):
    path = "/releases/{release_id:uuid}/canary"
    tags = ("Releases",)
    opt = {"scope": "admin"}  # noqa: RUF012

    @post(
        status_code=200,
        summary="Start a canary",
        responses=problems(400, 401, 403, 404, 409, 503),
    )
    async def start_canary(
        self,
        release_id: FromPath[UUID],
        data: JSONBody[CanaryRequest],
        session: Db,
        sessions: NamedDependency[Sessions],
        access: Caller,
        promoter: NamedDependency[Promoter],
        allow_rejected: AllowRejected = False,
    ) -> ReleaseView:
        """Once the model servers have proven that they have its weights, the release serves its share of the new
        tasks, chosen by a hash of the task id. It is promoted or rejected automatically as soon as the metrics are
        conclusive, or its trial ends. A project has one canary at a time."""
        await releases.get(session, release_id, access.project_id)
        await session.commit()  # no transaction is held while weights are loaded
        row = await canary.begin(
            promoter, sessions, release_id, data.percent, access.actor, allow_rejected=allow_rejected
        )
        return ReleaseView.of(row)

    @delete(status_code=200, summary="End a canary", responses=_MOVE)
    async def end_canary(
        self, release_id: FromPath[UUID], session: Db, sessions: NamedDependency[Sessions], access: Caller
    ) -> ReleaseView:
        """The release becomes a candidate again and gets no new tasks; its running tasks keep it. Its metrics so
        far are kept in the `evidence` of the release and in the audit log."""
        await releases.get(session, release_id, access.project_id)
        await session.commit()
        return ReleaseView.of(await canary.end(sessions, release_id, access.actor))

    @get(summary="Show the metrics of a canary", opt={"scope": "tasks"}, responses=_MOVE)
    async def show_canary(self, release_id: FromPath[UUID], session: Db, access: Caller) -> CanaryView:
        """409 if the release is not a canary. A former canary has its metrics in `evidence`."""
        row = await releases.get(session, release_id, access.project_id)
        return CanaryView.of(row, await canary_trial.evaluate(session, row))

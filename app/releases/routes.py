"""Routes for releases: what they are, how two differ, and their canaries, watches and shadow tasks.

Training proposes releases and the gate promotes them; here people can do both.
"""

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Self
from uuid import UUID

import msgspec
import structlog
from litestar import Controller, delete, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody, QueryParameter

from app.apis.documents.reader import DocumentReader
from app.base.errors import AdapterError, InvalidError, NotFoundError, public_text
from app.base.fields import Name, Text, columns
from app.base.values import Json
from app.db import tables
from app.db.database import Sessions
from app.projects import audit
from app.projects.authorization import find_project
from app.releases import canary, hosted_models, manifest_store, trials_store, watch
from app.releases import store as releases
from app.releases.adapter_store import AdapterDirectory
from app.releases.canary import CanaryAction, CanaryStatus, MetricComparison, UncountedTraffic
from app.releases.manifest import Diff, SkillsMode, diff
from app.releases.promotion import ActivationChanges, Promoter, changes_of
from app.releases.statistics import PairedComparison, PairedDifference, compare_pairs
from app.releases.trials_store import CanaryShare, ReleaseName
from app.releases.watch import NotCounted, ScenarioComparison, WatchAction, WatchStatus
from app.tasks import shadows
from app.web.access import Caller, Db
from app.web.fields import ConsoleLinks, ProjectName
from app.web.problem import problems

_READ = problems(400, 401, 403, 404)
_MOVE = problems(400, 401, 403, 404, 409)

log = structlog.get_logger(__name__)

AllowRejected = Annotated[
    bool, QueryParameter(description="serve it even if its weights were rejected; the audit log records it")
]
SkillsQuery = Annotated[
    SkillsMode,
    QueryParameter(description="`restore` the skills of a release that served before, or `keep` the present ones"),
]


class ReleaseRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Either an `adapter`, by the name of its directory, which is the hash of its content, or a `hosted` model, by
    its name. `reason` is stored in `evidence`.
    """

    adapter: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{32}(?!\n)$")] | None = None
    hosted: Name | None = None
    project: str | None = None
    reason: Text | None = None


class ReleaseView(msgspec.Struct, frozen=True, kw_only=True):
    """A release: weights (`model`), skills, tools and prompt, each identified by its hash; a hosted model by name.

    `evidence` is the result of the gate, of the release as a canary, and of its watch; `activated_at` is when the
    release last became active. While it is `watched`, it is compared with the release before.
    """

    id: UUID
    number: int
    state: tables.ReleaseState
    model: str
    training_run_id: UUID | None
    skills: str | None = msgspec.field(name="skills_hash")
    tools: str | None = msgspec.field(name="tools_hash")
    prompt: str | None = msgspec.field(name="prompt_hash")
    canary_percent: float | None
    watched: bool
    evidence: dict[str, Json] | None
    created_at: datetime
    activated_at: datetime | None
    links: ConsoleLinks

    @classmethod
    def of(cls, row: tables.Release) -> Self:
        links = ConsoleLinks.of("releases", row.id)
        own = columns(row, cls, "model", "watched", "links")
        return cls(model=row.policy, watched=row.watched_against is not None, links=links, **own)


class ActivatedView(ReleaseView, frozen=True, kw_only=True):
    """A release that is active now, and what its activation changed."""

    changes: ActivationChanges

    @classmethod
    def after(cls, row: tables.Release, changes: ActivationChanges) -> Self:
        view = ReleaseView.of(row)
        return cls(changes=changes, **{name: getattr(view, name) for name in view.__struct_fields__})


class ReleaseController(Controller):
    path = "/releases"
    tags = ("Releases",)
    opt = {"scope": "tasks"}  # noqa: RUF012

    @get(summary="List releases", responses=_READ)
    async def index(self, session: Db, access: Caller, project: ProjectName = None) -> list[ReleaseView]:
        """Newest first. Exactly one is `active`: tasks are pinned to it when they start."""
        owner = await find_project(session, access, project)
        return [ReleaseView.of(row) for row in await releases.of_project(session, owner.id)]

    @get("/{release_id:uuid}", summary="Show a release", responses=_READ)
    async def show(self, release_id: FromPath[UUID], session: Db, access: Caller) -> ReleaseView:
        """Its weights, the training run that produced them, and the result of the gate."""
        return ReleaseView.of(await releases.get(session, release_id, access.project_id))

    @post(summary="Propose an adapter or a hosted model", opt={"scope": "admin"}, responses=_READ)
    async def propose(
        self,
        data: JSONBody[ReleaseRequest],
        session: Db,
        access: Caller,
        adapters: NamedDependency[AdapterDirectory],
    ) -> ReleaseView:
        """Creates a candidate from a hosted model, or from an adapter in the adapter directory, named by its
        content hash. The shapes of an adapter are checked against the base model; that it was trained on this
        model cannot be checked. The candidate serves once it is activated, or as a canary; an adapter that was
        rejected in another release of the project needs `allow_rejected` for that. An adapter belongs to the
        project whose run made it or whose key first proposed it; one that a key for all projects added is for
        all."""
        if (data.adapter is None) == (data.hosted is None):
            raise InvalidError("give either `adapter` or `hosted`")
        project = await find_project(session, access, data.project)
        if data.hosted is not None:
            release = await hosted_models.propose(session, project.id, data.hosted)
            return await _proposed(session, access, release, data)
        assert data.adapter is not None
        await session.commit()  # no transaction is held while files are read
        rank = await _read(adapters, data.adapter)
        await adapters.publish(data.adapter)
        row = await manifest_store.put(
            session, data.adapter, base=adapters.base, rank=rank, project_id=access.project_id
        )
        if row.project_id is not None and not access.sees(row.project_id):
            raise NotFoundError(f"the project {project.name} has no adapter {row.hash}")
        if row.base != adapters.base:
            raise InvalidError(f"adapter {row.hash} was trained on {row.base}, but {adapters.base} is served")
        release = await releases.propose(session, project.id, data.adapter)
        return await _proposed(session, access, release, data)

    @get("/{release_id:uuid}/activate", summary="Show what activating a release would change", responses=_READ)
    async def changes(
        self, release_id: FromPath[UUID], session: Db, access: Caller, skills: SkillsQuery = "restore"
    ) -> ActivationChanges:
        """Activating it now changes exactly this: weights, skills, API documents."""
        release = await releases.get(session, release_id, access.project_id)
        return await changes_of(session, release, await releases.find_active(session, release.project_id), skills)

    @post(
        "/{release_id:uuid}/activate",
        status_code=200,
        opt={"scope": "admin"},
        summary="Activate a release",
        responses=problems(400, 401, 403, 404, 409, 503),
    )
    async def activate(
        self,
        release_id: FromPath[UUID],
        session: Db,
        access: Caller,
        promoter: NamedDependency[Promoter],
        allow_rejected: AllowRejected = False,
        skills: SkillsQuery = "restore",
    ) -> ActivatedView:
        """New tasks are pinned to it once every model server has proven that it has the weights; if one refuses,
        nothing changes. Running tasks keep their release. Activating an older release rolls back weights, skills
        and tools: `changes` says what it moved."""
        await releases.get(session, release_id, access.project_id)
        await session.commit()  # no transaction is held while weights are loaded
        stated = [ActivationChanges()]  # stays so for a release that is active already
        row = await promoter.activate(
            release_id, access.actor, allow_rejected=allow_rejected, skills=skills, on_changes=stated.append
        )
        return ActivatedView.after(row, stated[-1])


async def _proposed(session: Db, access: Caller, release: tables.Release, data: ReleaseRequest) -> ReleaseView:
    if data.reason:
        await releases.record_evidence(session, release.id, {"reason": data.reason})
    about = (release.project_id, release.id, access.actor, tables.AuditAction.RELEASE_PROPOSED)
    await audit.add(session, *about, {"model": release.policy, "reason": data.reason})
    await session.commit()
    return ReleaseView.of(release)


async def _read(adapters: AdapterDirectory, name: str) -> int:
    """The adapter's rank. Raises InvalidError if it must not be served."""
    try:
        return (await adapters.verified(name)).rank
    except AdapterError as error:
        log.warning("a proposed adapter is refused", adapter=name, cause=str(error))
        raise InvalidError(public_text(error)) from error


class ReleaseDiffController(Controller):
    path = "/releases/{release_id:uuid}/diff"
    tags = ("Releases",)
    opt = {"scope": "tasks"}  # noqa: RUF012

    @get("/{other:uuid}", summary="Compare two releases", responses=_READ)
    async def compare(
        self,
        release_id: FromPath[UUID],
        other: FromPath[UUID],
        session: Db,
        access: Caller,
        document_reader: NamedDependency[DocumentReader],
    ) -> Diff:
        """What the second release changes: weights, skills, API documents by operation, prompt.

        Skills are compared as of the time each release last stopped serving; for the active release and for those
        that never served, as of now.
        """
        release = await releases.get(session, release_id, access.project_id)
        return await diff(session, document_reader, release, await releases.get(session, other, access.project_id))


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
    baseline: ReleaseName  #: the active release
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

    @post(status_code=200, summary="Start a canary", responses=problems(400, 401, 403, 404, 409, 503))
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
        return CanaryView.of(row, await canary.evaluate(session, row))


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
    baseline: ReleaseName  #: that served before
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

    @get(summary="Show the metrics of a watch", responses=_MOVE)
    async def show_watch(self, release_id: FromPath[UUID], session: Db, access: Caller) -> WatchView:
        """409 if the release is not watched. One that was has the result in `evidence`."""
        row = await releases.get(session, release_id, access.project_id)
        return WatchView.of(row, await watch.evaluate(session, row))


class ShadowRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`tasks` is the maximum number of finished tasks to repeat, the latest first."""

    tasks: Annotated[int, msgspec.Meta(ge=1, le=1_000)] = 50


class ShadowsView(msgspec.Struct, frozen=True, kw_only=True):
    """The release compared with the releases that served the tasks. Scores are those of the tasks' own checks.

    `failures` counts by reason: a call that would have written, or why a task could not be executed or scored.
    """

    tasks: int
    pending: int
    failures: dict[str, int]
    score: PairedComparison | None
    turns: PairedComparison | None
    tokens: PairedComparison | None

    @classmethod
    def of(cls, pairs: Sequence[trials_store.ShadowedTask]) -> Self:
        ended = [(pair, pair.shadow) for pair in pairs if pair.shadow]
        done = [(pair, shadow) for pair, shadow in ended if shadow.stop]
        scores = [
            (pair.score, shadow.score)
            for pair, shadow in done
            if pair.score is not None and shadow.score is not None
        ]
        return cls(
            tasks=len(pairs),
            pending=len(pairs) - len(ended),
            failures=dict(Counter(shadow.failure for _, shadow in ended if shadow.failure)),
            score=compare_pairs(scores),
            turns=compare_pairs([(pair.turns, shadow.turns) for pair, shadow in done]),
            tokens=compare_pairs([(pair.generated_tokens, shadow.generated_tokens) for pair, shadow in done]),
        )


class ShadowController(Controller):
    path = "/releases/{release_id:uuid}/shadow"
    tags = ("Releases",)
    opt = {"scope": "admin"}  # noqa: RUF012

    @post(status_code=202, summary="Repeat finished tasks", responses=_MOVE)
    async def start_shadows(
        self,
        release_id: FromPath[UUID],
        data: JSONBody[ShadowRequest],
        session: Db,
        access: Caller,
        document_reader: NamedDependency[DocumentReader],
    ) -> ShadowsView:
        """This release repeats finished tasks that made read-only calls (GET, HEAD, OPTIONS, or `x-safe: true`),
        with the same seed, clock and skills. A call that would write is refused and counted. The tasks, their
        skills and trajectories do not change. 409 if no finished task was read-only."""
        row = await releases.get(session, release_id, access.project_id)
        await shadows.request_shadows(session, document_reader, row, data.tasks)
        await session.commit()
        return ShadowsView.of(await trials_store.of_release(session, row.id))

    @get(summary="Compare a release on finished tasks", opt={"scope": "tasks"}, responses=problems(401, 403, 404))
    async def show_shadows(self, release_id: FromPath[UUID], session: Db, access: Caller) -> ShadowsView:
        """Paired differences between tasks and their shadows, with 95 % intervals of the mean."""
        row = await releases.get(session, release_id, access.project_id)
        return ShadowsView.of(await trials_store.of_release(session, row.id))

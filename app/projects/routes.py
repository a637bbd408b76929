"""Routes for projects, which isolate APIs, skills, tasks, releases and keys from each other; for their keys,
secrets, usage and statistics, the audit log and the messages to webhooks.

The secret of a key is shown once, and values of secrets never.
"""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Annotated, Self
from uuid import UUID

import msgspec
from litestar import Controller, delete, get, patch, post, put
from litestar.di import NamedDependency
from litestar.params import FromPath, FromQuery, JSONBody, QueryParameter
from sqlalchemy.ext.asyncio import AsyncSession

from app.apis import store as apis
from app.apis.documents.reader import DocumentReader
from app.apis.documents.stored import read_api
from app.apis.servers import refuse_production
from app.base.errors import ForbiddenError, InvalidError, NotFoundError
from app.base.fields import Name, Text, columns
from app.base.values import Json
from app.db import queries, tables
from app.db.tables import AuditAction, DeliveryState
from app.projects import audit, keys, secrets, statistics, usage, webhooks
from app.projects import store as projects
from app.projects.authorization import find_project, project_filter, project_names
from app.projects.keys import Scope
from app.projects.settings import Limits, ProjectSettings, changed
from app.projects.statistics import Grouping, TaskStatistics, TimeBucket
from app.releases import store as releases
from app.releases.promotion import FirstRelease
from app.runs import datasets
from app.runs.datasets import DatasetStore
from app.skills import store as skills
from app.tasks import queue
from app.web.access import Access, Caller, Db
from app.web.fields import TIME, ConsoleLinks, Cursor, Limit, ProjectName, in_utc
from app.web.problem import CHANGE, READ, problems

DAYS = 30
OPERATORS = {"limits", "weight"}  # settings that share the server out
SecretText = Annotated[Text, msgspec.Meta(min_length=4, max_length=10_000, description="never shown again")]
_MOST_BUCKETS = 400
_DEFAULT_BUCKETS = 30
From = Annotated[
    str | None,
    QueryParameter(
        name="from", description="ended at this time or later; default: 30 buckets ago", schema_extra=TIME
    ),
]
To = Annotated[str | None, QueryParameter(name="to", description="ended before; default: now", schema_extra=TIME)]
Keys = Annotated[
    int, QueryParameter(ge=1, le=100, description="scenarios, releases or skills, those with most tasks")
]


class UsageView(msgspec.Struct, frozen=True, kw_only=True):
    """`limits` are those that hold, the project's own or the server's, and `left` is what is left of each; null is
    none. Tokens, calls and cost are counted when a task ends.
    """

    project: str
    queued: int
    running: int
    today: usage.UsageCounts
    resets_at: datetime
    limits: Limits
    left: Limits
    days: list[usage.UsageOfDay]  #: newest first, without those on which nothing happened
    links: ConsoleLinks


async def view_usage(session: AsyncSession, project: tables.Project, defaults: Limits) -> UsageView:
    days = await usage.of_days(session, project.id, DAYS)
    now = await usage.clock(session)
    today = days[0] if days and days[0].day == now.date() else usage.UsageCounts()
    queued, running = await queue.in_progress(session, project.id)
    limits = projects.settings_of(project).limits.over(defaults)
    used = used_of(queued, running, today)
    left = {
        name: max(0, limit - spent) for name, spent in used.items() if (limit := getattr(limits, name)) is not None
    }
    return UsageView(
        project=project.name,
        queued=queued,
        running=running,
        today=usage.UsageCounts(**columns(today, usage.UsageCounts)),
        resets_at=usage.next_day(now),
        limits=limits,
        left=Limits(**left),
        days=days,
        links=ConsoleLinks.to("/console/usage", project.name),
    )


def used_of(queued: int, running: int, today: usage.UsageCounts) -> dict[str, float]:
    """By the name of the limit that it counts towards."""
    return {
        "queued_tasks": queued,
        "running_tasks": running,
        "tasks_per_day": today.submitted,
        "tokens_per_day": today.generated_tokens,
        "calls_per_day": today.calls,
        "cost_per_day": today.cost,
    }


class ProjectRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: Name


class ProjectPatch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A JSON merge patch of the project's settings; see ProjectSettings."""

    settings: dict[str, Json]


class ProjectView(msgspec.Struct, frozen=True):
    """The page is that of the settings for an administrator, of tasks and success for others."""

    id: UUID
    name: str
    created_at: datetime
    settings: ProjectSettings
    links: ConsoleLinks

    @classmethod
    def of(cls, project: tables.Project, access: Access) -> Self:
        """Only an administrator's key is shown the paths of URLs: they may hold a token."""
        settings = projects.settings_of(project)
        admin = access.allows("admin")
        if not admin:
            settings = msgspec.structs.replace(
                settings,
                webhook=settings.webhook and settings.webhook.masked(),
                verifier=settings.verifier and settings.verifier.masked(),
                staging={name: each.masked() for name, each in settings.staging.items()},
            )
        links = ConsoleLinks.to(f"/console/projects/{project.name}" if admin else "/console", project.name)
        return cls(project.id, project.name, project.created_at, settings, links)


class ProjectController(Controller):
    path = "/projects"
    tags = ("Projects",)
    opt = {"scope": "tasks"}  # noqa: RUF012

    @post(opt={"scope": "admin"}, summary="Create a project", responses=problems(400, 401, 403, 409))
    async def create(
        self,
        data: JSONBody[ProjectRequest],
        session: Db,
        access: Caller,
        first_release: NamedDependency[FirstRelease],
    ) -> ProjectView:
        """Its release 1 is active: the base model, with the adapter that comes with it, if one does."""
        return ProjectView.of(await create_project(session, access, data.name, first_release), access)

    @get(summary="List projects", responses=problems(401, 403))
    async def index(self, session: Db, access: Caller) -> list[ProjectView]:
        """The projects that the key may see, sorted by name."""
        rows = await projects.list_all(session)
        return [ProjectView.of(row, access) for row in rows if access.sees(row.id)]

    @get("/{name:str}", summary="Show a project", responses=problems(401, 403, 404))
    async def show(self, name: FromPath[str], session: Db, access: Caller) -> ProjectView:
        return ProjectView.of(await find_project(session, access, name), access)

    @patch(
        "/{name:str}",
        opt={"scope": "admin"},
        summary="Change a project's settings",
        responses=READ,
    )
    async def change(
        self,
        name: FromPath[str],
        data: JSONBody[ProjectPatch],
        session: Db,
        access: Caller,
        document_reader: NamedDependency[DocumentReader],
    ) -> ProjectView:
        """Fields that are left out stay, and null restores a default. The audit log records the change."""
        return ProjectView.of(await change_project(session, access, name, data.settings, document_reader), access)

    @get("/{name:str}/usage", summary="Show what a project uses", responses=problems(401, 403, 404))
    async def usage(
        self, name: FromPath[str], session: Db, access: Caller, limits: NamedDependency[Limits]
    ) -> UsageView:
        """Today's usage, its limits and what is left of them, and the usage of the last 30 days (UTC)."""
        return await view_usage(session, await find_project(session, access, name), limits)

    @delete(
        "/{name:str}",
        opt={"scope": "admin"},
        summary="Delete a project and its data",
        responses=problems(401, 403, 404),
    )
    async def remove(
        self, name: FromPath[str], session: Db, access: Caller, datasets: NamedDependency[DatasetStore]
    ) -> None:
        """Deletes its tasks, trajectories, skills, datasets, APIs, releases and keys irrevocably. The audit log
        keeps its entries, for keys to all projects.
        """
        await delete_project(session, access, name, datasets)


async def create_project(
    session: AsyncSession, access: Access, name: str, first_release: FirstRelease
) -> tables.Project:
    """Raises ForbiddenError for a key of one project, ConflictError if the name is taken."""
    if access.project_id is not None:
        raise ForbiddenError("this key is limited to one project; create projects with a key for all")
    await session.commit()  # no transaction is held while files are read
    project = await first_release.create_project(session, name)
    await audit.add(session, project.id, None, access.actor, tables.AuditAction.PROJECT_CREATED, {})
    await session.commit()
    return project


async def change_project(
    session: AsyncSession, access: Access, name: str, settings: dict[str, Json], reader: DocumentReader
) -> tables.Project:
    """Raises ForbiddenError for what only a key of all projects may change, InvalidError that names the field."""
    if access.project_id is not None and (own := sorted(OPERATORS & settings.keys())):
        raise ForbiddenError(f"only a key for all projects may change {' and '.join(own)}")
    project = await find_project(session, access, name)
    await _check_staging(session, reader, project, settings)
    secrets = {f"{name}_secret": getattr(project, f"{name}_secret") for name in projects.SIGNED}
    before, after = await projects.change_settings(session, project.id, settings)
    new = {name: "changed" for name, old in secrets.items() if getattr(project, name) != old}
    if after != before or new:
        detail = {"before": msgspec.to_builtins(before), "after": msgspec.to_builtins(after), **new}
        action = tables.AuditAction.SETTINGS_CHANGED
        await audit.add(session, project.id, None, access.actor, action, detail)
    await session.commit()
    return project


async def _check_staging(
    session: AsyncSession, reader: DocumentReader, project: tables.Project, settings: dict[str, Json]
) -> None:
    """Refuse new servers that tasks call. Those that an API gets later on are refused when a trial begins."""
    before = projects.settings_of(project)
    after = changed(before, {name: new for name, new in settings.items() if name == "staging"}).staging
    new = {name: each for name, each in after.items() if each != before.staging.get(name)}
    if new:
        rows = await apis.of_project(session, project.id)
        production = [(await read_api(reader, session, row, row.bind)).servers for row in rows]
        await asyncio.to_thread(refuse_production, new, production)


async def delete_project(session: AsyncSession, access: Access, name: str, store: DatasetStore) -> None:
    """Raises NotFoundError."""
    project = await find_project(session, access, name)
    files = await datasets.ids_of(session, project.id)
    lost = [{"name": key.name, "prefix": key.hint} for key in await keys.listing(session, project.id)]
    detail = {"name": project.name, "keys": lost}
    await audit.add(session, project.id, None, access.actor, tables.AuditAction.PROJECT_DELETED, detail)
    await projects.delete(session, project.id)
    await session.commit()
    await store.delete_all(files)


class KeyRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Scopes: `tasks` to submit and follow tasks, `skills` to read and manage skills, `approvals` to approve or
    refuse API calls, `admin` for everything.
    """

    name: Name
    scopes: Annotated[list[Scope], msgspec.Meta(min_length=1, max_length=len(Scope))]
    project: str | None = None


class KeyView(msgspec.Struct, frozen=True, kw_only=True):
    id: UUID
    name: str
    hint: str = msgspec.field(name="prefix")  #: of the secret
    scopes: list[str]
    project: str | None
    created_at: datetime
    revoked_at: datetime | None
    links: ConsoleLinks

    @classmethod
    def of(cls, key: tables.Key, names: dict[UUID, str], **more: Json) -> Self:
        project = names[key.project_id] if key.project_id else None
        links = ConsoleLinks.to("/console/keys", project)
        return cls(project=project, links=links, **columns(key, KeyView, "project", "links"), **more)


class CreatedKey(KeyView, frozen=True, kw_only=True):
    """`secret` is shown here and never again."""

    secret: str


class KeyController(Controller):
    path = "/keys"
    tags = ("Keys",)
    opt = {"scope": "admin"}  # noqa: RUF012

    @post(summary="Create a key", responses=READ)
    async def create(self, data: JSONBody[KeyRequest], session: Db, access: Caller) -> CreatedKey:
        """Without `project` the key is valid for all projects, unless the calling key is limited to one itself."""
        created = await add_key(session, access, data)
        await session.commit()
        return created

    @get(summary="List keys", responses=problems(401, 403))
    async def index(self, session: Db, access: Caller) -> list[KeyView]:
        """Including revoked keys. Secrets are never shown."""
        return await list_keys(session, access)

    @delete("/{key_id:uuid}", summary="Revoke a key", responses=READ)
    async def revoke(self, key_id: FromPath[UUID], session: Db, access: Caller) -> None:
        """Effective immediately: event streams that it has opened send nothing more, and end within 15 s."""
        await revoke_key(session, access, key_id)
        await session.commit()


async def list_keys(session: AsyncSession, access: Access) -> list[KeyView]:
    """Those that the caller may see, oldest first."""
    names = await project_names(session)
    return [KeyView.of(key, names) for key in await keys.listing(session, access.project_id)]


async def add_key(session: AsyncSession, access: Access, request: KeyRequest) -> CreatedKey:
    """Create a key; one of a project creates others of that alone. Raises NotFoundError, InvalidError."""
    limited = request.project is not None or access.project_id is not None
    project = await find_project(session, access, request.project) if limited else None
    key, secret = await keys.create(session, request.name, request.scopes, project.id if project else None)
    await _record(session, access, key, AuditAction.KEY_CREATED)
    return CreatedKey.of(key, await project_names(session), secret=secret)


async def revoke_key(session: AsyncSession, access: Access, key_id: UUID) -> tables.Key:
    """Raises NotFoundError also for a key that the caller may not see."""
    if key_id not in {key.id for key in await keys.listing(session, access.project_id)}:
        raise NotFoundError(f"no key has the id {key_id}; GET /v1/keys lists them")
    key = await keys.revoke(session, key_id)
    await _record(session, access, key, AuditAction.KEY_REVOKED)
    return key


async def _record(session: AsyncSession, access: Access, key: tables.Key, action: AuditAction) -> None:
    await audit.add(session, key.project_id, None, access.actor, action, keys.about(key))


class SecretRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The value of a secret."""

    value: SecretText


class SecretView(msgspec.Struct, frozen=True, kw_only=True):
    """A secret without its value. `used_at` is when a task last used it."""

    name: str
    project: str
    created_at: datetime
    used_at: datetime | None
    links: ConsoleLinks

    @classmethod
    def of(cls, row: tables.Secret, project: str) -> Self:
        links = ConsoleLinks.to("/console/secrets", project)
        return cls(project=project, links=links, **columns(row, cls, "project", "links"))


class SecretController(Controller):
    path = "/secrets"
    tags = ("Secrets",)
    opt = {"scope": "admin"}  # noqa: RUF012

    @put("/{name:str}", summary="Store a secret", responses=READ)
    async def store(
        self,
        name: FromPath[str],
        data: JSONBody[SecretRequest],
        session: Db,
        access: Caller,
        project: ProjectName = None,
    ) -> SecretView:
        """Replaces the one of that name. It is encrypted, and only the gateway reads it: see `bind` of an API."""
        _check_name(name)
        owner = await find_project(session, access, project)
        row = await store_secret(session, access, owner.id, name, data.value)
        await session.commit()
        return SecretView.of(row, owner.name)

    @get(summary="List secrets", responses=READ)
    async def index(self, session: Db, access: Caller, project: ProjectName = None) -> list[SecretView]:
        """Sorted by name."""
        owner = await find_project(session, access, project)
        return [SecretView.of(row, owner.name) for row in await secrets.of_project(session, owner.id)]

    @delete("/{name:str}", summary="Delete a secret", responses=READ)
    async def remove(self, name: FromPath[str], session: Db, access: Caller, project: ProjectName = None) -> None:
        """Calls that are bound to it fail from then on."""
        owner = await find_project(session, access, project)
        await delete_secret(session, access, owner.id, name)
        await session.commit()


async def store_secret(
    session: AsyncSession, access: Access, project_id: UUID, name: str, value: str
) -> tables.Secret:
    """Replaces the one of that name. Audited."""
    row = await secrets.put(session, project_id, name, value)
    await audit.add(session, project_id, None, access.actor, AuditAction.SECRET_STORED, {"name": name})
    return row


async def delete_secret(session: AsyncSession, access: Access, project_id: UUID, name: str) -> None:
    """Audited. Raises NotFoundError."""
    await secrets.delete(session, project_id, name)
    await audit.add(session, project_id, None, access.actor, AuditAction.SECRET_DELETED, {"name": name})


def _check_name(name: str) -> None:
    try:
        msgspec.convert(name, Name)
    except msgspec.ValidationError as error:
        raise InvalidError(f"the name of a secret: {error}") from error


class StatisticsRow(TaskStatistics, frozen=True, kw_only=True):
    """`name` is the scenario, the number of the release, or the name and version of the skill."""

    name: str | None


class StatisticsView(msgspec.Struct, frozen=True, kw_only=True):
    """Newest bucket first. Buckets without tasks are left out.

    At most the newest 1,000,000 tasks of the window are counted, by skill 100,000: `counted_from` is then the end
    of the oldest that is.
    """

    project: str
    by: Grouping | None
    bucket: TimeBucket
    since: datetime
    until: datetime
    counted_from: datetime | None
    rows: list[StatisticsRow]
    links: ConsoleLinks


class StatisticsController(Controller):
    path = "/stats"
    tags = ("Tasks",)
    opt = {"scope": "tasks"}  # noqa: RUF012

    @get(summary="Count tasks over time", responses=READ)
    async def index(  # noqa: PLR0913 - each is a query parameter
        self,
        session: Db,
        access: Caller,
        project: ProjectName = None,
        by: FromQuery[Grouping | None] = None,
        bucket: FromQuery[TimeBucket] = TimeBucket.DAY,
        since: From = None,
        until: To = None,
        limit: Keys = 20,
    ) -> StatisticsView:
        """Tasks, success, and the means of turns, tokens and seconds: of all tasks, or by scenario, by release, or
        by the skills that were used.
        """
        owner = await find_project(session, access, project)
        end = in_utc(until) or (await queries.now(session)).astimezone(UTC)
        start = in_utc(since) or _before(end, bucket)
        if not timedelta() < end - start <= _MOST_BUCKETS * bucket.length:
            raise InvalidError(
                f"`from` must lie before `to`, by at most {_MOST_BUCKETS} {bucket.value}s: choose a shorter time, "
                "or a longer `bucket`"
            )
        found = await statistics.of_project(session, owner.id, by, start, end, bucket, limit)
        names = await _names(session, owner.id, by, {row.key for row in found.rows if row.key is not None})
        rows = [
            StatisticsRow(name=names.get(row.key, row.key) if row.key else None, **msgspec.structs.asdict(row))
            for row in found.rows
        ]
        return StatisticsView(
            project=owner.name,
            by=by,
            bucket=bucket,
            since=start,
            until=end,
            counted_from=found.counted_from,
            rows=rows,
            links=ConsoleLinks.to("/console", owner.name),
        )


def _before(end: datetime, bucket: TimeBucket) -> datetime:
    try:
        return end - _DEFAULT_BUCKETS * bucket.length
    except OverflowError as error:
        raise InvalidError("`to` is too early") from error


async def _names(session: AsyncSession, project_id: UUID, by: Grouping | None, keys: set[str]) -> dict[str, str]:
    if by is Grouping.RELEASE:
        return {str(row.id): str(row.number) for row in await releases.of_project(session, project_id)}
    if by is Grouping.SKILL:
        rows = await skills.of_ids(session, [UUID(key) for key in keys])
        return {str(row.id): f"{row.name} {row.version}" for row in rows}
    return {}


class DeliveryView(msgspec.Struct, frozen=True, kw_only=True):
    """A message to the project's webhook, about a task or a release. `status` and `error` are those of the latest
    attempt.
    """

    id: UUID  #: with `msg_`, and without hyphens, it is the message's `webhook-id`
    project: str
    task_id: UUID | None
    release_id: UUID | None
    event: str
    message: Json  #: the body that is sent
    state: DeliveryState
    attempt: int = msgspec.field(name="attempts")
    status: int | None
    error: str | None
    created_at: datetime
    next_at: datetime | None = msgspec.field(name="next_attempt_at")
    finished_at: datetime | None
    links: ConsoleLinks

    @classmethod
    def of(cls, row: tables.WebhookDelivery, project: str) -> Self:
        pending = row.state is DeliveryState.PENDING
        return cls(
            project=project,
            message=msgspec.json.decode(row.body),
            next_at=row.next_at if pending else None,
            links=ConsoleLinks.to("/console/webhooks", project),
            **columns(row, cls, "project", "message", "next_at", "links"),
        )


class DeliveryPage(msgspec.Struct, frozen=True):
    """Newest first. `next_cursor` is null on the last page."""

    deliveries: list[DeliveryView]
    next_cursor: str | None


class WebhookController(Controller):
    path = "/webhooks/deliveries"
    tags = ("Webhooks",)
    opt = {"scope": "admin"}  # noqa: RUF012

    @get(summary="List messages to webhooks", responses=READ)
    async def index(
        self,
        session: Db,
        access: Caller,
        project: ProjectName = None,
        in_state: Annotated[DeliveryState | None, QueryParameter(name="state")] = None,
        cursor: Cursor = None,
        limit: Limit = 50,
    ) -> DeliveryPage:
        """Newest first."""
        only = await project_filter(session, access, project)
        page = await webhooks.page(session, only, in_state, cursor=cursor, limit=limit)
        names = await project_names(session)
        return DeliveryPage([DeliveryView.of(row, names[row.project_id]) for row in page.items], page.cursor)

    @post(
        "/{delivery_id:uuid}/resend",
        status_code=202,
        summary="Send a message again",
        responses=CHANGE,
    )
    async def resend(self, delivery_id: FromPath[UUID], session: Db, access: Caller) -> DeliveryView:
        """With the same id and body, to the address that the project has now. 409 while it is pending."""
        await webhooks.get(session, delivery_id, access.project_id)
        row = await webhooks.resend(session, delivery_id)
        await session.commit()
        names = await project_names(session)
        return DeliveryView.of(row, names[row.project_id])


class AuditEntryView(msgspec.Struct, frozen=True, kw_only=True):
    """`detail` of an activation is its swap report: hashes, seconds and measurements of each model server, and the
    servers that were unavailable (`absent`). An entry `restored` follows once they have loaded the release.
    """

    id: UUID
    project: str | None  #: which may be deleted; null: it concerns all
    release_id: UUID | None
    actor: str  #: "key <name>", "gate", "canary" or "server"
    action: tables.AuditAction
    detail: dict[str, Json]
    created_at: datetime

    @classmethod
    def of(cls, row: tables.AuditEntry) -> Self:
        return cls(**columns(row, cls))


class AuditPage(msgspec.Struct, frozen=True):
    """Newest first. `next_cursor` is null on the last page."""

    entries: list[AuditEntryView]
    next_cursor: str | None
    links: ConsoleLinks


class AuditController(Controller):
    path = "/audit"
    tags = ("Releases",)
    opt = {"scope": "admin"}  # noqa: RUF012

    @get(summary="List audit entries", responses=READ)
    async def index(  # noqa: PLR0913 - each is a query parameter
        self,
        session: Db,
        access: Caller,
        project: ProjectName = None,
        release_id: FromQuery[UUID | None] = None,
        action: FromQuery[tables.AuditAction | None] = None,
        actor: Annotated[str, QueryParameter(description="a part of the actor's name")] = "",
        cursor: Cursor = None,
        limit: Limit = 50,
    ) -> AuditPage:
        """Activations, refused activations, starts and ends of canaries, ends of watches, model servers that
        loaded the active release again, decided approvals, changes of settings, secrets and skills' states, and
        created or revoked keys and projects. Entries never change, and stay when their project is deleted: without
        `project`, a key for all projects sees those too.
        """
        only = await project_filter(session, access, project)
        actions = () if action is None else (action,)
        page = await audit.page(
            session, only, release_id=release_id, actions=actions, actor=actor, cursor=cursor, limit=limit
        )
        links = ConsoleLinks.to("/console/audit", project) if project else ConsoleLinks("/console/audit?of=all")
        return AuditPage([AuditEntryView.of(row) for row in page.items], page.cursor, links)

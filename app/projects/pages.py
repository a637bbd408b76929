"""Pages for projects: their settings, keys, secrets, usage, audit log and messages to webhooks."""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

import msgspec
from litestar import Controller, Response, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath, FromQuery
from litestar.response import Redirect
from sqlalchemy.ext.asyncio import AsyncSession

from app.apis import store as apis
from app.apis.documents.reader import DocumentReader
from app.base.errors import AppError, ConflictError, InvalidError
from app.base.fields import Name
from app.base.values import Json
from app.db import tables
from app.db.tables import AuditAction, DeliveryState
from app.projects import audit, secrets, webhooks
from app.projects import store as projects
from app.projects.authorization import find_project
from app.projects.keys import Scope
from app.projects.routes import (
    DAYS,
    OPERATORS,
    CreatedKey,
    DeliveryView,
    KeyRequest,
    ProjectRequest,
    SecretText,
    UsageView,
    add_key,
    change_project,
    create_project,
    delete_project,
    delete_secret,
    list_keys,
    revoke_key,
    store_secret,
    used_of,
    view_usage,
)
from app.projects.settings import Limits, ProjectSettings
from app.projects.usage import UsageCounts, UsageOfDay
from app.releases.promotion import FirstRelease
from app.runs import datasets
from app.runs.datasets import DatasetStore
from app.web import formats
from app.web.access import Db
from app.web.charts import Column, ColumnChart, column_chart
from app.web.formats import csv_file
from app.web.forms import Form, entered_values, patch, read_form, readable, setting_groups
from app.web.pages import Visit, Visitor, after_change, page, visit_project
from app.web.problem import AnyRequest

_ADMIN: Mapping[str, Any] = {"scope": "admin"}
_PLACE = re.compile(r"^(?:settings: )?(?P<what>.*?) - at `\$\.(?P<field>[\w.]+)[^`]*`$", re.DOTALL)
_NAMED = re.compile(r"^(?:settings: )?(?P<field>[a-z_]+(?:\.[a-z_]+)*):? (?P<what>.+)$", re.DOTALL)
_SCOPES = {
    Scope.TASKS: "submit tasks, follow them and read what they led to",
    Scope.SKILLS: "read and manage skills",
    Scope.APPROVALS: "approve or refuse calls that wait for a person",
    Scope.ADMIN: "everything",
}
_LABELS: Final = {
    "queued_tasks": "Tasks that wait",
    "running_tasks": "Tasks that run at once",
    "tasks_per_day": "Tasks submitted today",
    "tokens_per_day": "Tokens generated today",
    "calls_per_day": "API calls today",
    "cost_per_day": "Cost of hosted models today",
    "dataset_bytes": "Uploaded datasets",
    "requests_per_minute": "Requests of a key in a minute",
}
_FORMATS: Final[dict[str, Callable[[Any], str]]] = {"dataset_bytes": formats.size, "cost_per_day": formats.money}
_COLUMNS: Final = UsageCounts.__struct_fields__
_ENTRIES = 50  # of the audit log on a page
_MESSAGES = 50  # to webhooks on a page


class ProjectPages(Controller):
    path = "/projects"
    opt = {"scope": "tasks"}  # noqa: RUF012

    @get()
    async def index(self, visit: Visitor, session: Db) -> Response[str]:
        return await _list(visit, session, Form())

    @post(opt=_ADMIN)
    async def create(
        self,
        request: AnyRequest,
        visit: Visitor,
        session: Db,
        first_release: NamedDependency[FirstRelease],
    ) -> Response[Any]:
        form = await read_form(request, ProjectRequest)
        if form.value is None:
            return await _list(visit, session, form)
        try:
            project = await create_project(session, visit.access, form.value.name, first_release)
        except ConflictError as error:
            await session.rollback()
            return await _list(visit, session, form.refused(error))
        address = visit.about(project).url("/console/apis")
        return after_change(address, f"created the project {project.name}: add an API that its tasks may call")

    @get("/{name:str}", opt=_ADMIN)
    async def show(self, name: FromPath[str], visit: Visitor, session: Db) -> Response[str]:
        project = await find_project(session, visit.access, name)
        return _settings(visit.about(project), Form(values=entered_values(projects.settings_of(project))))

    @post("/{name:str}", opt=_ADMIN)
    async def change(
        self,
        name: FromPath[str],
        request: AnyRequest,
        visit: Visitor,
        session: Db,
        document_reader: NamedDependency[DocumentReader],
    ) -> Response[Any]:
        """Fields that were left empty get their defaults; those that were not changed stay."""
        project = await find_project(session, visit.access, name)
        visit = visit.about(project)
        form = await request.form()
        entered = {key: value.replace("\r\n", "\n") for key, value in form.items() if isinstance(value, str)}
        try:
            await change_project(session, visit.access, name, _change(project, entered), document_reader)
        except InvalidError as error:
            await session.rollback()
            await session.refresh(project)
            return _settings(
                visit.about(await find_project(session, visit.access, name)), _refused(entered, error)
            )
        return after_change(visit.url(f"/console/projects/{name}"), f"stored the settings of {name}")

    @post("/{name:str}/delete", opt=_ADMIN)
    async def delete(
        self,
        name: FromPath[str],
        request: AnyRequest,
        visit: Visitor,
        session: Db,
        datasets: NamedDependency[DatasetStore],
    ) -> Redirect:
        """Raises InvalidError unless the name was typed."""
        if (await request.form()).get("confirmed") != name:
            raise InvalidError(f"nothing was deleted: type the name of the project, {name}, to delete it")
        await delete_project(session, visit.access, name, datasets)
        return after_change("/console/projects", f"deleted the project {name} and all that was in it")


async def _list(visit: Visit, session: AsyncSession, form: Form[ProjectRequest]) -> Response[str]:
    rows = [row for row in await projects.list_all(session) if visit.access.sees(row.id)]
    settings = {row.id: projects.settings_of(row) for row in rows}
    return page(visit, "projects.html", projects=rows, settings=settings, form=form, status=form.status)


def _settings(visit: Visit, form: Form[None]) -> Response[str]:
    operator = visit.access.project_id is None
    groups = [group for group in setting_groups(ProjectSettings) if operator or group.name not in OPERATORS]
    hidden = set() if operator else OPERATORS
    return page(
        visit,
        "project.html",
        project=visit.project,
        groups=groups,
        hidden=hidden,
        signed=projects.SIGNED,
        has_secret={name: getattr(visit.project, f"{name}_secret") is not None for name in projects.SIGNED},
        form=form,
        status=form.status,
    )


def _change(project: tables.Project, entered: Mapping[str, str]) -> dict[str, Json]:
    """The merge patch. A new secret is sent with the address that it belongs to."""
    before = entered_values(projects.settings_of(project))
    known = {**before, **{name: value for name, value in entered.items() if name in before}}
    found = patch(ProjectSettings, known, before)
    for name in projects.SIGNED:
        if (secret := entered.get(f"{name}.secret")) and known.get(f"{name}.url"):
            given = found.get(name)
            found[name] = {**(given if isinstance(given, dict) else {}), "secret": secret}
    return found


def _refused(entered: Mapping[str, str], error: InvalidError) -> Form[None]:
    """What is wrong, beside its field if it is known."""
    found = _PLACE.match(str(error)) or _NAMED.match(str(error))
    if found is None or found["field"] not in {*entered, *(f"{name}.secret" for name in projects.SIGNED)}:
        return Form(values=entered, error=str(error), status=error.status)
    what = readable(found["what"], ProjectSettings, found["field"])
    return Form(values=entered, errors={found["field"]: what}, status=error.status)


class KeyFields(msgspec.Struct, frozen=True, kw_only=True):
    """The form of a new key: each scope is a checkbox. Without a project it is valid for all."""

    name: Name
    project: str | None = None
    tasks: bool = False
    skills: bool = False
    approvals: bool = False
    admin: bool = False

    def request(self) -> KeyRequest:
        return KeyRequest(self.name, [scope for scope in Scope if getattr(self, scope)], self.project)


class KeyPages(Controller):
    path = "/keys"
    opt = {"scope": "admin"}  # noqa: RUF012

    @get()
    async def index(self, visit: Visitor, session: Db) -> Response[str]:
        own = visit.chosen.name if visit.chosen else ""
        return await _keys_list(visit, session, Form(values={"project": own, Scope.TASKS: "true"}))

    @post()
    async def create(self, request: AnyRequest, visit: Visitor, session: Db) -> Response[str]:
        form = await read_form(request, KeyFields)
        if form.value is None:
            return await _keys_list(visit, session, form)
        try:
            created = await add_key(session, visit.access, form.value.request())
        except AppError as error:
            return await _keys_list(visit, session, form.refused(error))
        await session.commit()
        return await _keys_list(visit, session, Form(), created)

    @post("/{key_id:uuid}/revoke")
    async def revoke(self, key_id: FromPath[UUID], visit: Visitor, session: Db) -> Redirect:
        key = await revoke_key(session, visit.access, key_id)
        await session.commit()
        return after_change(visit.url("/console/keys"), f"revoked the key {key.name}")


async def _keys_list(
    visit: Visit, session: AsyncSession, form: Form[KeyFields], created: CreatedKey | None = None
) -> Response[str]:
    """The keys in use, newest first, and those that were revoked."""
    keys = sorted(await list_keys(session, visit.access), key=lambda key: key.created_at, reverse=True)
    keys.sort(key=lambda key: key.revoked_at is not None)
    status = 201 if created else form.status
    return page(visit, "keys.html", keys=keys, form=form, scopes=_SCOPES, created=created, status=status)


class SecretFields(msgspec.Struct, frozen=True):
    name: Name
    value: SecretText


class SecretPages(Controller):
    path = "/secrets"
    opt = {"scope": "admin"}  # noqa: RUF012

    @get()
    async def index(self, visit: Visitor, session: Db) -> Response[str]:
        return await _secrets_list(visit, session, Form())

    @post()
    async def store(self, request: AnyRequest, visit: Visitor, session: Db) -> Response[Any]:
        form = await read_form(request, SecretFields)
        if form.value is None:
            return await _secrets_list(visit, session, form)
        await store_secret(session, visit.access, visit.project.id, form.value.name, form.value.value)
        await session.commit()
        return after_change(visit.url("/console/secrets"), f"stored the secret {form.value.name}")

    @post("/{name:str}/delete")
    async def delete(self, name: FromPath[str], visit: Visitor, session: Db) -> Redirect:
        await delete_secret(session, visit.access, visit.project.id, name)
        await session.commit()
        return after_change(visit.url("/console/secrets"), f"deleted the secret {name}")


async def _secrets_list(visit: Visit, session: AsyncSession, form: Form[SecretFields]) -> Response[str]:
    rows = await secrets.of_project(session, visit.project.id)
    users = _users(await apis.of_project(session, visit.project.id))
    missing = sorted(users.keys() - {row.name for row in rows})
    return page(visit, "secrets.html", secrets=rows, users=users, missing=missing, form=form, status=form.status)


def _users(registered: Iterable[tables.Api]) -> dict[str, list[str]]:
    """By the name of a secret, the parameters of APIs that are bound to it."""
    found = defaultdict(list)
    for api in registered:
        for parameter, target in _targets(api.bind):
            found[target.removeprefix("secret:")].append(f"{api.name}.{parameter}")
    return dict(found)


def _targets(bind: dict[str, Json]) -> Iterator[tuple[str, str]]:
    """
    >>> list(_targets({"pin": "secret:a", "log_in": {"password": "secret:b"}}))
    [('pin', 'secret:a'), ('log_in.password', 'secret:b')]
    """
    for name, target in bind.items():
        if isinstance(target, str):
            yield name, target
        elif isinstance(target, dict):
            yield from ((f"{name}.{inner}", secret) for inner, secret in _targets(target))


class LimitRow(msgspec.Struct, frozen=True, kw_only=True):
    """`used` is None where it is not counted for the project as a whole, or not shown to the key."""

    name: str
    label: str
    limit: float | None
    used: float | None
    own: bool  # of the project, not the server's default
    show: Callable[[Any], str]


class UsagePages(Controller):
    path = "/usage"
    opt = {"scope": "tasks"}  # noqa: RUF012

    @get()
    async def show(self, visit: Visitor, session: Db, limits: NamedDependency[Limits]) -> Response[str]:
        usage = await view_usage(session, visit.project, limits)
        own = projects.settings_of(visit.project).limits
        stored = await datasets.stored_bytes(session, visit.project.id) if visit.allows("admin") else None
        days = _days(usage)
        return page(
            visit,
            "usage.html",
            usage=usage,
            rows=[_row(usage, own, name, stored) for name in _LABELS],
            days=days,
            charts=list(_charts(days)),
        )

    @get("/days")
    async def file(self, visit: Visitor, session: Db, limits: NamedDependency[Limits]) -> Response[str]:
        days = _days(await view_usage(session, visit.project, limits))
        rows = [[f"{day.day}", *(getattr(day, name) for name in _COLUMNS)] for day in days]
        return csv_file(f"usage-{visit.project.name}", ["day", *_COLUMNS], rows)


def _days(usage: UsageView) -> list[UsageOfDay]:
    """Oldest first, with those on which nothing happened."""
    today = usage.resets_at.date() - timedelta(days=1)
    known = {each.day: each for each in usage.days}
    days = (today - timedelta(days=ago) for ago in range(DAYS - 1, -1, -1))
    return [known.get(day) or UsageOfDay(day=day) for day in days]


def _row(usage: UsageView, own: Limits, name: str, stored: int | None) -> LimitRow:
    used = {**used_of(usage.queued, usage.running, usage.today), "dataset_bytes": stored}
    return LimitRow(
        name=name,
        label=_LABELS[name] + (_other(usage.today) if name == "cost_per_day" else ""),
        limit=getattr(usage.limits, name),
        used=used.get(name),
        own=getattr(own, name) is not None,
        show=_FORMATS.get(name, formats.count),
    )


def _other(today: UsageCounts) -> str:
    """The part of the cost that no list of tasks shows."""
    return f", {formats.money(today.other_cost)} of it for no task (trials, exams, …)" if today.other_cost else ""


def _charts(days: list[UsageOfDay]) -> Iterator[tuple[str, list[str], ColumnChart]]:
    """Title, columns of the numbers, and picture."""
    drawn = [
        ("Tasks that ended", ["done", "failed", "cancelled"], formats.count),
        ("Generated tokens", ["generated_tokens"], formats.count),
        ("API calls", ["calls"], formats.count),
    ]
    if any(day.cost for day in days):
        drawn.append(("Cost", ["cost"], formats.money))
    for title, names, show in drawn:
        columns = [Column(f"{day.day.day} {day.day:%b}", [getattr(day, name) for name in names]) for day in days]
        total = sum(sum(each.values) for each in columns)
        label = f"{title} by day: {show(total)} in {len(days)} days"
        shown = [name.replace("_", " ") for name in names]
        yield title, names, column_chart(label, shown, columns, show)


class AuditPages(Controller):
    path = "/audit"
    opt = {"scope": "admin"}  # noqa: RUF012

    @get()
    async def index(
        self,
        visit: Visitor,
        session: Db,
        action: FromQuery[str] = "",
        actor: FromQuery[str] = "",
        of: FromQuery[str] = "",
        cursor: FromQuery[str | None] = None,
    ) -> Response[str]:
        """`of=all` is of every project that the key may see, also of those that were deleted."""
        everywhere = of == "all" or visit.chosen is None
        project = visit.access.project_id if everywhere else visit.project.id
        found = await audit.page(
            session, project, actions=_actions(action), actor=actor, cursor=cursor, limit=_ENTRIES
        )
        return page(
            visit, "audit.html", found=found, actions=list(AuditAction), everywhere=everywhere, gist=audit.gist
        )


def _actions(name: str) -> tuple[AuditAction, ...]:
    """Raises InvalidError."""
    if not name:
        return ()
    try:
        return (AuditAction(name),)
    except ValueError as error:
        raise InvalidError(f"there is no action {name!r}: choose one of the list") from error


class WebhookPages(Controller):
    path = "/webhooks"
    opt = {"scope": "admin"}  # noqa: RUF012

    @get()
    async def index(
        self,
        visit: Visitor,
        session: Db,
        in_state: FromQuery[str] = "",
        cursor: FromQuery[str | None] = None,
    ) -> Response[str]:
        project = visit.project
        if in_state not in ("", *DeliveryState):
            raise InvalidError(f"there is no state {in_state!r}: choose one of the list")
        state = DeliveryState(in_state) if in_state else None
        found = await webhooks.page(session, project.id, state, cursor=cursor, limit=_MESSAGES)
        return page(
            visit,
            "webhooks.html",
            webhook=projects.settings_of(project).webhook,
            states=list(DeliveryState),
            deliveries=[DeliveryView.of(row, project.name) for row in found.items],
            cursor=found.cursor,
        )

    @post("/{delivery_id:uuid}/resend")
    async def resend(self, delivery_id: FromPath[UUID], visit: Visitor, session: Db) -> Redirect:
        row = await webhooks.get(session, delivery_id, visit.access.project_id)
        visit = await visit_project(visit, session, row.project_id)
        await webhooks.resend(session, delivery_id)
        await session.commit()
        return after_change(visit.url("/console/webhooks"), f"the message {row.event} is being sent again")

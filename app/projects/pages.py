"""Projects: the list, a new one, the settings of one, and deleting it with all that is in it."""

import re
from collections.abc import Mapping
from typing import Any

import msgspec
from litestar import Controller, Request, Response, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath
from litestar.response import Redirect
from sqlalchemy.ext.asyncio import AsyncSession

from app.api.access import Db
from app.api.project_access import find_project
from app.api.projects import OPERATORS, change_project, create_project, delete_project
from app.api.validation import Name
from app.apis.document_reader import DocumentReader
from app.console.form_messages import readable
from app.console.forms import Form, read_form
from app.console.settings_form import entered_values, patch, setting_groups
from app.console.visit import Visit, Visitor, after_change, page
from app.datasets.dataset_store import DatasetStore
from app.db import projects, tables
from app.errors import ConflictError, InvalidError
from app.project.project_settings import ProjectSettings
from app.records import Json
from app.release.first_release import FirstRelease

_ADMIN: Mapping[str, Any] = {"scope": "admin"}
_SIGNED = ("webhook", "verifier")  # have a secret, which is no part of the settings
_PLACE = re.compile(r"^(?:settings: )?(?P<what>.*?) - at `\$\.(?P<field>[\w.]+)[^`]*`$", re.DOTALL)
_NAMED = re.compile(r"^(?:settings: )?(?P<field>[a-z_]+(?:\.[a-z_]+)*):? (?P<what>.+)$", re.DOTALL)


class ProjectFields(msgspec.Struct, frozen=True):
    name: Name


class ProjectPages(Controller):
    path = "/projects"
    opt = {"scope": "tasks"}  # noqa: RUF012

    @get()
    async def index(self, visit: Visitor, session: Db) -> Response[str]:
        return await _list(visit, session, Form())

    @post(opt=_ADMIN)
    async def create(
        self,
        request: Request[Any, Any, Any],
        visit: Visitor,
        session: Db,
        first_release: NamedDependency[FirstRelease],
    ) -> Response[Any]:
        form = await read_form(request, ProjectFields)
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
        request: Request[Any, Any, Any],
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
        request: Request[Any, Any, Any],
        visit: Visitor,
        session: Db,
        datasets: NamedDependency[DatasetStore],
    ) -> Redirect:
        """Raises InvalidError unless the name was typed."""
        if (await request.form()).get("confirmed") != name:
            raise InvalidError(f"nothing was deleted: type the name of the project, {name}, to delete it")
        await delete_project(session, visit.access, name, datasets)
        return after_change("/console/projects", f"deleted the project {name} and all that was in it")


async def _list(visit: Visit, session: AsyncSession, form: Form[ProjectFields]) -> Response[str]:
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
        signed=_SIGNED,
        has_secret={name: getattr(visit.project, f"{name}_secret") is not None for name in _SIGNED},
        form=form,
        status=form.status,
    )


def _change(project: tables.Project, entered: Mapping[str, str]) -> dict[str, Json]:
    """The merge patch. A new secret is sent with the address that it belongs to."""
    before = entered_values(projects.settings_of(project))
    known = {**before, **{name: value for name, value in entered.items() if name in before}}
    found = patch(ProjectSettings, known, before)
    for name in _SIGNED:
        if (secret := entered.get(f"{name}.secret")) and known.get(f"{name}.url"):
            given = found.get(name)
            found[name] = {**(given if isinstance(given, dict) else {}), "secret": secret}
    return found


def _refused(entered: Mapping[str, str], error: InvalidError) -> Form[None]:
    """What is wrong, beside its field if it is known."""
    found = _PLACE.match(str(error)) or _NAMED.match(str(error))
    if found is None or found["field"] not in {*entered, *(f"{name}.secret" for name in _SIGNED)}:
        return Form(values=entered, error=str(error), status=error.status)
    what = readable(found["what"], ProjectSettings, found["field"])
    return Form(values=entered, errors={found["field"]: what}, status=error.status)

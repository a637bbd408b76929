"""Models that other servers host: those of a project and what they can do, a new one, probing and removing."""

from typing import Any

from litestar import Controller, Response, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath
from litestar.response import Redirect
from msgspec.structs import replace
from sqlalchemy.ext.asyncio import AsyncSession

from app.base.errors import AppError
from app.engine.hosted.routes import HostedModelRequest, HostedModelView, add_hosted, probe_hosted, remove_hosted
from app.releases import hosted_models
from app.releases.hosted_models import HostedModels
from app.web.access import Db
from app.web.forms import Form, read_form
from app.web.pages import Visit, Visitor, after_change, page
from app.web.problem import AnyRequest


class HostedModelPages(Controller):
    path = "/models"
    opt = {"scope": "admin"}  # noqa: RUF012

    @get()
    async def index(self, visit: Visitor, session: Db) -> Response[str]:
        return await _list(visit, session, Form())

    @post()
    async def add(
        self,
        request: AnyRequest,
        visit: Visitor,
        session: Db,
        hosted_endpoints: NamedDependency[HostedModels],
    ) -> Response[Any]:
        form = await read_form(request, HostedModelRequest)
        if form.value is None:
            return await _list(visit, session, form)
        data = replace(form.value, project=visit.project.name)
        try:
            await add_hosted(session, visit.access, visit.project, data, hosted_endpoints)
        except AppError as error:
            await session.rollback()
            return await _list(visit, session, form.refused(error))
        return after_change(visit.url("/console/models"), f"added the model {data.name}")

    @post("/{name:str}/probe")
    async def probe(
        self, name: FromPath[str], visit: Visitor, session: Db, hosted_endpoints: NamedDependency[HostedModels]
    ) -> Redirect:
        row = await probe_hosted(session, visit.access, visit.project, name, hosted_endpoints)
        what = f"{name} cannot be used: {row.failure}" if row.failure else f"probed the model {name}"
        return after_change(visit.url("/console/models"), what)

    @post("/{name:str}/delete")
    async def delete(self, name: FromPath[str], visit: Visitor, session: Db) -> Redirect:
        await remove_hosted(session, visit.access, visit.project, name)
        return after_change(visit.url("/console/models"), f"removed the model {name}")


async def _list(visit: Visit, session: AsyncSession, form: Form[HostedModelRequest]) -> Response[str]:
    rows = await hosted_models.of_project(session, visit.project.id)
    views = [HostedModelView.of(row, visit.project.name) for row in rows]
    return page(visit, "models.html", models=views, form=form, status=form.status)

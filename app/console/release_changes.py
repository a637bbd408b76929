"""Changes of what serves, by a person: each says exactly what it will change before it does it."""

from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
from litestar import Controller, Request, Response, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath
from litestar.response import Redirect
from sqlalchemy.ext.asyncio import AsyncSession

from app.base.errors import AppError, InvalidError
from app.console.releases import activation_label
from app.db import canaries, releases, tables
from app.db.database import Sessions
from app.projects import store as projects
from app.release import canary
from app.release.activation import changes_of
from app.release.manifest import SkillsMode
from app.release.promote import Promoter
from app.web.access import Db
from app.web.forms import Form, read_form
from app.web.pages import Visit, Visitor, after_change, page, visit_project

_Request = Request[Any, Any, Any]


class ActivationFields(msgspec.Struct, frozen=True):
    skills: SkillsMode = "restore"
    allow_rejected: Literal["", "true"] = ""


class CanaryFields(msgspec.Struct, frozen=True):
    percent: Annotated[float, msgspec.Meta(gt=0, le=100)]
    allow_rejected: Literal["", "true"] = ""


class ReleaseChangePages(Controller):
    path = "/releases/{release_id:uuid}"
    opt = {"scope": "admin"}  # noqa: RUF012

    @get("/activate")
    async def ask_activate(self, release_id: FromPath[UUID], visit: Visitor, session: Db) -> Response[Any]:
        return await _activation(visit, session, release_id, Form())

    @post("/activate")
    async def activate(
        self,
        release_id: FromPath[UUID],
        request: _Request,
        visit: Visitor,
        session: Db,
        promoter: NamedDependency[Promoter],
    ) -> Response[Any]:
        form = await read_form(request, ActivationFields)
        if form.value is None:
            return await _activation(visit, session, release_id, form)
        release = await releases.get(session, release_id, visit.access.project_id)
        await session.commit()  # no transaction is held while weights are loaded
        allowed = form.value.allow_rejected == "true"
        try:
            await promoter.activate(
                release_id, visit.access.actor, allow_rejected=allowed, skills=form.value.skills
            )
        except AppError as error:
            return await _activation(visit, session, release_id, form.refused(error))
        notice = f"release {release.number} serves all new tasks"
        return after_change(visit.url(f"/console/releases/{release_id}"), notice)

    @get("/canary/start")
    async def ask_canary(self, release_id: FromPath[UUID], visit: Visitor, session: Db) -> Response[Any]:
        return await _canary(visit, session, release_id, Form(values={"percent": "10"}))

    @post("/canary/start")
    async def start_canary(
        self,
        release_id: FromPath[UUID],
        request: _Request,
        visit: Visitor,
        session: Db,
        sessions: NamedDependency[Sessions],
        promoter: NamedDependency[Promoter],
    ) -> Response[Any]:
        form = await read_form(request, CanaryFields)
        if form.value is None:
            return await _canary(visit, session, release_id, form)
        release = await releases.get(session, release_id, visit.access.project_id)
        await session.commit()  # no transaction is held while weights are loaded
        percent, allowed = form.value.percent, form.value.allow_rejected == "true"
        try:
            await canary.begin(promoter, sessions, release_id, percent, visit.access.actor, allow_rejected=allowed)
        except AppError as error:
            return await _canary(visit, session, release_id, form.refused(error))
        notice = f"release {release.number} serves {percent:g} % of the new tasks as a canary"
        return after_change(visit.url(f"/console/releases/{release_id}"), notice)

    @get("/canary/end")
    async def ask_end(self, release_id: FromPath[UUID], visit: Visitor, session: Db) -> Response[Any]:
        release = await releases.get(session, release_id, visit.access.project_id)
        visit = await visit_project(visit, session, release.project_id)
        canaries.check_is_canary(release)
        active = await releases.active(session, release.project_id)
        return page(visit, "canary_end.html", release=release, active=active)

    @post("/canary/end")
    async def end_canary(
        self, release_id: FromPath[UUID], visit: Visitor, session: Db, sessions: NamedDependency[Sessions]
    ) -> Redirect:
        release = await releases.get(session, release_id, visit.access.project_id)
        await session.commit()
        await canary.end(sessions, release_id, visit.access.actor)
        notice = f"release {release.number} is no canary any more, but a candidate"
        return after_change(visit.url(f"/console/releases/{release_id}"), notice)


async def _activation(
    visit: Visit, session: AsyncSession, release_id: UUID, form: Form[ActivationFields]
) -> Response[Any]:
    """Raises InvalidError for the active release."""
    release = await releases.get(session, release_id, visit.access.project_id)
    visit = await visit_project(visit, session, release.project_id)
    active = await releases.find_active(session, release.project_id)
    if active is None or active.id == release.id:
        raise InvalidError(f"release {release.number} is active already")
    return page(
        visit,
        "release_activate.html",
        release=release,
        active=active,
        form=form,
        label=activation_label(release, active),
        changes=await changes_of(session, release, active),
        rejected=await _rejection(session, release),
        status=form.status,
    )


async def _canary(
    visit: Visit, session: AsyncSession, release_id: UUID, form: Form[CanaryFields]
) -> Response[Any]:
    release = await releases.get(session, release_id, visit.access.project_id)
    visit = await visit_project(visit, session, release.project_id)
    return page(
        visit,
        "canary_start.html",
        release=release,
        active=await releases.active(session, release.project_id),
        there=await projects.canary_of(session, release.project_id),
        rejected=await _rejection(session, release),
        form=form,
        status=form.status,
    )


async def _rejection(session: AsyncSession, release: tables.Release) -> tables.Release | None:
    """The release that was rejected with these weights, which a person may overrule."""
    return await releases.check_can_serve(session, release, allow_rejected=True)

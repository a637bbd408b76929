"""API keys: those there are, a new one, of which the secret is shown once, and revoking."""

from typing import Any
from uuid import UUID

import msgspec
from litestar import Controller, Request, Response, get, post
from litestar.params import FromPath
from litestar.response import Redirect
from sqlalchemy.ext.asyncio import AsyncSession

from app.api.access import Db
from app.api.keys import CreatedKey, KeyRequest, add_key, list_keys, revoke_key
from app.api.validation import Name
from app.console.forms import Form, read_form
from app.console.visit import Visit, Visitor, after_change, page
from app.db.keys import Scope
from app.errors import AppError

_SCOPES = {
    Scope.TASKS: "submit tasks, follow them and read what they led to",
    Scope.SKILLS: "read and manage skills",
    Scope.APPROVALS: "approve or refuse calls that wait for a person",
    Scope.ADMIN: "everything",
}


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
        return await _list(visit, session, Form(values={"project": own, Scope.TASKS: "true"}))

    @post()
    async def create(self, request: Request[Any, Any, Any], visit: Visitor, session: Db) -> Response[str]:
        form = await read_form(request, KeyFields)
        if form.value is None:
            return await _list(visit, session, form)
        try:
            created = await add_key(session, visit.access, form.value.request())
        except AppError as error:
            return await _list(visit, session, form.refused(error))
        await session.commit()
        return await _list(visit, session, Form(), created)

    @post("/{key_id:uuid}/revoke")
    async def revoke(self, key_id: FromPath[UUID], visit: Visitor, session: Db) -> Redirect:
        key = await revoke_key(session, visit.access, key_id)
        await session.commit()
        return after_change(visit.url("/console/keys"), f"revoked the key {key.name}")


async def _list(
    visit: Visit, session: AsyncSession, form: Form[KeyFields], created: CreatedKey | None = None
) -> Response[str]:
    """The keys in use, newest first, and those that were revoked."""
    keys = sorted(await list_keys(session, visit.access), key=lambda key: key.created_at, reverse=True)
    keys.sort(key=lambda key: key.revoked_at is not None)
    status = 201 if created else form.status
    return page(visit, "keys.html", keys=keys, form=form, scopes=_SCOPES, created=created, status=status)

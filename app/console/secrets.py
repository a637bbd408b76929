"""Secrets of a project: their names, what is bound to them, a new value, and deleting. Values are never shown."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
from litestar import Controller, Request, Response, get, post
from litestar.params import FromPath
from litestar.response import Redirect
from sqlalchemy.ext.asyncio import AsyncSession

from app.api.access import Db
from app.api.secrets import SecretText, delete_secret, store_secret
from app.api.validation import Name
from app.console.forms import Form, read_form
from app.console.visit import Visit, Visitor, after_change, page
from app.db import apis, secrets, tables
from app.records import Json


class SecretFields(msgspec.Struct, frozen=True):
    name: Name
    value: SecretText


class SecretPages(Controller):
    path = "/secrets"
    opt = {"scope": "admin"}  # noqa: RUF012

    @get()
    async def index(self, visit: Visitor, session: Db) -> Response[str]:
        return await _list(visit, session, Form())

    @post()
    async def store(self, request: Request[Any, Any, Any], visit: Visitor, session: Db) -> Response[Any]:
        form = await read_form(request, SecretFields)
        if form.value is None:
            return await _list(visit, session, form)
        await store_secret(session, visit.access, visit.project.id, form.value.name, form.value.value)
        await session.commit()
        return after_change(visit.url("/console/secrets"), f"stored the secret {form.value.name}")

    @post("/{name:str}/delete")
    async def delete(self, name: FromPath[str], visit: Visitor, session: Db) -> Redirect:
        await delete_secret(session, visit.access, visit.project.id, name)
        await session.commit()
        return after_change(visit.url("/console/secrets"), f"deleted the secret {name}")


async def _list(visit: Visit, session: AsyncSession, form: Form[SecretFields]) -> Response[str]:
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

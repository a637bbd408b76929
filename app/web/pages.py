"""A request of a person who is signed in, and the answers to it."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, TypeAlias
from urllib.parse import parse_qsl, urlencode, urlsplit
from uuid import UUID

import msgspec
from litestar import MediaType, Request, Response
from litestar.datastructures import Cookie
from litestar.di import NamedDependency
from litestar.response import Redirect
from sqlalchemy.ext.asyncio import AsyncSession

from app.api.access import Access, Connection
from app.api.project_access import find_project
from app.console import notices
from app.console.templates import render
from app.db import clock, projects, tables
from app.db.database import Sessions, reading
from app.errors import ConflictError, NotFoundError

_PROJECT_COOKIE = "sage_project"  # the one that was looked at last
THEME_COOKIE = "sage_theme"
_COOKIE: dict[str, Any] = {"path": "/console", "httponly": True, "samesite": "strict"}


class Visit(msgspec.Struct, frozen=True, kw_only=True):
    """Handlers get it by naming `visit` as a parameter."""

    access: Access
    csrf: str  # the token of all forms
    address: str  # path and query
    theme: str  # light, dark or empty: as the system
    now: datetime
    notice: str | None = None  # about the change that led here
    chosen: tables.Project | None = None  # None: there is no project yet
    projects: tuple[str, ...] = ()  # that the key may see

    @property
    def project(self) -> tables.Project:
        """The project that the page is about. Raises ConflictError if there is none yet."""
        if self.chosen is None:
            raise ConflictError("there is no project yet: create one under Projects")
        return self.chosen

    @property
    def path(self) -> str:
        return urlsplit(self.address).path

    @property
    def query(self) -> dict[str, str]:
        return dict(parse_qsl(urlsplit(self.address).query, keep_blank_values=True))

    def about(self, project: tables.Project) -> "Visit":
        """The same visit, of a page about something of this project."""
        return msgspec.structs.replace(self, chosen=project)

    def allows(self, scope: str) -> bool:
        return self.access.allows(scope)

    def url(self, path: str, **query: object) -> str:
        """The address of another page of this project."""
        named = {"project": self.chosen.name if self.chosen else None, **query}
        return _address(path, {name: str(value) for name, value in named.items() if value not in (None, "")})

    def here(self, **changes: object) -> str:
        """The address of this page with another query; None and "" remove a parameter."""
        query = {**self.query, **changes}
        return _address(self.path, {name: str(value) for name, value in query.items() if value not in (None, "")})


Visitor: TypeAlias = NamedDependency[Visit]


async def provide_visit(request: Request[Any, Any, Any]) -> Visit:
    """The guard has made it: a dependency that raises would leave the session of the request open."""
    visit: Visit = request.state["visit"]
    return visit


async def with_project(visit: Visit, request: Connection, sessions: Sessions) -> Visit:
    """The project is the one in the address, else the key's own, else the one that was looked at last.

    Raises NotFoundError for one that the key may not see.
    """
    async with reading(sessions) as session:
        known = [each for each in await projects.list_all(session) if visit.access.sees(each.id)]
        last = request.cookies.get(_PROJECT_COOKIE)
        chosen = next((each for each in known if each.name == last), known[0] if known else None)
        if (name := request.query_params.get("project")) is not None:
            chosen = await find_project(session, visit.access, name)
        now = await clock.now(session)
    names = tuple(each.name for each in known)
    return msgspec.structs.replace(visit, chosen=chosen, projects=names, now=now)


async def visit_project(visit: Visit, session: AsyncSession, project_id: UUID) -> Visit:
    """The visit of a page about something of this project. Raises NotFoundError if the key may not see it."""
    if not visit.access.sees(project_id):
        raise NotFoundError("there is nothing at this address")
    return visit.about(await projects.by_id(session, project_id))


def page(visit: Visit, template: str, *, status: int = 200, **values: object) -> Response[str]:
    """The page of a template, which finds the visit as `visit` and each of the `values` by its name."""
    html = render(template, visit=visit, **values)
    cookies = [*notices.shown(visit.notice), *_remembered(visit)]
    return Response(html, status_code=status, media_type=MediaType.HTML, cookies=cookies)


def after_change(address: str, notice: str) -> Redirect:
    """Go on to a page that tells what has been done."""
    return Redirect(address, status_code=303, cookies=notices.kept(notice))


def _remembered(visit: Visit) -> Sequence[Cookie]:
    """The project that is the next one's without a name in its address."""
    return [Cookie(key=_PROJECT_COOKIE, value=visit.chosen.name, **_COOKIE)] if visit.chosen else []


def _address(path: str, query: dict[str, str]) -> str:
    return f"{path}?{urlencode(query)}" if query else path

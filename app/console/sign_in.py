"""Signing in with a key or with a link that is good once, signing out, and the theme."""

from typing import Annotated, Any

from litestar import Controller, MediaType, Request, Response, get, post
from litestar.datastructures import Cookie
from litestar.params import FromQuery, QueryParameter
from litestar.response import Redirect
from sqlalchemy.ext.asyncio import AsyncSession

from app.api.access import ANY_KEY, Db
from app.api.project_access import read_access
from app.console.navigation import HOME
from app.console.problem_pages import SIGN_IN
from app.console.session import check_origin, session_cookie
from app.console.templates import render
from app.console.visit import THEME_COOKIE
from app.db import sign_ins
from app.errors import LimitError, UnauthorizedError

_YEAR = 365 * 24 * 3600
Following = Annotated[str, QueryParameter(name="next")]

_MOST_BYTES = 20_000  # of the form, which is read before anyone is known
_AnyRequest = Request[Any, Any, Any]


class SignInPages(Controller):
    path = "/sign-in"

    @get()
    async def ask(
        self, request: _AnyRequest, following: Following = "", link: FromQuery[str] = ""
    ) -> Response[str]:
        """Nothing is used up yet: whatever opens links by itself must not take the place of a person."""
        name = None
        if link:
            try:
                name = (await read_access(request, link, sign_ins.key_of_link)).name
            except UnauthorizedError:
                return _form(following, error=_USED, status=401)
        return _form(following, link=link, name=name)

    @post(request_max_body_size=_MOST_BYTES)
    async def sign_in(self, request: _AnyRequest, session: Db) -> Response[Any]:
        check_origin(request)
        form = await request.form()
        link, key, following = (str(form.get(name, "")).strip() for name in ("link", "key", "next"))
        try:
            secret = await _begin(request, session, link, key)
        except (UnauthorizedError, LimitError) as error:
            return _form(following, error=_USED if link else f"{error}", status=error.status)
        await session.commit()
        return Redirect(_own(following), status_code=303, cookies=[session_cookie(request, secret)])


class SessionPages(Controller):
    opt = {"scope": ANY_KEY}  # noqa: RUF012

    @post("/sign-out")
    async def sign_out(self, request: _AnyRequest, session: Db) -> Response[Any]:
        await sign_ins.end(session, request.state["secret"])
        await session.commit()
        return Redirect(SIGN_IN, status_code=303, cookies=[session_cookie(request, "")])

    @post("/theme")
    async def set_theme(self, request: _AnyRequest) -> Response[Any]:
        form = await request.form()
        theme = Cookie(key=THEME_COOKIE, value=str(form.get("theme", "")), path="/console", max_age=_YEAR)
        theme.httponly, theme.samesite = True, "strict"
        return Redirect(_own(str(form.get("next", ""))), status_code=303, cookies=[theme])


_USED = "This link was used already or has expired. Print a new one with `sage console`, or sign in with a key."


async def _begin(request: _AnyRequest, session: AsyncSession, link: str, key: str) -> str:
    """The secret of a new session. Raises UnauthorizedError, LimitError."""
    if link:
        await read_access(request, link, sign_ins.key_of_link)
        return await sign_ins.redeem(session, link)
    if not key:
        raise UnauthorizedError("enter a key")
    return await sign_ins.begin(session, (await read_access(request, key)).key_id)


def _form(
    following: str, *, link: str = "", name: str | None = None, error: str | None = None, status: int = 200
) -> Response[str]:
    html = render("sign_in.html", visit=None, following=_own(following), link=link, name=name, error=error)
    return Response(html, status_code=status, media_type=MediaType.HTML)


def _own(address: str) -> str:
    """The address if it is one of a page of the console, else the first page.

    >>> _own("/console/tasks?q=tea"), _own("//evil.example"), _own("/console/..//evil"), _own("/v1/tasks")
    ('/console/tasks?q=tea', '/console', '/console', '/console')
    """
    plain = address.startswith((f"{HOME}/", f"{HOME}?")) and not any(part in address for part in ("..", "\\"))
    return address if plain and address.isprintable() else HOME

"""Who a request of the console comes from, and whether a form is one of its own."""

import hashlib
import hmac
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

from litestar import Request
from litestar.datastructures import Cookie
from litestar.handlers import BaseRouteHandler

from app.api.access import Connection
from app.api.project_access import read_access
from app.console import notices
from app.console.visit import THEME_COOKIE, Visit, with_project
from app.db import sign_ins
from app.errors import ForbiddenError, UnauthorizedError

_READS = ("GET", "HEAD")
_CSRF_FIELD, _CSRF_HEADER = "csrf", "X-CSRF-Token"
_THEMES = ("light", "dark")


async def authorize_visit(connection: Connection, handler: BaseRouteHandler) -> None:
    """A guard. Each route names the scope it needs in its `opt`, as those of REST do.

    Raises UnauthorizedError, ForbiddenError for a missing scope or a forged form, NotFoundError, LimitError.
    """
    secret = connection.cookies.get(cookie_name(connection))
    if not secret:
        raise UnauthorizedError("sign in first")
    access = await read_access(connection, secret, sign_ins.key_of)
    csrf = csrf_token(secret)
    theme = connection.cookies.get(THEME_COOKIE, "")
    query = connection.scope["query_string"].decode("latin-1")
    connection.state["secret"] = secret
    connection.state["visit"] = Visit(
        access=access,
        csrf=csrf,
        address=f"{connection.url.path}?{query}" if query else connection.url.path,
        theme=theme if theme in _THEMES else "",
        now=datetime.now(UTC),
        notice=notices.read(connection.cookies),
    )
    access.require(handler.opt["scope"])
    if isinstance(connection, Request) and connection.method not in _READS:
        await _refuse_forged(connection, csrf)
    sessions = connection.app.state["dependencies"].sessions
    connection.state["visit"] = await with_project(connection.state["visit"], connection, sessions)


def check_origin(connection: Connection) -> None:
    """Raises ForbiddenError for a form of another site."""
    origin = connection.headers.get("origin")
    own = {connection.headers.get("host", ""), urlsplit(connection.app.state["dependencies"].public_url).netloc}
    if origin is not None and urlsplit(origin).netloc not in own - {""}:
        raise ForbiddenError(
            f"this form was sent from {origin[:200]}, which is not this server's address: if it is, set "
            "SAGE_PUBLIC_URL to it"
        )


def csrf_token(secret: str) -> str:
    """The token of the forms of a session, which tells nothing about its secret."""
    return hmac.digest(secret.encode(), b"forms of the console", hashlib.sha256).hex()


def session_cookie(connection: Connection, secret: str) -> Cookie:
    """An empty secret removes the cookie."""
    return Cookie(
        key=cookie_name(connection),
        value=secret,
        path="/console",
        max_age=int(sign_ins.SESSION.total_seconds()) if secret else 0,
        httponly=True,
        secure=is_secure(connection),
        samesite="strict",
    )


def cookie_name(connection: Connection) -> str:
    """Browsers share cookies between the ports of a host."""
    port = connection.url.port
    return f"sage_console_{port}" if port else "sage_console"


def is_secure(connection: Connection) -> bool:
    public: str = connection.app.state["dependencies"].public_url
    return connection.url.scheme == "https" or public.startswith("https:")


async def _refuse_forged(request: Request[Any, Any, Any], csrf: str) -> None:
    check_origin(request)
    sent = request.headers.get(_CSRF_HEADER) or (await request.form()).get(_CSRF_FIELD)
    if not isinstance(sent, str) or not hmac.compare_digest(sent.encode("utf-8", "replace"), csrf.encode()):
        raise ForbiddenError("this form belongs to another session: go back, load the page again, and repeat it")

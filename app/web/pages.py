"""The shell of the console: who a request comes from, the page that answers it, and what all pages share.

A visit is a request of a person who is signed in. Signing in, forged forms, notices, navigation, templates,
style sheet and problem pages are here; each noun's own pages are in its folder.
"""

import hashlib
import hmac
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Any, TypeAlias, cast
from urllib.parse import parse_qsl, urlencode, urlsplit
from uuid import UUID

import msgspec
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from litestar import Controller, MediaType, Request, Response, get, post
from litestar.datastructures import Cookie, MutableScopeHeaders
from litestar.di import NamedDependency
from litestar.enums import ScopeType
from litestar.handlers import BaseRouteHandler
from litestar.params import FromPath, FromQuery, QueryParameter
from litestar.response import Redirect
from litestar.types import ASGIApp, ExceptionHandlersMap, Message, Receive, Scope, Send
from markupsafe import Markup, escape
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_by_name
from sqlalchemy.ext.asyncio import AsyncSession

from app.apis.values import readable
from app.base.errors import ConflictError, ForbiddenError, LimitError, NotFoundError, UnauthorizedError
from app.base.text import visible
from app.base.values import GRADES, Json, explored, in_words, shown_model, what_to_do
from app.db import queries, tables
from app.db.database import Sessions, reading
from app.projects import keys
from app.projects import store as projects
from app.projects.authorization import find_project, read_access
from app.web import formats
from app.web.access import ANY_KEY, Access, Connection, Db
from app.web.problem import HANDLERS, AnyRequest, Problem

_PROJECT_COOKIE = "sage_project"  # the one that was looked at last
THEME_COOKIE = "sage_theme"
_COOKIE: dict[str, Any] = {"path": "/console", "httponly": True, "samesite": "strict"}
_READS = ("GET", "HEAD")
_CSRF_FIELD, _CSRF_HEADER = "csrf", "X-CSRF-Token"
_THEMES = ("light", "dark")
_YEAR = 365 * 24 * 3600
Following = Annotated[str, QueryParameter(name="next")]
_MOST_BYTES = 20_000  # of the form to sign in, which is read before anyone is known
_USED_LINK = (
    "This link was used already or has expired. Print a new one with `sage console`, or sign in with a key."
)
_Answer = Callable[[AnyRequest, Any], Response[Problem]]
SIGN_IN = "/console/sign-in"
_NOTICE_COOKIE = "sage_notice"
_NOTICE_SECONDS = 60
_NOTICE_CHARS = 1_000  # cookies have 4 kB
HOME = "/console"
_TEMPLATES = Path(__file__).parent / "templates"
_HIGHLIGHTED = 100_000  # characters that are highlighted: the rest of a page would wait for more
_ASSETS = Path(__file__).parent / "static"
_MEDIA_TYPES = {"style.css": "text/css", "console.js": "text/javascript"}
_KEPT = "public, max-age=31536000, immutable"

_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "same-origin",  # with "no-referrer", forms would not tell where they come from
    "X-Content-Type-Options": "nosniff",
}


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


async def provide_visit(request: AnyRequest) -> Visit:
    """The guard has made it: a dependency that raises would leave the session of the request open."""
    visit: Visit = request.state["visit"]
    return visit


async def _with_project(visit: Visit, request: Connection, sessions: Sessions) -> Visit:
    """The project is the one in the address, else the key's own, else the one that was looked at last.

    Raises NotFoundError for one that the key may not see.
    """
    async with reading(sessions) as session:
        known = [each for each in await projects.list_all(session) if visit.access.sees(each.id)]
        last = request.cookies.get(_PROJECT_COOKIE)
        chosen = next((each for each in known if each.name == last), known[0] if known else None)
        if (name := request.query_params.get("project")) is not None:
            chosen = await find_project(session, visit.access, name)
        now = await queries.now(session)
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
    cookies = [*shown(visit.notice)]
    if visit.chosen:  # the project that is the next one's without a name in its address
        cookies.append(Cookie(key=_PROJECT_COOKIE, value=visit.chosen.name, **_COOKIE))
    return Response(html, status_code=status, media_type=MediaType.HTML, cookies=cookies)


def after_change(address: str, notice: str) -> Redirect:
    """Go on to a page that tells what has been done."""
    return Redirect(address, status_code=303, cookies=kept(notice))


def _address(path: str, query: dict[str, str]) -> str:
    return f"{path}?{urlencode(query)}" if query else path


async def authorize_visit(connection: Connection, handler: BaseRouteHandler) -> None:
    """A guard. Each route names the scope it needs in its `opt`, as those of REST do.

    Raises UnauthorizedError, ForbiddenError for a missing scope or a forged form, NotFoundError, LimitError.
    """
    secret = connection.cookies.get(cookie_name(connection))
    if not secret:
        raise UnauthorizedError("sign in first")
    access = await read_access(connection, secret, keys.key_of)
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
        notice=read(connection.cookies),
    )
    access.require(handler.opt["scope"])
    if isinstance(connection, Request) and connection.method not in _READS:
        await _refuse_forged(connection, csrf)
    sessions = connection.app.state["dependencies"].sessions
    connection.state["visit"] = await _with_project(connection.state["visit"], connection, sessions)


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
        max_age=int(keys.SESSION.total_seconds()) if secret else 0,
        secure=_is_secure(connection),
        **_COOKIE,
    )


def cookie_name(connection: Connection) -> str:
    """Browsers share cookies between the ports of a host."""
    port = connection.url.port
    return f"sage_console_{port}" if port else "sage_console"


def _is_secure(connection: Connection) -> bool:
    public: str = connection.app.state["dependencies"].public_url
    return connection.url.scheme == "https" or public.startswith("https:")


async def _refuse_forged(request: AnyRequest, csrf: str) -> None:
    check_origin(request)
    sent = request.headers.get(_CSRF_HEADER) or (await request.form()).get(_CSRF_FIELD)
    if not isinstance(sent, str) or not hmac.compare_digest(sent.encode("utf-8", "replace"), csrf.encode()):
        raise ForbiddenError("this form belongs to another session: go back, load the page again, and repeat it")


class SignInPages(Controller):
    path = "/sign-in"

    @get()
    async def ask(
        self, request: AnyRequest, following: Following = "", link: FromQuery[str] = ""
    ) -> Response[str]:
        """Nothing is used up yet: whatever opens links by itself must not take the place of a person."""
        name = None
        if link:
            try:
                name = (await read_access(request, link, keys.key_of_link)).name
            except UnauthorizedError:
                return _form(following, error=_USED_LINK, status=401)
        return _form(following, link=link, name=name)

    @post(request_max_body_size=_MOST_BYTES)
    async def sign_in(self, request: AnyRequest, session: Db) -> Response[Any]:
        check_origin(request)
        form = await request.form()
        link, key, following = (str(form.get(name, "")).strip() for name in ("link", "key", "next"))
        try:
            secret = await _begin(request, session, link, key)
        except (UnauthorizedError, LimitError) as error:
            return _form(following, error=_USED_LINK if link else f"{error}", status=error.status)
        await session.commit()
        return Redirect(_own(following), status_code=303, cookies=[session_cookie(request, secret)])


class SessionPages(Controller):
    opt = {"scope": ANY_KEY}  # noqa: RUF012

    @post("/sign-out")
    async def sign_out(self, request: AnyRequest, session: Db) -> Response[Any]:
        await keys.end(session, request.state["secret"])
        await session.commit()
        return Redirect(SIGN_IN, status_code=303, cookies=[session_cookie(request, "")])

    @post("/theme")
    async def set_theme(self, request: AnyRequest) -> Response[Any]:
        form = await request.form()
        theme = Cookie(key=THEME_COOKIE, value=str(form.get("theme", "")), path="/console", max_age=_YEAR)
        theme.httponly, theme.samesite = True, "strict"
        return Redirect(_own(str(form.get("next", ""))), status_code=303, cookies=[theme])


async def _begin(request: AnyRequest, session: AsyncSession, link: str, key: str) -> str:
    """The secret of a new session. Raises UnauthorizedError, LimitError."""
    if link:
        await read_access(request, link, keys.key_of_link)
        return await keys.redeem(session, link)
    if not key:
        raise UnauthorizedError("enter a key")
    return await keys.begin(session, (await read_access(request, key)).key_id)


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


@get("/{path:path}", opt={"scope": ANY_KEY})
async def show_nothing(path: FromPath[str], visit: Visitor) -> None:  # noqa: ARG001  the page has its layout
    raise NotFoundError(f"the console has no page {path}")


def _page_of(answer: _Answer) -> Callable[[AnyRequest, Any], Response[str]]:
    def show(request: AnyRequest, error: Any) -> Response[str]:
        problem = answer(request, error)
        return _problem_page(request, problem.content, problem.headers)

    return show


def _sign_in_first(request: AnyRequest, error: UnauthorizedError) -> Response[Any]:
    """Lead to the sign-in and back. A link from another site comes without the cookie: the browser is asked to
    follow it once more, from here.
    """
    if request.method != "GET" or request.url.path.startswith(SIGN_IN):
        problem = cast("_Answer", HANDLERS[UnauthorizedError.__base__ or Exception])(request, error)
        return _problem_page(request, problem.content, {})
    address = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    if request.headers.get("sec-fetch-site") == "cross-site" and not request.cookies:
        return Response(render("follow.html", address=address), media_type=MediaType.HTML)
    ended = [session_cookie(request, "")]  # or each request would count as a wrong key
    return Redirect(f"{SIGN_IN}?{urlencode({'next': address})}", status_code=303, cookies=ended)


def _problem_page(request: AnyRequest, problem: Problem, headers: Any) -> Response[str]:
    before = urlsplit(request.headers.get("referer", ""))
    own = before.netloc == request.headers.get("host") and before.path.startswith("/console")
    html = render(
        "problem.html",
        visit=request.state.get("visit"),
        problem=problem,
        back=f"{before.path}?{before.query}" if own else None,
        missing_scope=problem.status == HTTPStatus.FORBIDDEN,
    )
    return Response(html, status_code=problem.status, media_type=MediaType.HTML, headers=headers)


PROBLEM_PAGES: ExceptionHandlersMap = {
    **{kind: _page_of(cast("_Answer", handler)) for kind, handler in HANDLERS.items()},
    UnauthorizedError: _sign_in_first,
}


def kept(notice: str) -> list[Cookie]:
    """
    >>> read({"sage_notice": kept("revoked “ci”")[0].value})
    'revoked “ci”'
    >>> read({"sage_notice": "no base64"}), read({})
    (None, None)
    """
    value = urlsafe_b64encode(notice[:_NOTICE_CHARS].encode()).decode().rstrip("=")
    return [Cookie(key=_NOTICE_COOKIE, value=value, max_age=_NOTICE_SECONDS, **_COOKIE)]


def read(cookies: Mapping[str, str | None]) -> str | None:
    value = cookies.get(_NOTICE_COOKIE) or ""
    try:
        return urlsafe_b64decode(value + "=" * (-len(value) % 4)).decode() or None
    except ValueError:
        return None


def shown(notice: str | None) -> Sequence[Cookie]:
    """Forget a notice that the answer shows."""
    return [Cookie(key=_NOTICE_COOKIE, value="", max_age=0, **_COOKIE)] if notice else []


class NavigationEntry(msgspec.Struct, frozen=True):
    """Shown to keys with the scope. `g` and then `key` on the keyboard leads to it."""

    title: str
    path: str
    scope: str
    key: str

    def leads_to(self, path: str) -> bool:
        """
        >>> tasks = NavigationEntry("Tasks", "/console/tasks", "tasks", "t")
        >>> tasks.leads_to("/console/tasks/1"), tasks.leads_to("/console/tasksets")
        (True, False)
        """
        return path == self.path or path.startswith(f"{self.path}/")


NAVIGATION = (
    NavigationEntry("Home", HOME, ANY_KEY, "h"),
    NavigationEntry("Tasks", "/console/tasks", "tasks", "t"),
    NavigationEntry("Approvals", "/console/approvals", "approvals", "v"),
    NavigationEntry("Feedback", "/console/feedback", "tasks", "f"),
    NavigationEntry("APIs", "/console/apis", "tasks", "a"),
    NavigationEntry("Skills", "/console/skills", "skills", "s"),
    NavigationEntry("Releases", "/console/releases", "tasks", "r"),
    NavigationEntry("Runs", "/console/runs", "admin", "n"),
    NavigationEntry("Exams", "/console/exams", "admin", "e"),
    NavigationEntry("Models", "/console/models", "admin", "m"),
    NavigationEntry("Secrets", "/console/secrets", "admin", "x"),
    NavigationEntry("Projects", "/console/projects", "tasks", "p"),
    NavigationEntry("Keys", "/console/keys", "admin", "k"),
    NavigationEntry("Usage", "/console/usage", "tasks", "u"),
    NavigationEntry("Audit", "/console/audit", "admin", "l"),
    NavigationEntry("Webhook", "/console/webhooks", "admin", "w"),
    NavigationEntry("Health", "/console/health", "admin", "y"),
)


def render(template: str, **values: object) -> str:
    """Values are escaped, and a name that is not given is an error."""
    return _environment().get_template(template).render(**values)


def _seen(value: object) -> object:
    """What a template prints; markup is made of texts that were printed before."""
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_seen,
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.do"],
    )
    filters: dict[str, Any] = {
        "count": formats.count,
        "model": shown_model,
        "percent": formats.percent,
        "duration": formats.duration,
        "score": formats.score,
        "money": formats.money,
        "in_words": in_words,
        "explored": explored,
        "size": formats.size,
        "signed": formats.signed,
        "when": formats.when,
        "code": code_block,
        "as_json": _json_block,
        "readable": readable,
        "exact": escape,  # of a field that is sent back
    }
    environment.filters.update(filters)
    environment.globals.update(navigation=NAVIGATION, asset=asset_url, grades=GRADES, what_to_do=what_to_do)
    return environment


def code_block(text: str, language: str = "python") -> Markup:
    """
    >>> print(code_block("<1"))
    <pre class="code" tabindex="0"><code><span class="o">&lt;</span><span class="mi">1</span>
    </code></pre>
    """
    text = visible(text)
    if len(text) > _HIGHLIGHTED:
        return Markup('<pre class="code" tabindex="0"><code>{}</code></pre>').format(text)
    marked = highlight(text, get_lexer_by_name(language, stripnl=False), HtmlFormatter(nowrap=True))
    return Markup(f'<pre class="code" tabindex="0"><code>{marked}</code></pre>')  # escaped by pygments


def _json_block(value: Json) -> Markup:
    """
    >>> _json_block({"id": 7}).striptags()
    '{ "id": 7 }'
    >>> _json_block({"$bytes": 3, "sha256": "9f86d0"}).striptags()
    '"3 bytes, sha256 9f86d0"'
    """
    return code_block(msgspec.json.format(msgspec.json.encode(readable(value)), indent=2).decode(), "json")


@get("/static/{digest:str}/{name:str}", sync_to_thread=True)
def show_asset(digest: FromPath[str], name: FromPath[str]) -> Response[bytes]:
    """A page of another version of the server gets the file of this one, and does not keep it."""
    if name not in _MEDIA_TYPES:
        raise NotFoundError(f"the console has no file {name!r}")
    content = _content(name)
    headers = {"Cache-Control": _KEPT if digest == _digest(content) else "no-store"}
    return Response(content, media_type=_MEDIA_TYPES[name], headers=headers)


@cache
def asset_url(name: str) -> str:
    return f"/console/static/{_digest(_content(name))}/{name}"


@cache
def _content(name: str) -> bytes:
    return (_ASSETS / name).read_bytes()


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def secure_headers(app: ASGIApp) -> ASGIApp:
    """A middleware. Pages are not kept: another person may use the browser next."""

    async def secured(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != ScopeType.HTTP:
            await app(scope, receive, send)
            return
        began = time.perf_counter()

        async def send_secured(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableScopeHeaders.from_message(message)
                for name, value in _HEADERS.items():
                    headers[name] = value
                headers.setdefault("Cache-Control", "no-store")
                headers["Server-Timing"] = f"total;dur={(time.perf_counter() - began) * 1000:.1f}"
            await send(message)

        await app(scope, receive, send_secured)

    return secured

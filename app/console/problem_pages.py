"""Turns errors into pages, with the status and the words that REST has for them."""

from collections.abc import Callable
from http import HTTPStatus
from typing import Any, cast
from urllib.parse import urlencode, urlsplit

from litestar import MediaType, Request, Response, get
from litestar.params import FromPath
from litestar.response import Redirect
from litestar.types import ExceptionHandlersMap

from app.api.access import ANY_KEY
from app.api.problem import HANDLERS, Problem
from app.console.session import session_cookie
from app.console.templates import render
from app.console.visit import Visitor
from app.errors import NotFoundError, UnauthorizedError

_Answer = Callable[[Request[Any, Any, Any], Any], Response[Problem]]
SIGN_IN = "/console/sign-in"


@get("/{path:path}", opt={"scope": ANY_KEY})
async def show_nothing(path: FromPath[str], visit: Visitor) -> None:  # noqa: ARG001  the page has its layout
    raise NotFoundError(f"the console has no page {path}")


def _page_of(answer: _Answer) -> Callable[[Request[Any, Any, Any], Any], Response[str]]:
    def show(request: Request[Any, Any, Any], error: Any) -> Response[str]:
        problem = answer(request, error)
        return _problem_page(request, problem.content, problem.headers)

    return show


def _sign_in_first(request: Request[Any, Any, Any], error: UnauthorizedError) -> Response[Any]:
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


def _problem_page(request: Request[Any, Any, Any], problem: Problem, headers: Any) -> Response[str]:
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

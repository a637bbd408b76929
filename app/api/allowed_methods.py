"""Answers to OPTIONS that name all methods of a path: the framework names those of one of its controllers."""

from http import HTTPMethod
from typing import cast

from litestar import Litestar
from litestar.datastructures import MutableScopeHeaders
from litestar.enums import ScopeType
from litestar.routes import HTTPRoute
from litestar.types import ASGIApp, Message, Receive, Scope, Send


def answer_options(app: ASGIApp) -> ASGIApp:
    """A middleware."""

    async def answered(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != ScopeType.HTTP or scope["method"] != HTTPMethod.OPTIONS:
            await app(scope, receive, send)
            return
        allowed = ", ".join(sorted(_methods(scope["litestar_app"], scope["path_template"])))

        async def send_allowed(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableScopeHeaders.from_message(message)["Allow"] = allowed
            await send(message)

        await app(scope, receive, send_allowed)

    return answered


def _methods(app: Litestar, path: str) -> set[str]:
    routes = (route for route in app.routes if isinstance(route, HTTPRoute) and route.path_format == path)
    return {cast("str", method) for route in routes for method in route.methods}

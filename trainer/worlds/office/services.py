"""The office suite over HTTP: all sites and worlds behind one ASGI application, and the demo APIs on a socket.

Admin routes, which hand out tasks and verify them, are behind a token and in no document that the agent sees.
"""

import hmac
import secrets
from collections.abc import Mapping
from typing import Any

import msgspec
import uvicorn
from litestar import Litestar, Request, Response, Router, delete, get, post, put, route
from litestar.connection import ASGIConnection
from litestar.exceptions import HTTPException
from litestar.handlers import BaseRouteHandler
from litestar.params import FromPath, FromQuery, JSONBody

from app.apis.double.receiver import RefusedError
from app.base.errors import AppError, UnauthorizedError
from app.base.values import Json
from trainer.environment import Scenario, Split
from trainer.worlds.generated.worlds import fields_of
from trainer.worlds.office.apps import APP_NAMES, Site, document
from trainer.worlds.office.scenarios import draw, place_at
from trainer.worlds.office.worlds import Item, Worlds, method_of, perform, verify

_SITE = 0
_FIRST_TASK = {
    "instruction": "archive every one of my mails from iris",
    "scenario": "archive the mails of a sender",
}
AnyRequest = Request[Any, Any, Any]


def serve(host: str, port: int, admin_token: str, *, busy: float = 0.0) -> None:
    """Serve until a signal stops the process.

    `busy` is the share of log-ins refused with 503; the address book refuses none. A port in use ends the process
    with a line that says so.
    """
    uvicorn.run(
        create_demo_apis(admin_token, Worlds(busy=busy)),
        host=host,
        port=port,
        log_level="warning",
        access_log=False,
        timeout_keep_alive=75,  # longer than clients keep idle connections, which would meet closed ones
    )


def create_demo_apis(admin_token: str, worlds: Worlds | None = None) -> Litestar:
    """The office services, and at /demo the URL of each API's document and a first task to submit."""
    services = create_services(admin_token, worlds)
    services.register(show_demo)
    return services


def create_services(admin_token: str, worlds: Worlds | None = None) -> Litestar:
    """The ASGI application. `worlds` is shared with the environment of the same process, if given."""
    alive = worlds or Worlds()

    @route(
        "/sites/{site:int}/worlds/{world:str}/{app:str}/{operation:str}",
        http_method=["GET", "POST"],
        include_in_schema=False,
    )
    async def operate(request: AnyRequest) -> Response[Any]:
        call = OperationCall(
            **request.path_params,
            method=request.method,
            query=request.query_params,
            token=request.headers.get("access_token", ""),
            body=await request.body(),
        )
        status, content = call_operation(alive, call)
        return Response(content, status_code=status)

    return Litestar(
        route_handlers=[operate, show_document, admin_routes(alive, admin_token)],
        openapi_config=None,
        logging_config=None,  # or it would configure logging for the whole process
        exception_handlers={AppError: _explain, HTTPException: _answer},
    )


@get("/sites/{site:int}/{app:str}/openapi.json", include_in_schema=False)
async def show_document(request: AnyRequest, site: FromPath[int], app: FromPath[str]) -> dict[str, Json]:
    return document(Site.of(site), app, str(request.base_url))


@get("/demo", include_in_schema=False)
async def show_demo(request: AnyRequest) -> dict[str, dict[str, str]]:
    base = str(request.base_url).rstrip("/")
    return {
        "documents": {app: f"{base}/sites/{_SITE}/{app}/openapi.json" for app in APP_NAMES},
        "task": _FIRST_TASK,
    }


class OperationCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call of one operation, over HTTP or in this process."""

    site: int
    world: str
    app: str
    operation: str
    method: str
    query: Mapping[str, str]
    token: str
    body: bytes


def call_operation(worlds: Worlds, call: OperationCall) -> tuple[int, Json]:
    """The status and the content of the answer."""
    site = Site.of(call.site)
    try:
        if call.method != method_of(site, call.app, call.operation):
            raise RefusedError(405, f"{call.operation} is not a {call.method}")
        given = call.query if call.method == "GET" else fields_of(call.body)
        world = worlds.at(call.site, call.world)
        result = perform(site, world, (call.app, call.operation), call.token, given)
    except RefusedError as refusal:
        return refusal.status, {"message": refusal.message}
    except AppError as error:
        return error.status, {"message": str(error)}
    return 204 if result is None else 200, result


class FinalAnswer(msgspec.Struct, frozen=True):
    """The end of a task, as the server that ran it reports it."""

    answer: Json = None
    completed: bool = True


class LeftText(msgspec.Struct, frozen=True):
    """What one of the records of a world is to say."""

    text: str


def admin_routes(worlds: Worlds, token: str) -> Router:
    """The routes under /admin, which all require the bearer token."""

    @get("/apps")
    async def apps() -> list[str]:
        """The apps of every site, each with a document at /sites/SITE/APP/openapi.json."""
        return list(APP_NAMES)

    @get("/scenarios")
    async def scenarios(
        split: FromQuery[Split],
        count: FromQuery[int] = 20,
        seed: FromQuery[int] = 0,
        site: FromQuery[int | None] = None,
    ) -> list[dict[str, Json]]:
        """The same tasks for the same seed, in fresh worlds at every call.

        The world of a task becomes a variable of it; the documents of its site belong into the project.
        """
        drawn = draw(split, min(count, 10_000), seed, site=site)
        return [{"id": each.id, "template": each.template, "tasks": _submittable(each)} for each in drawn]

    def guard(connection: ASGIConnection[Any, Any, Any, Any], _: BaseRouteHandler) -> None:
        given = connection.headers.get("authorization", "")
        if not hmac.compare_digest(given.encode(), f"Bearer {token}".encode()):
            raise UnauthorizedError("the admin token is missing or wrong")

    return Router("/admin", route_handlers=[apps, scenarios, *_world_routes(worlds)], guards=[guard])


def _world_routes(worlds: Worlds) -> list[BaseRouteHandler]:
    @post("/worlds/{world:str}/verdict", status_code=200)
    async def show_verdict(world: FromPath[str], data: JSONBody[FinalAnswer]) -> dict[str, Json]:
        verdict = verify(worlds.get(world), data.answer, completed=data.completed)
        return {name: getattr(verdict, name) for name in ("passed", "total", "fraction", "success", "failures")}

    @get("/worlds/{world:str}")
    async def show(world: FromPath[str]) -> dict[str, list[dict[str, Json]]]:
        """The items of every app that was used in a world."""
        touched = worlds.get(world).touched.items()
        return {app: [_shown(item) for item in items] for app, items in touched}

    @put("/worlds/{world:str}/text", status_code=204)
    async def leave_text(world: FromPath[str], data: JSONBody[LeftText]) -> None:
        """Put a text into a record that the world's task is not about."""
        worlds.get(world).leave_text(data.text)

    @delete("/worlds/{world:str}")
    async def forget(world: FromPath[str]) -> None:
        """Discard a world; its next use creates it again."""
        worlds.forget(world)

    return [show_verdict, show, leave_text, forget]


def _submittable(scenario: Scenario) -> list[Json]:
    nonce = secrets.token_hex(4)
    places = map(place_at, scenario.tasks)
    return [{"instruction": each.instruction, "site": each.site, "world": each.world(nonce)} for each in places]


def _shown(item: Item) -> dict[str, Json]:
    shown = {name: getattr(item, name) for name in ("id", "person", "label", "number")}
    return {**shown, "done": sorted(item.done)}


def _explain(_: AnyRequest, error: AppError) -> Response[dict[str, str]]:
    return Response({"message": str(error)}, status_code=error.status)


def _answer(_: AnyRequest, error: HTTPException) -> Response[dict[str, str]]:
    return Response({"message": error.detail.lower()}, status_code=error.status_code)

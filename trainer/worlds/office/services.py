"""The office suite over HTTP: all sites and worlds behind one ASGI application."""

from collections.abc import Mapping
from typing import Any

import msgspec
from litestar import Litestar, Request, Response, get, route
from litestar.exceptions import HTTPException
from litestar.params import FromPath

from app.errors import AppError
from app.records import Json
from trainer.worlds.office.admin import admin_routes
from trainer.worlds.office.documents import document
from trainer.worlds.office.perform import RefusedError, method_of, perform
from trainer.worlds.office.site import Site
from trainer.worlds.office.worlds import Worlds

AnyRequest = Request[Any, Any, Any]


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


def create_services(admin_token: str, worlds: Worlds | None = None) -> Litestar:
    """The ASGI application. `worlds` is shared with the environment of the same process, if given."""
    alive = worlds or Worlds()

    @route(
        "/sites/{site:int}/worlds/{world:str}/{app:str}/{operation:str}",
        http_method=["GET", "POST"],
        include_in_schema=False,
    )
    async def operate(
        request: AnyRequest,
        site: FromPath[int],
        world: FromPath[str],
        app: FromPath[str],
        operation: FromPath[str],
    ) -> Response[Any]:
        call = OperationCall(
            site=site,
            world=world,
            app=app,
            operation=operation,
            method=request.method,
            query=request.query_params,
            token=request.headers.get("access_token", ""),
            body=await request.body(),
        )
        result = call_operation(alive, call)
        return Response(result, status_code=status_of(result))

    return Litestar(
        route_handlers=[operate, show_document, admin_routes(alive, admin_token)],
        openapi_config=None,
        logging_config=None,  # or it would configure logging for the whole process
        exception_handlers={RefusedError: _refuse, AppError: _explain, HTTPException: _answer},
    )


def call_operation(worlds: Worlds, call: OperationCall) -> Json:
    """The operation's result. Raises RefusedError and NotFoundError."""
    site = Site.of(call.site)
    if call.method != method_of(site, call.app, call.operation):
        raise RefusedError(405, f"{call.operation} is not a {call.method}")
    given = call.query if call.method == "GET" else _fields(call.body)
    world = worlds.at(call.site, call.world)
    return perform(site, world, (call.app, call.operation), call.token, given)


def status_of(result: Json) -> int:
    return 204 if result is None else 200


@get("/sites/{site:int}/{app:str}/openapi.json", include_in_schema=False)
async def show_document(request: AnyRequest, site: FromPath[int], app: FromPath[str]) -> dict[str, Json]:
    return document(Site.of(site), app, str(request.base_url))


def _fields(body: bytes) -> dict[str, Json]:
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise RefusedError(422, "the body is not a json object") from error


def _refuse(_: AnyRequest, refusal: RefusedError) -> Response[dict[str, str]]:
    return Response({"message": refusal.message}, status_code=refusal.status)


def _explain(_: AnyRequest, error: AppError) -> Response[dict[str, str]]:
    return Response({"message": str(error)}, status_code=error.status)


def _answer(_: AnyRequest, error: HTTPException) -> Response[dict[str, str]]:
    return Response({"message": error.detail.lower()}, status_code=error.status_code)

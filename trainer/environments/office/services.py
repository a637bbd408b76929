"""The office suite over HTTP: every site and every world behind one ASGI app."""

from collections.abc import Mapping
from typing import Any

import msgspec
from litestar import Litestar, Request, Response, get, route
from litestar.exceptions import HTTPException
from litestar.params import FromPath

from app.errors import AppError
from app.records import Json
from trainer.environments.office.admin import admin
from trainer.environments.office.documents import document
from trainer.environments.office.perform import RefusedError, method_of, perform
from trainer.environments.office.site import Site
from trainer.environments.office.worlds import Worlds

AnyRequest = Request[Any, Any, Any]


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """A call of one operation, whatever way it came."""

    site: int
    world: str
    app: str
    operation: str
    method: str
    query: Mapping[str, str]
    token: str
    body: bytes


def create_services(admin_token: str, worlds: Worlds | None = None) -> Litestar:
    """The ASGI app. `worlds` is shared with whoever sets tasks up in the same process."""
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
        asked = Asked(
            site=site,
            world=world,
            app=app,
            operation=operation,
            method=request.method,
            query=request.query_params,
            token=request.headers.get("access_token", ""),
            body=await request.body(),
        )
        result = operate_on(alive, asked)
        return Response(result, status_code=status_of(result))

    return Litestar(
        route_handlers=[operate, show_document, admin(alive, admin_token)],
        openapi_config=None,
        logging_config=None,  # or it would set up the logging of the whole process
        exception_handlers={RefusedError: _refuse, AppError: _explain, HTTPException: _answer},
    )


def operate_on(worlds: Worlds, asked: Asked) -> Json:
    """What the operation gives. Raises RefusedError, NotFoundError."""
    site = Site.of(asked.site)
    if asked.method != method_of(site, asked.app, asked.operation):
        raise RefusedError(405, f"{asked.operation} is not a {asked.method}")
    given = asked.query if asked.method == "GET" else _fields(asked.body)
    world = worlds.at(asked.site, asked.world)
    return perform(site, world, (asked.app, asked.operation), asked.token, given)


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

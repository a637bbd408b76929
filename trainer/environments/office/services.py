"""The office suite over HTTP: every site and every world behind one ASGI app."""

from typing import Any

import msgspec
from litestar import Litestar, Request, Response, get, route
from litestar.exceptions import HTTPException
from litestar.params import FromPath

from app.errors import AppError
from app.records import Json
from trainer.environments.office.admin import admin
from trainer.environments.office.documents import document
from trainer.environments.office.operations import RefusedError, method_of, perform
from trainer.environments.office.site import Site
from trainer.environments.office.worlds import Worlds

AnyRequest = Request[Any, Any, Any]


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
        deployment = Site.of(site)
        if request.method != method_of(deployment, app, operation):
            raise RefusedError(405, f"{operation} is not a {request.method}")
        given = request.query_params if request.method == "GET" else _fields(await request.body())
        token = request.headers.get("access_token", "")
        state = alive.at(site, world)
        if state.is_busy():
            raise RefusedError(503, "busy, call again")
        result = perform(deployment, state, (app, operation), token, given)
        return Response(result, status_code=204 if result is None else 200)

    return Litestar(
        route_handlers=[operate, show_document, admin(alive, admin_token)],
        openapi_config=None,
        logging_config=None,  # or it would set up the logging of the whole process
        exception_handlers={RefusedError: _refuse, AppError: _explain, HTTPException: _answer},
    )


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

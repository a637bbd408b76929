"""The office suite for rollouts of the same process: what HTTP would answer, at a third of its price."""

import re
from typing import Any

import httpx
import msgspec
from litestar import Litestar

from app.errors import AppError
from app.records import Json
from trainer.environments.office.perform import RefusedError
from trainer.environments.office.services import Asked, operate_on, status_of
from trainer.environments.office.worlds import Worlds

_OPERATION = re.compile(r"/sites/([0-9]{1,9})/worlds/([\w-]+)/([\w-]+)/([\w-]+)", re.ASCII)
_TYPE = {"content-type": "application/json"}


class DirectClient(httpx.AsyncClient):
    """Carries the calls of operations straight to their worlds; all else goes to the services over ASGI.

    Such a call passes neither router nor cookie jar: the services have one route for them, and set no cookies.
    """

    def __init__(self, worlds: Worlds, services: Litestar, base_url: str) -> None:
        asgi: Any = services
        super().__init__(transport=httpx.ASGITransport(asgi), base_url=base_url)
        self._worlds = worlds

    async def send(self, request: httpx.Request, **options: Any) -> httpx.Response:
        found = _OPERATION.fullmatch(request.url.raw_path.partition(b"?")[0].decode("ascii"))
        if self.is_closed or found is None or request.method not in ("GET", "POST"):
            return await super().send(request, **options)
        site, world, app, operation = found.groups()
        asked = Asked(
            site=int(site),
            world=world,
            app=app,
            operation=operation,
            method=request.method,
            query=request.url.params,
            token=request.headers.get("access_token", ""),
            body=await request.aread(),
        )
        status, told = self._answer(asked)
        content = None if told is None else msgspec.json.encode(told)
        return httpx.Response(status, headers=_TYPE, content=content, request=request)

    def _answer(self, asked: Asked) -> tuple[int, Json]:
        try:
            result = operate_on(self._worlds, asked)
        except RefusedError as refusal:
            return refusal.status, {"message": refusal.message}
        except AppError as error:
            return error.status, {"message": str(error)}
        return status_of(result), result

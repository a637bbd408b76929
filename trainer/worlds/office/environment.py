"""The office suite as an environment: services in this process, and a world of its own for every rollout.

They answer as over HTTP at a third of the cost.
"""

import re
import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import lru_cache
from typing import Annotated, Any, Literal, cast

import httpx
import msgspec
from litestar import Litestar

from app.apis.catalog import Catalog
from app.apis.documents.protocols import parse_document
from app.base.values import Stop, Task, Trajectory
from trainer.environment import Scenario, Split, Verdict
from trainer.worlds.office.apps import APP_NAMES, Site, document
from trainer.worlds.office.scenarios import Variety, draw, place_at, task_at
from trainer.worlds.office.services import OperationCall, call_operation, create_services
from trainer.worlds.office.worlds import Worlds, verify

_OPERATION = re.compile(r"/sites/([0-9]{1,9})/worlds/([\w-]+)/([\w-]+)/([\w-]+)", re.ASCII)
_TYPE = {"content-type": "application/json"}
_BASE = "http://office"
_NOW = datetime(2026, 3, 2, 9, tzinfo=UTC)


def load_environment(
    *,
    site: int | None = None,
    busy: Annotated[float, msgspec.Meta(ge=0, le=0.9)] = 0.0,
    names: Literal["fixed", "varied"] = "fixed",
    wording: Literal["fixed", "free"] = "fixed",
) -> "OfficeEnvironment":
    """The plug-in `office`. `names` also means labels and limits; the other options as in `OfficeEnvironment`."""
    variety = ("n" if names == "varied" else "") + ("w" if wording == "free" else "")
    return OfficeEnvironment(site, busy=busy, variety=cast(Variety, variety and f"-{variety}"))


class OfficeWorld:
    """One task in a world of its own. Implements `World`."""

    def __init__(self, task: Task, worlds: Worlds, client: httpx.AsyncClient) -> None:
        self.task = task
        self.client = client
        self.now = _NOW
        self.site = Site.of(place_at(task).site)
        self._worlds = worlds

    @property
    def catalog(self) -> Catalog:
        return catalog_of(self.site.seed)

    async def verify(self, trajectory: Trajectory) -> Verdict:
        world = self._worlds.get(self.task.variables["world"])
        return verify(world, trajectory.answer, completed=trajectory.stop is Stop.COMPLETED)


class OfficeEnvironment:
    """Implements `Environment`. With `site`, all scenarios take place at that one site, as in a real deployment.

    `busy` is the share of log-ins that the services refuse with 503; the address book refuses none.
    """

    def __init__(self, site: int | None = None, *, busy: float = 0.0, variety: Variety = "") -> None:
        self._site = site
        self._variety = variety
        self._worlds = Worlds(busy=busy)
        services = create_services(admin_token=secrets.token_hex(16), worlds=self._worlds)
        self._client = DirectClient(self._worlds, services, _BASE)

    def scenarios(self, split: Split, count: int, seed: int) -> Sequence[Scenario]:
        return draw(split, count, seed, site=self._site, variety=self._variety)

    @asynccontextmanager
    async def open(self, scenario: Scenario, task: Task) -> AsyncIterator[OfficeWorld]:
        del scenario  # the task's world determines everything
        fresh = task_at(place_at(task), nonce=secrets.token_hex(4))
        world = fresh.variables["world"]
        try:
            yield OfficeWorld(fresh, self._worlds, self._client)
        finally:
            self._worlds.forget(world)


class DirectClient(httpx.AsyncClient):
    """Passes operation calls directly to their worlds; all other requests go to the services over ASGI.

    A direct call skips the router and the cookie jar: operations share one route, and the services set no cookies.
    """

    def __init__(self, worlds: Worlds, services: Litestar, base_url: str) -> None:
        asgi: Any = services
        super().__init__(transport=httpx.ASGITransport(asgi), base_url=base_url)
        self._worlds = worlds

    async def send(self, request: httpx.Request, **options: Any) -> httpx.Response:
        match = _OPERATION.fullmatch(request.url.raw_path.partition(b"?")[0].decode("ascii"))
        if self.is_closed or match is None or request.method not in ("GET", "POST"):
            return await super().send(request, **options)
        site, world, app, operation = match.groups()
        call = OperationCall(
            site=int(site),
            world=world,
            app=app,
            operation=operation,
            method=request.method,
            query=request.url.params,
            token=request.headers.get("access_token", ""),
            body=await request.aread(),
        )
        status, result = call_operation(self._worlds, call)
        content = None if result is None else msgspec.json.encode(result)
        return httpx.Response(status, headers=_TYPE, content=content, request=request)


@lru_cache(maxsize=512)
def catalog_of(site: int) -> Catalog:
    """The apps of a site, parsed from the OpenAPI documents that its services publish."""
    documents = {app: document(Site.of(site), app, _BASE) for app in APP_NAMES}
    return Catalog({app: parse_document(app, each) for app, each in documents.items()})

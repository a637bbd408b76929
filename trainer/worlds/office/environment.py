"""The office suite as an environment: services in this process, and a world of its own for every rollout."""

import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import lru_cache
from typing import Annotated, Literal, cast

import httpx
import msgspec

from app.apis.api_documents import parse_document
from app.apis.catalog import Catalog
from app.records import Stop, Task, Trajectory
from trainer.environment import Scenario, Split, Verdict
from trainer.worlds.office.direct import DirectClient
from trainer.worlds.office.documents import APP_NAMES, document
from trainer.worlds.office.places import Variety
from trainer.worlds.office.scenarios import draw, place_at, task_at
from trainer.worlds.office.services import create_services
from trainer.worlds.office.site import Site
from trainer.worlds.office.verifier import verify
from trainer.worlds.office.worlds import Worlds

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


@lru_cache(maxsize=512)
def catalog_of(site: int) -> Catalog:
    """The apps of a site, parsed from the OpenAPI documents that its services publish."""
    documents = {app: document(Site.of(site), app, _BASE) for app in APP_NAMES}
    return Catalog({app: parse_document(app, each) for app, each in documents.items()})

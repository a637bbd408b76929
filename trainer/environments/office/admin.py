"""The door for whoever sets tasks and judges them. Never in a document that the agent sees, and behind a token."""

import hmac
import secrets
from typing import Any

import msgspec
from litestar import Router, delete, get, post
from litestar.connection import ASGIConnection
from litestar.handlers import BaseRouteHandler
from litestar.params import FromPath, FromQuery, JSONBody

from app.errors import UnauthorizedError
from app.records import Json
from trainer.environment import Scenario, Split
from trainer.environments.office.documents import APP_NAMES
from trainer.environments.office.items import Item
from trainer.environments.office.scenarios import draw, place_at
from trainer.environments.office.verifier import verdict
from trainer.environments.office.worlds import Worlds


class Outcome(msgspec.Struct, frozen=True):
    """What the agent said in the end."""

    answer: Json = None
    completed: bool = True


class Judgement(msgspec.Struct, frozen=True):
    passed: int
    total: int
    fraction: float
    success: bool
    failures: tuple[str, ...]


class TaskView(msgspec.Struct, frozen=True):
    """A task to submit: its world goes into the task's variables, the site's documents into the project."""

    instruction: str
    site: int
    world: str


class ScenarioView(msgspec.Struct, frozen=True):
    id: str
    template: str
    tasks: tuple[TaskView, ...]


class ItemView(msgspec.Struct, frozen=True):
    id: int
    person: str
    label: str
    number: int
    done: tuple[str, ...]


def admin(worlds: Worlds, token: str) -> Router:
    """Routes under /admin, all for the bearer of the token."""

    @post("/worlds/{world:str}/verdict", status_code=200)
    async def judge(world: FromPath[str], data: JSONBody[Outcome]) -> Judgement:
        found = verdict(worlds.get(world), data.answer, completed=data.completed)
        return Judgement(found.passed, found.total, found.fraction, found.success, found.failures)

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
    ) -> list[ScenarioView]:
        """Fresh worlds at every call, of the same tasks for the same seed."""
        return [_view(each) for each in draw(split, min(count, 10_000), seed, site=site)]

    @get("/worlds/{world:str}")
    async def show(world: FromPath[str]) -> dict[str, list[ItemView]]:
        """What became of a world: the items of every app that was used in it."""
        touched = worlds.get(world).touched
        return {app: [_item_view(item) for item in items] for app, items in touched.items()}

    @delete("/worlds/{world:str}")
    async def forget(world: FromPath[str]) -> None:
        """The world is as new at the next touch."""
        worlds.forget(world)

    def guard(connection: ASGIConnection[Any, Any, Any, Any], _: BaseRouteHandler) -> None:
        given = connection.headers.get("authorization", "")
        if not hmac.compare_digest(given.encode(), f"Bearer {token}".encode()):
            raise UnauthorizedError("the admin token is missing or wrong")

    return Router("/admin", route_handlers=[judge, apps, scenarios, show, forget], guards=[guard])


def _view(scenario: Scenario) -> ScenarioView:
    nonce = secrets.token_hex(4)
    places = [place_at(task) for task in scenario.tasks]
    tasks = [TaskView(place.instruction, place.site, place.world(nonce)) for place in places]
    return ScenarioView(scenario.id, scenario.template, tuple(tasks))


def _item_view(item: Item) -> ItemView:
    return ItemView(item.id, item.person, item.label, item.number, tuple(sorted(item.done)))

"""Admin routes that hand out tasks and verify them: behind a token, and in no document that the agent sees."""

import hmac
import secrets
from typing import Any

import msgspec
from litestar import Router, delete, get, post, put
from litestar.connection import ASGIConnection
from litestar.handlers import BaseRouteHandler
from litestar.params import FromPath, FromQuery, JSONBody

from app.errors import UnauthorizedError
from app.records import Json
from trainer.environment import Scenario, Split
from trainer.worlds.office.documents import APP_NAMES
from trainer.worlds.office.items import Item
from trainer.worlds.office.scenarios import draw, place_at
from trainer.worlds.office.verifier import verify
from trainer.worlds.office.worlds import Worlds


class FinalAnswer(msgspec.Struct, frozen=True):
    """The end of a task, as the server that ran it reports it."""

    answer: Json = None
    completed: bool = True


class VerdictView(msgspec.Struct, frozen=True):
    passed: int
    total: int
    fraction: float
    success: bool
    failures: tuple[str, ...]


class LeftText(msgspec.Struct, frozen=True):
    """What one of the records of a world is to say."""

    text: str


class SubmittableTask(msgspec.Struct, frozen=True):
    """A task to submit: the world becomes a variable of the task, the site's documents belong into the project."""

    instruction: str
    site: int
    world: str


class ScenarioView(msgspec.Struct, frozen=True):
    id: str
    template: str
    tasks: tuple[SubmittableTask, ...]


class ItemView(msgspec.Struct, frozen=True):
    id: int
    person: str
    label: str
    number: int
    done: tuple[str, ...]


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
    ) -> list[ScenarioView]:
        """The same tasks for the same seed, in fresh worlds at every call."""
        return [_view(each) for each in draw(split, min(count, 10_000), seed, site=site)]

    def guard(connection: ASGIConnection[Any, Any, Any, Any], _: BaseRouteHandler) -> None:
        given = connection.headers.get("authorization", "")
        if not hmac.compare_digest(given.encode(), f"Bearer {token}".encode()):
            raise UnauthorizedError("the admin token is missing or wrong")

    return Router("/admin", route_handlers=[apps, scenarios, *_world_routes(worlds)], guards=[guard])


def _world_routes(worlds: Worlds) -> list[BaseRouteHandler]:
    @post("/worlds/{world:str}/verdict", status_code=200)
    async def show_verdict(world: FromPath[str], data: JSONBody[FinalAnswer]) -> VerdictView:
        verdict = verify(worlds.get(world), data.answer, completed=data.completed)
        return VerdictView(verdict.passed, verdict.total, verdict.fraction, verdict.success, verdict.failures)

    @get("/worlds/{world:str}")
    async def show(world: FromPath[str]) -> dict[str, list[ItemView]]:
        """The items of every app that was used in a world."""
        touched = worlds.get(world).touched
        return {app: [_item_view(item) for item in items] for app, items in touched.items()}

    @put("/worlds/{world:str}/text", status_code=204)
    async def leave_text(world: FromPath[str], data: JSONBody[LeftText]) -> None:
        """Put a text into a record that the world's task is not about."""
        worlds.get(world).leave_text(data.text)

    @delete("/worlds/{world:str}")
    async def forget(world: FromPath[str]) -> None:
        """Discard a world; its next use creates it again."""
        worlds.forget(world)

    return [show_verdict, show, leave_text, forget]


def _view(scenario: Scenario) -> ScenarioView:
    nonce = secrets.token_hex(4)
    places = [place_at(task) for task in scenario.tasks]
    tasks = [SubmittableTask(place.instruction, place.site, place.world(nonce)) for place in places]
    return ScenarioView(scenario.id, scenario.template, tuple(tasks))


def _item_view(item: Item) -> ItemView:
    return ItemView(item.id, item.person, item.label, item.number, tuple(sorted(item.done)))

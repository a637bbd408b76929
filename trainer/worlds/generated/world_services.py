"""Services of generated worlds over HTTP: an ASGI application for all of them.

It is plain ASGI: the addresses differ from world to world, and a rollout makes thousands of calls.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, Protocol, TypeVar
from urllib.parse import parse_qsl

import msgspec

from app.errors import NotFoundError
from app.records import Json


class WorldRequest(msgspec.Struct, frozen=True, kw_only=True):
    method: str
    path: tuple[str, ...]  # in the app
    query: Mapping[str, str]
    headers: Mapping[str, str]  # lower-case names
    body: bytes

    def fields(self) -> dict[str, Json]:
        """Of the body. Raises ServiceRefusal."""
        try:
            return msgspec.json.decode(self.body, type=dict[str, Any]) if self.body else {}
        except msgspec.MsgspecError as error:
            raise ServiceRefusal(422, "the body is not a json object") from error


class WorldResponse(msgspec.Struct, frozen=True):
    status: int
    content: Json
    headers: tuple[tuple[str, str], ...] = ()


class ServiceRefusal(Exception):  # noqa: N818 - an answer of a service, as its API words it
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


State = TypeVar("State")


class LiveWorlds(Generic[State]):
    """Live worlds by id: created when they are first asked for, isolated, and alive until they are forgotten."""

    def __init__(self, create: Callable[[str], State]) -> None:
        self._create = create
        self._alive: dict[str, State] = {}

    def get(self, world: str) -> State:
        """Raises NotFoundError for an id that names no world."""
        if world not in self._alive:
            self._alive[world] = self._create(world)
        return self._alive[world]

    def forget(self, world: str) -> None:
        self._alive.pop(world, None)


class Addressed(Protocol):
    """An operation's address; parts in braces are of any value."""

    @property
    def method(self) -> str: ...
    @property
    def path(self) -> str: ...


AnyRoute = TypeVar("AnyRoute", bound=Addressed)


def match_route(routes: Iterable[AnyRoute], request: WorldRequest) -> tuple[AnyRoute, str]:
    """The route of a request, and the id in its address, if there is one. Raises ServiceRefusal."""
    for route in sorted(routes, key=lambda each: "{" in each.path):  # `/tickets/feed` is no ticket
        parts = route.path.strip("/").split("/")
        if route.method != request.method or len(parts) != len(request.path):
            continue
        pairs = list(zip(parts, request.path, strict=True))
        if all(part.startswith("{") or part == given for part, given in pairs):
            return route, next((given for part, given in pairs if part.startswith("{")), "")
    raise ServiceRefusal(404, "no such address")


class WorldServices(Generic[State]):
    """The ASGI application: `/{world}/{app}/...`. `respond` answers for an app of a world."""

    def __init__(
        self, worlds: LiveWorlds[State], respond: Callable[[State, str, WorldRequest], WorldResponse]
    ) -> None:
        self._worlds = worlds
        self._respond = respond

    async def __call__(self, scope: Mapping[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        body = b""
        while (message := await receive())["type"] == "http.request":
            body += message.get("body", b"")
            if not message.get("more_body", False):
                break
        response = self._response(scope, body)
        headers = [(b"content-type", b"application/json")]
        headers += [(name.encode(), value.encode()) for name, value in response.headers]
        content = b"" if response.status == 204 else msgspec.json.encode(response.content)
        await send({"type": "http.response.start", "status": response.status, "headers": headers})
        await send({"type": "http.response.body", "body": content})

    def _response(self, scope: Mapping[str, Any], body: bytes) -> WorldResponse:
        parts = [part for part in scope["path"].split("/") if part]
        if len(parts) < 2:
            return WorldResponse(404, {"message": "no such address"})
        request = WorldRequest(
            method=scope["method"],
            path=tuple(parts[2:]),
            query=dict(parse_qsl(scope["query_string"].decode("latin-1"))),
            headers={name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]},
            body=body,
        )
        try:
            return self._respond(self._worlds.get(parts[0]), parts[1], request)
        except NotFoundError as error:
            return WorldResponse(404, {"message": str(error)})

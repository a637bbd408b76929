"""The gym's services over HTTP: an ASGI application for all worlds, and what each operation does.

It is plain ASGI: the addresses differ from world to world, and a rollout makes thousands of calls.
"""

from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl

import msgspec

from app.errors import NotFoundError
from app.records import Json
from trainer.environments.gym.gym_apis import GymApi, Route
from trainer.environments.gym.gym_documents import SUPERVISOR
from trainer.environments.gym.gym_items import GymItem
from trainer.environments.gym.gym_lists import list_page, row_of
from trainer.environments.gym.gym_worlds import GymState, GymWorlds


class GymRequest(msgspec.Struct, frozen=True, kw_only=True):
    method: str
    path: tuple[str, ...]  # in the app
    query: Mapping[str, str]
    headers: Mapping[str, str]  # lower-case names
    body: bytes


class GymResponse(msgspec.Struct, frozen=True):
    status: int
    content: Json
    headers: tuple[tuple[str, str], ...] = ()


class GymRefusal(Exception):  # noqa: N818 - an answer of a service, as its API words it
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


class GymServices:
    """The ASGI application: `/{world}/{app}/...`."""

    def __init__(self, worlds: GymWorlds) -> None:
        self._worlds = worlds

    async def __call__(self, scope: Mapping[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        body = b""
        while (message := await receive())["type"] == "http.request":
            body += message.get("body", b"")
            if not message.get("more_body", False):
                break
        response = self._respond(scope, body)
        headers = [(b"content-type", b"application/json")]
        headers += [(name.encode(), value.encode()) for name, value in response.headers]
        await send({"type": "http.response.start", "status": response.status, "headers": headers})
        await send({"type": "http.response.body", "body": msgspec.json.encode(response.content)})

    def _respond(self, scope: Mapping[str, Any], body: bytes) -> GymResponse:
        parts = [part for part in scope["path"].split("/") if part]
        if len(parts) < 2:
            return GymResponse(404, {"message": "no such address"})
        try:
            state = self._worlds.get(parts[0])
        except NotFoundError as error:
            return GymResponse(404, {"message": str(error)})
        request = GymRequest(
            method=scope["method"],
            path=tuple(parts[2:]),
            query=dict(parse_qsl(scope["query_string"].decode("latin-1"))),
            headers={name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]},
            body=body,
        )
        return respond(state, parts[1], request)


def respond(state: GymState, app: str, request: GymRequest) -> GymResponse:
    """The answer of an app of a world."""
    if app == SUPERVISOR:
        return GymResponse(200, {api.name: state.password(api.name) for api in state.plan.apis})
    api = next((api for api in state.plan.apis if api.name == app), None)
    if api is None:
        return GymResponse(404, {"message": f"no app {app}"})
    try:
        return _operate(state, api, request)
    except GymRefusal as refusal:
        return _refused(api, refusal)


def _refused(api: GymApi, refusal: GymRefusal) -> GymResponse:
    error = api.wire("error")
    if refusal.status == 429:
        return GymResponse(429, {error: refusal.message}, (("retry-after", "1"),))
    if api.shape.errors == "soft":
        return GymResponse(200, {api.wire("ok"): False, error: refusal.message})
    return GymResponse(refusal.status, {error: refusal.message})


def _operate(state: GymState, api: GymApi, request: GymRequest) -> GymResponse:
    route, identity = _match(api, request)
    given = _fields(request)
    if route.role == "login":
        if given.get("password") != state.password(api.name):
            raise GymRefusal(401, "wrong password")
        return GymResponse(200, {api.wire("token"): state.token(api.name)})
    _authorize(state, api, request)
    if route.role in ("list", "show"):
        return _read(state, api, identity, request)
    if route.role == "settings":
        return GymResponse(200, {"locale": "en", "version": 3})
    if route.role == "export":
        return GymResponse(200, {"job": len(state.items[api.name])})
    return _write(state, api, route, identity, given)


def _read(state: GymState, api: GymApi, identity: str, request: GymRequest) -> GymResponse:
    """One item, or a list of them if there is no id."""
    if api.shape.errors == "limited" and state.is_too_fast(api.name):
        raise GymRefusal(429, "too many requests, retry after 1 second")
    if identity:
        return GymResponse(200, row_of(api, _item(state, api, identity), whole=True))
    page = list_page(api, state.items[api.name], request.query, "/".join(request.path))
    if isinstance(page, str):
        raise GymRefusal(422, page)
    link = () if page.link is None else (("link", f'<{page.link}>; rel="next"'),)
    return GymResponse(200, page.content, link)


def _match(api: GymApi, request: GymRequest) -> tuple[Route, str]:
    for route in api.routes:
        parts = route.path.strip("/").split("/")
        if route.method != request.method or len(parts) != len(request.path):
            continue
        pairs = list(zip(parts, request.path, strict=True))
        if all(part in ("{id}", given) for part, given in pairs):
            return route, next((given for part, given in pairs if part == "{id}"), "")
    raise GymRefusal(404, "no such address")


def _fields(request: GymRequest) -> dict[str, Json]:
    try:
        return msgspec.json.decode(request.body, type=dict[str, Any]) if request.body else {}
    except msgspec.MsgspecError as error:
        raise GymRefusal(422, "the body is not a json object") from error


def _authorize(state: GymState, api: GymApi, request: GymRequest) -> None:
    match api.shape.auth:
        case "open":
            return
        case "key":
            right = request.headers.get(api.header.lower()) == state.password(api.name)
        case "login":
            right = request.headers.get(api.header.lower()) == state.token(api.name)
        case "query_token":
            right = request.query.get(api.wire("token")) == state.token(api.name)
    if not right:
        raise GymRefusal(401, f"wrong {api.wire('token') if api.shape.auth == 'query_token' else api.header}")


def _item(state: GymState, api: GymApi, identity: Json) -> GymItem:
    for item in state.items[api.name]:
        if str(item.id) == str(identity):
            return item
    raise GymRefusal(404, f"no {api.domain.noun} {str(identity)[:40]}")


def _write(state: GymState, api: GymApi, route: Route, identity: str, given: dict[str, Json]) -> GymResponse:
    listed = given.get("ids") if "ids" in given else [identity or given.get(api.fields["id"])]
    if not isinstance(listed, list):
        raise GymRefusal(422, "ids is not a list")
    items = [_item(state, api, each) for each in listed]
    changes = _changes(api, route, given)
    if api.shape.errors == "soft" and state.is_busy(api.name):
        raise GymRefusal(503, "busy")
    for item in items:
        item.state = changes.get("state", item.state)
        item.label = changes.get("label", item.label)
    if api.shape.errors == "soft":
        return GymResponse(200, {api.wire("ok"): True, api.wire("error"): ""})
    return GymResponse(200, {"changed": len(items)})


def _changes(api: GymApi, route: Route, given: dict[str, Json]) -> dict[str, str]:
    if route.verb is not None:
        return {"state": route.verb.done}
    changes: dict[str, str] = {}
    label, state = given.get(api.fields["label"]), given.get(api.fields["progress"])
    if label is not None:
        if label not in api.domain.values:
            raise GymRefusal(422, f"{api.fields['label']} must be one of {', '.join(api.domain.values)}")
        changes["label"] = label
    if state is not None and api.shape.write == "patch":
        if state not in [verb.done for verb in api.domain.verbs]:
            raise GymRefusal(422, f"{api.fields['progress']} cannot be {str(state)[:40]}")
        changes["state"] = state
    if not changes:
        raise GymRefusal(422, "nothing to change")
    return changes

"""The gym's services over HTTP: what each operation does."""

from app.records import Json
from trainer.worlds.generated.gym_apis import GymApi, Route
from trainer.worlds.generated.gym_documents import SUPERVISOR
from trainer.worlds.generated.gym_items import GymItem
from trainer.worlds.generated.gym_lists import list_page, row_of
from trainer.worlds.generated.gym_worlds import GymState
from trainer.worlds.generated.world_services import ServiceRefusal, WorldRequest, WorldResponse, match_route


def respond(state: GymState, app: str, request: WorldRequest) -> WorldResponse:
    """The answer of an app of a world."""
    if app == SUPERVISOR:
        return WorldResponse(200, {api.name: state.password(api.name) for api in state.plan.apis})
    api = next((api for api in state.plan.apis if api.name == app), None)
    if api is None:
        return WorldResponse(404, {"message": f"no app {app}"})
    try:
        return _operate(state, api, request)
    except ServiceRefusal as refusal:
        return _refused(api, refusal)


def _refused(api: GymApi, refusal: ServiceRefusal) -> WorldResponse:
    error = api.wire("error")
    if refusal.status == 429:
        return WorldResponse(429, {error: refusal.message}, (("retry-after", "1"),))
    if api.shape.errors == "soft":
        return WorldResponse(200, {api.wire("ok"): False, error: refusal.message})
    return WorldResponse(refusal.status, {error: refusal.message})


def _operate(state: GymState, api: GymApi, request: WorldRequest) -> WorldResponse:
    route, identity = match_route(api.routes, request)
    given = request.fields()
    if route.role == "login":
        if given.get("password") != state.password(api.name):
            raise ServiceRefusal(401, "wrong password")
        return WorldResponse(200, {api.wire("token"): state.token(api.name)})
    _authorize(state, api, request)
    if route.role in ("list", "show"):
        return _read(state, api, identity, request)
    if route.role == "settings":
        return WorldResponse(200, {"locale": "en", "version": 3})
    if route.role == "export":
        return WorldResponse(200, {"job": len(state.items[api.name])})
    return _write(state, api, route, identity, given)


def _read(state: GymState, api: GymApi, identity: str, request: WorldRequest) -> WorldResponse:
    """One item, or a list of them if there is no id."""
    if api.shape.errors == "limited" and state.is_too_fast(api.name):
        raise ServiceRefusal(429, "too many requests, retry after 1 second")
    if identity:
        return WorldResponse(200, row_of(api, _item(state, api, identity), whole=True))
    page = list_page(api, state.items[api.name], request.query, "/".join(request.path))
    if isinstance(page, str):
        raise ServiceRefusal(422, page)
    link = () if page.link is None else (("link", f'<{page.link}>; rel="next"'),)
    return WorldResponse(200, page.content, link)


def _authorize(state: GymState, api: GymApi, request: WorldRequest) -> None:
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
        raise ServiceRefusal(401, f"wrong {api.wire('token') if api.shape.auth == 'query_token' else api.header}")


def _item(state: GymState, api: GymApi, identity: Json) -> GymItem:
    for item in state.items[api.name]:
        if str(item.id) == str(identity):
            return item
    raise ServiceRefusal(404, f"no {api.domain.noun} {str(identity)[:40]}")


def _write(state: GymState, api: GymApi, route: Route, identity: str, given: dict[str, Json]) -> WorldResponse:
    listed = given.get("ids") if "ids" in given else [identity or given.get(api.fields["id"])]
    if not isinstance(listed, list):
        raise ServiceRefusal(422, "ids is not a list")
    items = [_item(state, api, each) for each in listed]
    changes = _changes(api, route, given)
    if api.shape.errors == "soft" and state.is_busy(api.name):
        raise ServiceRefusal(503, "busy")
    for item in items:
        item.state = changes.get("state", item.state)
        item.label = changes.get("label", item.label)
    if api.shape.errors == "soft":
        return WorldResponse(200, {api.wire("ok"): True, api.wire("error"): ""})
    return WorldResponse(200, {"changed": len(items)})


def _changes(api: GymApi, route: Route, given: dict[str, Json]) -> dict[str, str]:
    if route.verb is not None:
        return {"state": route.verb.done}
    changes: dict[str, str] = {}
    label, state = given.get(api.fields["label"]), given.get(api.fields["progress"])
    if label is not None:
        if label not in api.domain.values:
            raise ServiceRefusal(422, f"{api.fields['label']} must be one of {', '.join(api.domain.values)}")
        changes["label"] = label
    if state is not None and api.shape.write == "patch":
        if state not in [verb.done for verb in api.domain.verbs]:
            raise ServiceRefusal(422, f"{api.fields['progress']} cannot be {str(state)[:40]}")
        changes["state"] = state
    if not changes:
        raise ServiceRefusal(422, "nothing to change")
    return changes

"""The OpenAPI 3.1 document of an app in the gym. What a caller must know is in names, schemas and summaries."""

from app.records import Json
from trainer.environments.gym.gym_apis import FILTERED, PAGE_SIZE, GymApi, ItemField, Route
from trainer.environments.gym.spelling import spell

SUPERVISOR = "supervisor"

_STRING: dict[str, Json] = {"type": "string"}
_INTEGER: dict[str, Json] = {"type": "integer"}
_BOOLEAN: dict[str, Json] = {"type": "boolean"}


def document_of(api: GymApi, base: str) -> dict[str, Json]:
    """`base` is the URL of the services; the world is a variable of it."""
    paths: dict[str, dict[str, Json]] = {}
    for route in api.routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(api, route)
    domain = api.domain
    about = f"{domain.nouns} with {domain.person}, {domain.label} and {domain.number}"
    return _document(api.name, about, base, paths)


def supervisor_document(apps: list[str], base: str) -> dict[str, Json]:
    passwords = _answer(_object(dict.fromkeys(apps, _STRING)))
    shown = {"operationId": "show_passwords", "summary": "the password or key of each app", "responses": passwords}
    return _document(SUPERVISOR, "your passwords and keys", base, {"/passwords": {"get": shown}})


def _document(name: str, about: str, base: str, paths: dict[str, dict[str, Json]]) -> dict[str, Json]:
    return {
        "openapi": "3.1.0",
        "info": {"title": name, "version": "1", "description": about},
        "servers": [{"url": f"{base}/{{world}}/{name}", "variables": {"world": {"default": "none"}}}],
        "paths": paths,
    }


def _operation(api: GymApi, route: Route) -> Json:
    summary, parameters, body, answer = _parts(api, route)
    operation: dict[str, Json] = {"operationId": route.id, "summary": summary, "responses": _answer(answer)}
    if "{id}" in route.path:
        parameters = [_parameter("id", "path", _id(api)), *parameters]
    if route.role != "login" and api.shape.auth in ("login", "key"):
        parameters = [_parameter(api.header, "header", _STRING), *parameters]
    if route.role != "login" and api.shape.auth == "query_token":
        parameters = [_parameter(api.wire("token"), "query", _STRING), *parameters]
    if body:
        required = [] if route.role == "update" else list(body)
        schema = {"type": "object", "properties": body, "required": required}
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    return {**operation, "parameters": parameters}


def _parts(api: GymApi, route: Route) -> tuple[str, list[Json], dict[str, Json], dict[str, Json]]:
    """Summary, parameters, fields of the body, and answer."""
    domain, fields = api.domain, api.fields
    if route.role == "login":
        return "log in with your password", [], {"password": _STRING}, _object({api.wire("token"): _STRING})
    if route.role == "list":
        return f"list {domain.nouns}{_pages(api)}{_limited(api)}", _query(api), {}, _list(api)
    if route.role == "show":
        return f"show one {domain.noun}{_limited(api)}", [], {}, item_schema(api, whole=True)
    if route.role == "settings":
        return "settings of this app", [], {}, _object({"locale": _STRING, "version": _INTEGER})
    if route.role == "export":
        return f"export all {domain.nouns} as a file", [], {}, _object({"job": _INTEGER})
    if route.role == "update":
        states = {fields["progress"]: _states(api)} if api.shape.write == "patch" else {}
        about = f"; {fields['progress']}: {', '.join(states[fields['progress']]['enum'])}" if states else ""
        written = {**states, fields["label"]: _STRING}
        return f"update one {domain.noun}{about}{_soft(api)}", [], written, _written(api)
    base = route.verb.base if route.verb else ""
    if api.shape.write == "batch":
        ids: dict[str, Json] = {"type": "array", "items": _id(api)}
        return f"{base} several {domain.nouns}{_soft(api)}", [], {"ids": ids}, _written(api)
    body = {fields["id"]: _id(api)} if api.shape.write == "body" else {}
    return f"{base} one {domain.noun}{_soft(api)}", [], body, _written(api)


def item_schema(api: GymApi, *, whole: bool) -> dict[str, Json]:
    kinds: dict[ItemField, Json] = {
        "person": _object({api.wire("inner"): _STRING}) if api.shape.nesting == "object" else _STRING,
        "label": _STRING,
        "number": _INTEGER,
        "date": {"type": "string", "format": "date"},
        "progress": _states(api),
    }
    if not whole and api.shape.rows == "partial":
        del kinds[api.hidden]
    rest = {api.fields[field]: kind for field, kind in kinds.items()}
    rest |= {spell(words, api.shape.style): _STRING for words in api.domain.distractors}
    first = {api.fields["id"]: _id(api)}
    return _object({**first, api.wire("group"): _object(rest)} if api.shape.nesting == "grouped" else first | rest)


def _list(api: GymApi) -> dict[str, Json]:
    rows: dict[str, Json] = {"type": "array", "items": item_schema(api, whole=False)}
    shape = api.shape
    if shape.envelope == "bare":
        return rows
    key = api.resource if shape.envelope == "named" else api.wire("data")
    answer = {api.wire("outer"): _object({key: rows})} if shape.envelope == "wrapped" else {key: rows}
    if shape.paging == "cursor":
        answer[api.wire("next")] = {"type": ["string", "null"]}
    elif shape.paging == "link":
        answer[api.wire("links")] = _object({"next": {"type": ["string", "null"]}})
    return _object(answer)


def _query(api: GymApi) -> list[Json]:
    shape, size = api.shape, {"type": "integer", "default": PAGE_SIZE, "maximum": PAGE_SIZE}
    start: dict[str, list[Json]] = {
        "page": [_optional(api.wire("page"), {"type": "integer", "default": api.first_page})],
        "offset": [
            _optional(api.wire("offset"), {"type": "integer", "default": 0}),
            _optional(api.wire("limit"), size),
        ],
        "cursor": [_optional(api.wire("cursor"), _STRING)],
        "link": [_optional(api.wire("cursor"), _STRING)],
        "whole": [],
    }
    filters = [_optional(api.fields[field], _STRING) for field in FILTERED]
    return start[shape.paging] + (filters if shape.filters == "equal" else [])


def _pages(api: GymApi) -> str:
    texts = {
        "page": f", pages start at {api.first_page}",
        "offset": f", {PAGE_SIZE} from {api.wire('offset')} on",
        "cursor": f", pass {api.wire('next')} as {api.wire('cursor')} for more",
        "link": f", the next link has the {api.wire('cursor')} for more",
        "whole": "",
    }
    return texts[api.shape.paging]


def _limited(api: GymApi) -> str:
    return "; 429 if too fast, call again" if api.shape.errors == "limited" else ""


def _soft(api: GymApi) -> str:
    return f"; {api.wire('ok')} is false while busy, call again" if api.shape.errors == "soft" else ""


def _written(api: GymApi) -> dict[str, Json]:
    """The answer to a change."""
    if api.shape.errors == "soft":
        return _object({api.wire("ok"): _BOOLEAN, api.wire("error"): _STRING})
    return _object({"changed": _INTEGER})


def _states(api: GymApi) -> dict[str, Json]:
    return {"type": "string", "enum": [api.domain.initial, *(verb.done for verb in api.domain.verbs)]}


def _id(api: GymApi) -> dict[str, Json]:
    return _INTEGER if api.shape.ids == "number" else _STRING


def _parameter(name: str, place: str, schema: Json) -> Json:
    return {"name": name, "in": place, "required": True, "schema": schema}


def _optional(name: str, schema: Json) -> Json:
    return {"name": name, "in": "query", "required": False, "schema": schema}


def _object(properties: dict[str, Json]) -> dict[str, Json]:
    return {"type": "object", "properties": properties, "required": list(properties)}


def _answer(schema: Json) -> Json:
    return {"200": {"description": "done", "content": {"application/json": {"schema": schema}}}}

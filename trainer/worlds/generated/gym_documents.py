"""The OpenAPI 3.1 document of an app in the gym. What a caller must know is in names, schemas and summaries."""

from app.records import Json
from trainer.worlds.generated.gym_apis import FILTERED, PAGE_SIZE, GymApi, ItemField, Route
from trainer.worlds.generated.schema_parts import (
    BOOLEAN,
    INTEGER,
    STRING,
    answer_of,
    object_of,
    optional_of,
    parameter_of,
)
from trainer.worlds.generated.spelling import spell

SUPERVISOR = "supervisor"


def document_of(api: GymApi, base: str) -> dict[str, Json]:
    """`base` is the URL of the services; the world is a variable of it."""
    paths: dict[str, dict[str, Json]] = {}
    for route in api.routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(api, route)
    domain = api.domain
    about = f"{domain.nouns} with {domain.person}, {domain.label} and {domain.number}"
    return _document(api.name, about, base, paths)


def supervisor_document(apps: list[str], base: str) -> dict[str, Json]:
    passwords = answer_of(object_of(dict.fromkeys(apps, STRING)))
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
    operation: dict[str, Json] = {"operationId": route.id, "summary": summary, "responses": answer_of(answer)}
    if "{id}" in route.path:
        parameters = [parameter_of("id", "path", _id(api)), *parameters]
    if route.role != "login" and api.shape.auth in ("login", "key"):
        parameters = [parameter_of(api.header, "header", STRING), *parameters]
    if route.role != "login" and api.shape.auth == "query_token":
        parameters = [parameter_of(api.wire("token"), "query", STRING), *parameters]
    if body:
        required = [] if route.role == "update" else list(body)
        schema = {"type": "object", "properties": body, "required": required}
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    return {**operation, "parameters": parameters}


def _parts(api: GymApi, route: Route) -> tuple[str, list[Json], dict[str, Json], dict[str, Json]]:
    """Summary, parameters, fields of the body, and answer."""
    domain, fields = api.domain, api.fields
    if route.role == "login":
        return "log in with your password", [], {"password": STRING}, object_of({api.wire("token"): STRING})
    if route.role == "list":
        return f"list {domain.nouns}{_pages(api)}{_limited(api)}", _query(api), {}, _list(api)
    if route.role == "show":
        return f"show one {domain.noun}{_limited(api)}", [], {}, item_schema(api, whole=True)
    if route.role == "settings":
        return "settings of this app", [], {}, object_of({"locale": STRING, "version": INTEGER})
    if route.role == "export":
        return f"export all {domain.nouns} as a file", [], {}, object_of({"job": INTEGER})
    if route.role == "update":
        states = {fields["progress"]: _states(api)} if api.shape.write == "patch" else {}
        about = f"; {fields['progress']}: {', '.join(states[fields['progress']]['enum'])}" if states else ""
        written = {**states, fields["label"]: STRING}
        return f"update one {domain.noun}{about}{_soft(api)}", [], written, _written(api)
    base = route.verb.base if route.verb else ""
    if api.shape.write == "batch":
        ids: dict[str, Json] = {"type": "array", "items": _id(api)}
        return f"{base} several {domain.nouns}{_soft(api)}", [], {"ids": ids}, _written(api)
    body = {fields["id"]: _id(api)} if api.shape.write == "body" else {}
    return f"{base} one {domain.noun}{_soft(api)}", [], body, _written(api)


def item_schema(api: GymApi, *, whole: bool) -> dict[str, Json]:
    kinds: dict[ItemField, Json] = {
        "person": object_of({api.wire("inner"): STRING}) if api.shape.nesting == "object" else STRING,
        "label": STRING,
        "number": INTEGER,
        "date": {"type": "string", "format": "date"},
        "progress": _states(api),
    }
    if not whole and api.shape.rows == "partial":
        del kinds[api.hidden]
    rest = {api.fields[field]: kind for field, kind in kinds.items()}
    rest |= {spell(words, api.shape.style): STRING for words in api.domain.distractors}
    first = {api.fields["id"]: _id(api)}
    return object_of(
        {**first, api.wire("group"): object_of(rest)} if api.shape.nesting == "grouped" else first | rest
    )


def _list(api: GymApi) -> dict[str, Json]:
    rows: dict[str, Json] = {"type": "array", "items": item_schema(api, whole=False)}
    shape = api.shape
    if shape.envelope == "bare":
        return rows
    key = api.resource if shape.envelope == "named" else api.wire("data")
    answer = {api.wire("outer"): object_of({key: rows})} if shape.envelope == "wrapped" else {key: rows}
    if shape.paging == "cursor":
        answer[api.wire("next")] = {"type": ["string", "null"]}
    elif shape.paging == "link":
        answer[api.wire("links")] = object_of({"next": {"type": ["string", "null"]}})
    return object_of(answer)


def _query(api: GymApi) -> list[Json]:
    shape, size = api.shape, {"type": "integer", "default": PAGE_SIZE, "maximum": PAGE_SIZE}
    start: dict[str, list[Json]] = {
        "page": [optional_of(api.wire("page"), {"type": "integer", "default": api.first_page})],
        "offset": [
            optional_of(api.wire("offset"), {"type": "integer", "default": 0}),
            optional_of(api.wire("limit"), size),
        ],
        "cursor": [optional_of(api.wire("cursor"), STRING)],
        "link": [optional_of(api.wire("cursor"), STRING)],
        "whole": [],
    }
    filters = [optional_of(api.fields[field], STRING) for field in FILTERED]
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
        return object_of({api.wire("ok"): BOOLEAN, api.wire("error"): STRING})
    return object_of({"changed": INTEGER})


def _states(api: GymApi) -> dict[str, Json]:
    return {"type": "string", "enum": [api.domain.initial, *(verb.done for verb in api.domain.verbs)]}


def _id(api: GymApi) -> dict[str, Json]:
    return INTEGER if api.shape.ids == "number" else STRING

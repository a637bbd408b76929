"""The OpenAPI 3.1 document of an app. What a caller must know is in names, schemas and summaries."""

from typing import Literal

from app.base.values import Json
from trainer.worlds.generated.apis import PAGE_SIZE, Api, Collection, RecordField, Route
from trainer.worlds.generated.words import spell

SUPERVISOR = "supervisor"
FILTERED: tuple[Literal["person", "label"], ...] = ("person", "label")  # by lists that filter

_STRING: dict[str, Json] = {"type": "string"}
_INTEGER: dict[str, Json] = {"type": "integer"}
_BOOLEAN: dict[str, Json] = {"type": "boolean"}
_SIMPLE: dict[RecordField, dict[str, Json]] = {
    "title": _STRING,
    "link": {"type": "string", "format": "uri"},
    "person": _STRING,
    "label": _STRING,
    "number": _INTEGER,
    "date": {"type": "string", "format": "date"},
}


def document_of(api: Api, base: str) -> dict[str, Json]:
    """`base` is the URL of the services; the world is a variable of it."""
    paths: dict[str, dict[str, Json]] = {}
    for route in api.routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(api, route)
    document = _document(api.name, api.version, api.about, base, paths)
    if api.has_components:
        schemas = {_schema_name(each): record_schema(api, each, whole=True) for each in api.collections}
        document["components"] = {"schemas": schemas}
    return document


def supervisor_document(apps: list[str], base: str) -> dict[str, Json]:
    """Of the app that knows the user's password or key of each app."""
    passwords = _answer_of(_object_of(dict.fromkeys(apps, _STRING)))
    shown = {"operationId": "show_passwords", "summary": "the password or key of each app", "responses": passwords}
    return _document(SUPERVISOR, "1", "your passwords and keys", base, {"/passwords": {"get": shown}})


def record_schema(api: Api, collection: Collection, *, whole: bool) -> dict[str, Json]:
    """Of a record by itself, or of a row of a list, which lacks a field if rows are partial."""
    kinds: dict[str, Json] = {
        name: _kind(api, collection, field)
        for field, name in collection.fields.items()
        if whole or api.shape.rows != "partial" or field != collection.hidden
    }
    kinds |= dict.fromkeys(collection.flags, _BOOLEAN)
    kinds = _in_order(collection, kinds | dict.fromkeys(collection.extras, _STRING))
    first = {api.id_name: _id(api)}
    return _object_of(
        {**first, api.wire("group"): _object_of(kinds)} if api.shape.nesting == "grouped" else first | kinds
    )


def rows_at(api: Api, collection: Collection) -> list[str]:
    """The keys that lead to the rows of a list's answer."""
    match api.shape.envelope:
        case "bare" | "keyed":
            return []
        case "named" | "named_keyed":
            return [collection.resource]
        case "wrapped":
            return [api.wire("outer"), api.wire("data")]
    return [api.wire("data")]


def _document(name: str, version: str, about: str, base: str, paths: dict[str, Json]) -> dict[str, Json]:
    return {
        "openapi": "3.1.0",
        "info": {"title": name, "version": version, "description": about},
        "servers": [{"url": f"{base}/{{world}}/{name}", "variables": {"world": {"default": "none"}}}],
        "paths": paths,
    }


def _operation(api: Api, route: Route) -> Json:
    answer = _answer(api, route)
    operation: dict[str, Json] = {
        "operationId": route.id,
        "summary": _summary(api, route),
        "responses": _answer_of(answer) if answer else {"204": {"description": "done"}},
    }
    parameters = {"parameters": _parameters(api, route)}
    schema = _body(api, route)
    if not schema:
        return {**operation, **parameters}
    body = {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}
    # in the order in which published figures were measured
    return operation | (parameters | body if api.has_components else body | parameters)


def _parameters(api: Api, route: Route) -> list[Json]:
    shape, found = api.shape, []
    if route.role != "login" and shape.auth in ("login", "key"):
        found.append(_parameter_of(api.header, "header", _STRING))
    if route.role != "login" and shape.auth == "query_token":
        found.append(_parameter_of(api.wire("token"), "query", _STRING))
    if "{" in route.path:
        found.append(_parameter_of(api.id_parameter, "path", _id(api)))
    if route.role == "search":
        found.append(_parameter_of("q", "query", _STRING))
    return found + (_options(api, route) if route.role == "list" else [])


def _options(api: Api, route: Route) -> list[Json]:
    """Of a list."""
    shape, fields = api.shape, api.collections[route.collection].fields
    size: Json = {"type": "integer", "default": PAGE_SIZE, "maximum": PAGE_SIZE}
    schemas: dict[str, Json] = {}
    match shape.paging:
        case "page":
            schemas = {api.wire("page"): {**_INTEGER, "default": api.first_page}}
        case "offset":
            schemas = {api.wire("offset"): {**_INTEGER, "default": 0}, api.wire("limit"): size}
        case "cursor" | "link":
            schemas = {api.wire("cursor"): _STRING}
    if shape.filters == "equal":
        schemas |= {fields[field]: _STRING for field in FILTERED}
    schemas |= {spell(words, shape.style): _STRING for words in api.options}
    return [{"name": name, "in": "query", "required": False, "schema": each} for name, each in schemas.items()]


def _summary(api: Api, route: Route) -> str:
    collection = api.collections[route.collection]
    domain, (role, shape) = collection.domain, (route.role, api.shape)
    frame = api.summaries[role]
    if role == "act" and shape.write == "batch":
        frame = "{act} several {nouns}"
    said = frame.format(noun=domain.noun, nouns=domain.nouns, act=route.verb.base if route.verb else "")
    if role == "list":
        said += _pages(api)
    if role == "update" and shape.write == "patch" and not collection.has_flags:
        said += f"; {collection.fields['state']}: {', '.join(collection.states)}"
    if role in ("list", "show") and shape.errors == "limited":
        said += "; 429 if too fast, call again"
    if role in ("update", "act") and shape.errors == "soft":
        said += f"; {api.wire('ok')} is false while busy, call again"
    return said


def _pages(api: Api) -> str:
    match api.shape.paging:
        case "page":
            return f", pages start at {api.first_page}"
        case "offset":
            return f", {PAGE_SIZE} from {api.wire('offset')} on"
        case "cursor":
            return f", pass {api.wire('next')} as {api.wire('cursor')} for more"
        case "link":
            return f", the next link has the {api.wire('cursor')} for more"
    return ""


def _body(api: Api, route: Route) -> dict[str, Json]:
    """Its schema; empty if there is none."""
    collection, required = api.collections[route.collection], []
    match route.role:
        case "login":
            fields, required = {"password": _STRING}, ["password"]
        case "create":
            fields = _writable(api, collection, state=False)
            required = [collection.fields[collection.required]]
        case "update":
            fields = _writable(api, collection, state=api.shape.write == "patch")
        case "act" if api.shape.write == "batch":
            fields, required = {"ids": {"type": "array", "items": _id(api)}}, ["ids"]
        case "act" if api.shape.write == "body":
            fields, required = {api.id_name: _id(api)}, [api.id_name]
        case _:
            return {}
    schema: dict[str, Json] = {"type": "object", "properties": fields, "required": required}
    return _object_of({collection.singular: schema}) if api.shape.body == "wrapped" else schema


def _writable(api: Api, collection: Collection, *, state: bool) -> dict[str, Json]:
    fields: dict[str, Json] = {}
    for field in collection.writable:
        if field != "state" and field in collection.fields:
            fields[collection.fields[field]] = _SIMPLE[field]
        elif field == "state" and state:
            named = {} if collection.has_flags else {collection.fields[field]: _kind(api, collection, field)}
            fields |= dict.fromkeys(collection.flags, _BOOLEAN) | named
    return _in_order(collection, fields | dict.fromkeys(collection.writable_extras, _STRING))


def _answer(api: Api, route: Route) -> dict[str, Json]:
    """Its schema; empty if there is none."""
    collection = api.collections[route.collection]
    match route.role:
        case "login":
            return _object_of({api.wire("token"): _STRING})
        case "list" | "search":
            return _list(api, collection)
        case "settings":
            return _object_of({"locale": _STRING, "version": _INTEGER})
        case "info":
            shown = dict.fromkeys(sorted([api.wire("version"), *api.status_names]), _STRING)
            return _object_of({**shown, "uptime": _INTEGER})
        case "other":
            return _object_of({"job": _INTEGER})
        case "delete":
            return {}
        case "create" if api.shape.created != "record":
            return _object_of({api.id_name: _id(api)}) if api.shape.created == "id" else {}
        case "update" | "act" if api.shape.errors == "soft":
            return _object_of({api.wire("ok"): _BOOLEAN, api.wire("error"): _STRING})
        case "update" | "act" if collection.is_strict:
            return _object_of({"changed": _INTEGER})
    return _record(api, collection)


def _record(api: Api, collection: Collection) -> dict[str, Json]:
    if api.has_components:
        return {"$ref": f"#/components/schemas/{_schema_name(collection)}"}
    return record_schema(api, collection, whole=True)


def _list(api: Api, collection: Collection) -> dict[str, Json]:
    is_partial = api.shape.rows == "partial"
    row = record_schema(api, collection, whole=False) if is_partial else _record(api, collection)
    rows: dict[str, Json] = {"type": "array", "items": row}
    if api.shape.is_keyed:
        rows = {"type": "object", "additionalProperties": row}
    if not (keys := rows_at(api, collection)):
        return rows
    answer = {keys[-1]: rows}
    for key in keys[-2::-1]:
        answer = {key: _object_of(answer)}
    if api.shape.paging == "cursor":
        answer[api.wire("next")] = {"type": ["string", "null"]}
    elif api.shape.paging == "link":
        answer[api.wire("links")] = _object_of({"next": {"type": ["string", "null"]}})
    return _object_of(answer)


def _kind(api: Api, collection: Collection, field: RecordField) -> dict[str, Json]:
    if field == "state":
        return {**_STRING, "enum": [*collection.states]}
    if field == "person" and api.shape.nesting == "object":
        return _object_of({api.wire("inner"): _STRING})
    return _SIMPLE[field]


def _in_order(collection: Collection, fields: dict[str, Json]) -> dict[str, Json]:
    """By name if there are many, as generated documents have them."""
    return dict(sorted(fields.items())) if collection.is_wide else fields


def _id(api: Api) -> dict[str, Json]:
    return _INTEGER if api.shape.ids == "number" else _STRING


def _schema_name(collection: Collection) -> str:
    return spell(collection.domain.noun, "pascal")


def _parameter_of(name: str, place: str, schema: Json) -> Json:
    return {"name": name, "in": place, "required": True, "schema": schema}


def _object_of(properties: dict[str, Json]) -> dict[str, Json]:
    return {"type": "object", "properties": properties, "required": list(properties)}


def _answer_of(schema: Json) -> Json:
    return {"200": {"description": "done", "content": {"application/json": {"schema": schema}}}}

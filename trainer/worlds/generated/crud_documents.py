"""The OpenAPI 3.1 document of an app that keeps records."""

from app.records import Json
from trainer.worlds.generated.crud_apis import CrudApi, CrudRoute
from trainer.worlds.generated.crud_collections import Collection, RecordField
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

_SIMPLE: dict[RecordField, dict[str, Json]] = {
    "title": STRING,
    "link": {"type": "string", "format": "uri"},
    "person": STRING,
    "label": STRING,
    "number": INTEGER,
    "date": {"type": "string", "format": "date"},
}


def document_of(api: CrudApi, base: str) -> dict[str, Json]:
    """`base` is the URL of the services; the world is a variable of it."""
    paths: dict[str, dict[str, Json]] = {}
    for route in api.routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(api, route)
    schemas: dict[str, Json] = {
        spell(each.domain.noun, "pascal"): record_schema(api, each, whole=True) for each in api.collections
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": api.name, "version": api.version, "description": api.about},
        "servers": [{"url": f"{base}/{{world}}/{api.name}", "variables": {"world": {"default": "none"}}}],
        "paths": paths,
        "components": {"schemas": schemas},
    }


def _operation(api: CrudApi, route: CrudRoute) -> Json:
    parameters: list[Json] = []
    if api.shape.auth == "key":
        parameters.append(parameter_of(api.words["header"], "header", STRING))
    if "{" in route.path:
        parameters.append(parameter_of(api.id_name, "path", _id(api)))
    if route.role == "list" and api.shape.paging == "page":
        parameters.append(optional_of(api.wire("page"), {**INTEGER, "default": 1}))
    if route.role == "search":
        parameters.append(parameter_of("q", "query", STRING))
    if route.role == "list":
        parameters += [optional_of(spell(words, api.shape.style), STRING) for words in api.options]
    summary, body, required, answer = _parts(api, route)
    operation: dict[str, Json] = {
        "operationId": route.id,
        "summary": summary,
        "responses": answer_of(answer) if answer else {"204": {"description": "done"}},
        "parameters": parameters,
    }
    if not body:
        return operation
    schema = {"type": "object", "properties": body, "required": required}
    if api.shape.body == "wrapped":
        name = api.collections[route.collection].singular
        schema = {"type": "object", "properties": {name: schema}, "required": [name]}
    return {**operation, "requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def _parts(api: CrudApi, route: CrudRoute) -> tuple[str, dict[str, Json], list[str], dict[str, Json]]:
    """Summary, fields of the body, those that are required, and the answer."""
    if route.role == "info":
        shown = dict.fromkeys(sorted([api.wire("version"), *api.status_names]), STRING)
        return "status of the server", {}, [], object_of({**shown, "uptime": INTEGER})
    collection = api.collections[route.collection]
    noun, nouns, required = collection.domain.noun, collection.domain.nouns, collection.fields[collection.required]
    record: dict[str, Json] = {"$ref": f"#/components/schemas/{spell(noun, 'pascal')}"}
    match route.role:
        case "list" | "search":
            pages = ", pages start at 1" if api.shape.paging == "page" and route.role == "list" else ""
            return f"{route.role} {nouns}{pages}", {}, [], _list(api, collection, record)
        case "show":
            return f"one {noun}", {}, [], record
        case "create":
            created = {"record": record, "id": object_of({api.id_name: _id(api)}), "nothing": {}}[
                api.shape.created
            ]
            return f"create a {noun}", _writable(collection, state=False), [required], created
        case "update":
            states = api.shape.act == "field"
            named = states and not collection.has_flags
            choices = f"; {collection.fields['state']}: {', '.join(collection.states)}" if named else ""
            return f"change a {noun}{choices}", _writable(collection, state=states), [], record
        case "delete":
            return f"delete a {noun}", {}, [], {}
        case "other":
            return "", {}, [], object_of({"job": INTEGER})
    return f"{route.verb.base if route.verb else ''} a {noun}", {}, [], record


def record_schema(api: CrudApi, collection: Collection, *, whole: bool) -> dict[str, Json]:
    kinds: dict[str, Json] = {}
    for field, name in collection.fields.items():
        if whole or field != collection.hidden:
            kinds[name] = {**STRING, "enum": [*collection.states]} if field == "state" else _SIMPLE[field]
    kinds |= dict.fromkeys(collection.flags, BOOLEAN)
    kinds = _in_order(collection, kinds | dict.fromkeys(collection.writable_extras, STRING))
    first = {api.id_name: _id(api)}
    return object_of(
        {**first, api.wire("group"): object_of(kinds)} if api.shape.nesting == "grouped" else first | kinds
    )


def _list(api: CrudApi, collection: Collection, record: dict[str, Json]) -> dict[str, Json]:
    row = record_schema(api, collection, whole=False) if api.shape.rows == "partial" else record
    rows: dict[str, Json] = {"type": "array", "items": row}
    match api.shape.listing:
        case "keyed":
            return {"type": "object", "additionalProperties": row}
        case "named_keyed":
            return object_of({collection.resource: {"type": "object", "additionalProperties": row}})
        case "named":
            return object_of({collection.resource: rows})
        case "data":
            return object_of({api.wire("data"): rows})
    return rows


def _writable(collection: Collection, *, state: bool) -> dict[str, Json]:
    fields = {name: _SIMPLE[field] for field, name in collection.fields.items() if field in _SIMPLE}
    if state and collection.has_flags:
        fields |= dict.fromkeys(collection.flags, BOOLEAN)
    elif state:
        fields[collection.fields["state"]] = {**STRING, "enum": [*collection.states]}
    return _in_order(collection, {**fields, **dict.fromkeys(collection.writable_extras, STRING)})


def _in_order(collection: Collection, fields: dict[str, Json]) -> dict[str, Json]:
    """By name if there are many, as generated documents have them."""
    return dict(sorted(fields.items())) if collection.is_wide else fields


def _id(api: CrudApi) -> dict[str, Json]:
    return INTEGER if api.shape.ids == "number" else STRING

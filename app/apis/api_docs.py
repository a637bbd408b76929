"""The operations of `apis.api_docs`: look-ups in the documents of a catalog. Pure."""

from itertools import islice

from app.apis.catalog import App, Catalog, Parameter
from app.apis.names import nearest
from app.apis.operation_index import index_of, ranked
from app.apis.query_words import read_query
from app.apis.short_signature import LEFT_OUT, page_of_signatures
from app.apis.short_text import short_repr
from app.apis.type_names import map_values, type_name
from app.apis.words import split_words
from app.errors import HostError
from app.records import Json

_SHAPE_DEPTH = 5
_SHAPE_FIELDS = 5_000
_BRANCHES = 20  # of one schema whose fields are shown
_SHOWN = 2_000  # parameters of one operation
_BOUND_CHARS = 4_000  # of one constraint
SIGNATURE_CHARS = 5_400  # of all signatures at once: at most some 2,000 tokens, of 2.7 characters
_FOUND = 30
_SUMMARY_CHARS = 200
_BOUNDS = {
    "minimum": "value >= {}",
    "maximum": "value <= {}",
    "exclusiveMinimum": "value > {}",
    "exclusiveMaximum": "value < {}",
    "multipleOf": "value a multiple of {}",
    "minLength": "length >= {}",
    "maxLength": "length <= {}",
    "minItems": "length >= {}",
    "maxItems": "length <= {}",
    "pattern": "matches {}",
    "enum": "value in {}",
    "format": "format {}",
}


def show_app_descriptions(catalog: Catalog) -> list[Json]:
    return [{"name": app.name, "description": app.description} for app in catalog.apps.values()]


def show_api_descriptions(catalog: Catalog, app_name: str) -> list[Json]:
    """Name and summary of each operation. Raises HostError for an unknown app."""
    operations = _app(catalog, app_name).operations.values()
    return [{"name": operation.name, "description": operation.summary} for operation in operations]


def show_api_doc(catalog: Catalog, app_name: str, api_name: str) -> dict[str, Json]:
    """The full description of one operation. Raises HostError for an unknown one."""
    app = _app(catalog, app_name)
    operation = app.operations.get(api_name)
    if operation is None:
        raise HostError("LookupError", f"no API {api_name!r} in {app_name}: {nearest(api_name, app.operations)}")
    shapes = _Shape()
    returned = shapes.of(operation.returns, _SHAPE_DEPTH)
    return {
        "app_name": app.name,
        "api_name": operation.name,
        "path": operation.path,
        "method": operation.method,
        "description": operation.description or operation.summary,
        "parameters": [_parameter(parameter, shapes) for parameter in operation.parameters[:_SHOWN]],
        "response_schemas": {"success": returned},
    }


def show_signatures(catalog: Catalog, app_name: str, start: int = 0, *, instruction: str = "") -> str:
    """One line per operation: `fetch_mails(access_token, page) -> id, sender: list mails`.

    At most some 2,000 tokens. Of lines too long for that, arguments and fields are left out, last those that the
    instruction of a task names. Operations left out are said in a last line, and shown from another `start` on.
    """
    app = _app(catalog, app_name)
    operations = list(islice(app.operations.values(), start, None))
    page = page_of_signatures(app, operations, instruction, SIGNATURE_CHARS)
    notes = []
    if page.is_cut:
        notes.append(f"[{LEFT_OUT}: more, which show_api_doc(app_name={app_name!r}, api_name=...) shows]")
    if len(page.lines) < len(operations):
        end = start + len(page.lines)
        notes.append(
            f"[{end} of {len(app.operations)} operations; the others: "
            f"show_signatures(app_name={app_name!r}, start={end}), or search(query=...)]"
        )
    return "\n".join([*page.lines, *notes])


def search(catalog: Catalog, query: str, limit: int = 10) -> list[Json]:
    """The operations that fit the query, the best first: at most 30, some 2,000 tokens."""
    found = ranked(map(index_of, catalog.apps.values()), read_query(query), min(limit, _FOUND))
    return [
        {"app_name": each.app, "api_name": each.name, "description": each.summary[:_SUMMARY_CHARS]}
        for each in found
    ]


def unknown_app(catalog: Catalog, name: str) -> str:
    """For an error message. An app is easily called by the name of what it keeps, so that is searched for."""

    def keeper() -> str:
        found = search(catalog, " ".join(split_words(name[:_SUMMARY_CHARS])), limit=1)
        return f"did you mean {found[0]['app_name']}, which has {found[0]['api_name']}?" if found else ""

    return f"no app {name!r}: {nearest(name, catalog.apps, otherwise=keeper)}"


def shape(schema: dict[str, Json]) -> Json:
    """The schema as an example of its values, with type names in their place; down to a depth, and a size.

    >>> shape({"type": "array", "items": {"properties": {"id": {"type": "integer"}}}})
    [{'id': 'integer'}]
    >>> shape({"type": "object", "additionalProperties": {"properties": {"title": {"type": "string"}}}})
    {'<key>': {'title': 'string'}}
    >>> shape({"properties": {"id": {}}, "type": "object", "anyOf": [{"properties": {"url": {"type": "string"}}}]})
    {'url': 'string', 'id': 'any'}
    """
    return _Shape().of(schema, _SHAPE_DEPTH)


class _Shape:
    """Of several schemas, with a limited number of fields in all: those that are left have their types alone."""

    def __init__(self) -> None:
        self._left = _SHAPE_FIELDS

    def of(self, schema: dict[str, Json], depth: int) -> Json:
        fields = _fields(schema)
        if fields and depth and len(fields) <= self._left:
            self._left -= len(fields)
            return {name: self.of(field, depth - 1) for name, field in fields.items()}
        if "items" in schema and depth:
            return [self.of(schema["items"], depth - 1)]
        values = map_values(schema)
        if values is not None and depth:
            return {"<key>": self.of(values, depth - 1)}
        return type_name(schema)


def _fields(schema: dict[str, Json]) -> dict[str, Json]:
    """Of an object of several kinds, those that any kind has."""
    has_kinds = set(type_name(schema).split(" or ")) <= {"object", "null"}
    kinds = islice(schema.get("anyOf", ()), _BRANCHES) if has_kinds else ()
    return {name: field for each in (*kinds, schema) for name, field in each.get("properties", {}).items()}


def _app(catalog: Catalog, name: str) -> App:
    app = catalog.apps.get(name)
    if app is None:
        raise HostError("LookupError", unknown_app(catalog, name))
    return app


def _parameter(parameter: Parameter, shapes: _Shape) -> dict[str, Json]:
    schema = parameter.schema
    form = shapes.of(schema, _SHAPE_DEPTH)
    return {
        "name": parameter.name,
        **({"sent_as": parameter.wire_name} if parameter.wire_name != parameter.name else {}),
        "type": type_name(schema),
        **({"fields": form} if _has_fields(form) else {}),
        "required": parameter.required,
        "description": parameter.description or schema.get("description", ""),
        "default": schema.get("default"),
        "constraints": [text.format(_bound(schema[word])) for word, text in _BOUNDS.items() if word in schema],
    }


def _has_fields(form: Json) -> bool:
    """Whether an example is an object, or a list of objects."""
    return isinstance(form, dict) or (isinstance(form, list) and any(map(_has_fields, form)))


def _bound(value: Json) -> str:
    return value[:_BOUND_CHARS] if isinstance(value, str) else short_repr(value, _BOUND_CHARS)

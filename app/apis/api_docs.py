"""The operations of `apis.api_docs`: look-ups in the documents of a catalog. Pure."""

import re
from collections.abc import Iterator

from app.apis.catalog import App, Catalog, Operation, Parameter
from app.apis.names import nearest
from app.apis.short_text import short_repr
from app.apis.signature import signature, type_name
from app.errors import HostError
from app.records import Json

_SHAPE_DEPTH = 5
_SHAPE_FIELDS = 5_000
_SHOWN = 2_000  # parameters of one operation
_BOUND_CHARS = 4_000  # of one constraint
_SEARCHED_CHARS = 2_000_000
_QUERY_CHARS = 10_000
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
    return {
        "app_name": app.name,
        "api_name": operation.name,
        "path": operation.path,
        "method": operation.method,
        "description": operation.description or operation.summary,
        "parameters": [_parameter(parameter) for parameter in operation.parameters[:_SHOWN]],
        "response_schemas": {"success": shape(operation.returns)},
    }


def show_signatures(catalog: Catalog, app_name: str) -> str:
    """One line per operation: `fetch_mails(access_token, page) -> id, sender: list mails`."""
    return "\n".join(signature(operation) for operation in _app(catalog, app_name).operations.values())


def search(catalog: Catalog, query: str, limit: int = 10) -> list[Json]:
    """The operations that share words with the query, most words first."""
    words, texts = set(_words(query[:_QUERY_CHARS])), _Texts()
    scored = [
        (score, operation)
        for app in catalog.apps.values()
        for operation in app.operations.values()
        if (score := _score(words, operation, texts)) > 0
    ]
    scored.sort(key=lambda pair: -pair[0])
    return [
        {"app_name": operation.app, "api_name": operation.name, "description": operation.summary}
        for _, operation in scored[:limit]
    ]


def shape(schema: dict[str, Json]) -> Json:
    """The schema as an example of its values, with type names in their place; down to a depth, and a size.

    >>> shape({"type": "array", "items": {"properties": {"id": {"type": "integer"}}}})
    [{'id': 'integer'}]
    """
    return _Shape().of(schema, _SHAPE_DEPTH)


class _Shape:
    def __init__(self) -> None:
        self._left = _SHAPE_FIELDS

    def of(self, schema: dict[str, Json], depth: int) -> Json:
        fields = schema.get("properties")
        if fields and depth and len(fields) <= self._left:
            self._left -= len(fields)
            return {name: self.of(field, depth - 1) for name, field in fields.items()}
        if "items" in schema and depth:
            return [self.of(schema["items"], depth - 1)]
        return type_name(schema)


def _app(catalog: Catalog, name: str) -> App:
    app = catalog.apps.get(name)
    if app is None:
        raise HostError("LookupError", f"no app {name!r}: {nearest(name, catalog.apps)}")
    return app


def _parameter(parameter: Parameter) -> dict[str, Json]:
    schema = parameter.schema
    return {
        "name": parameter.name,
        "type": type_name(schema),
        "required": parameter.required,
        "description": parameter.description or schema.get("description", ""),
        "default": schema.get("default"),
        "constraints": [text.format(_bound(schema[word])) for word, text in _BOUNDS.items() if word in schema],
    }


def _bound(value: Json) -> str:
    return value[:_BOUND_CHARS] if isinstance(value, str) else short_repr(value, _BOUND_CHARS)


class _Texts:
    """Texts to search, up to a total length."""

    def __init__(self) -> None:
        self._left = _SEARCHED_CHARS

    def words(self, text: str) -> set[str]:
        text = text[: self._left]
        self._left -= len(text)
        return set(_words(text))


def _score(words: set[str], operation: Operation, texts: _Texts) -> float:
    """Words of the name weigh 3, of the summary 2, of the description 1."""
    named = texts.words(f"{operation.app} {operation.name}")
    summarized, described = texts.words(operation.summary), texts.words(operation.description)
    return 3 * len(words & named) + 2 * len(words & summarized) + len(words & described)


def _words(text: str) -> Iterator[str]:
    """Lower-case words, plurals as singulars."""
    for word in re.findall(r"[a-z0-9]+", text.lower()):
        yield word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word

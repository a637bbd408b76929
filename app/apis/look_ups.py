"""The operations of `apis.api_docs`: look-ups in the documents of a catalog. Pure."""

from collections.abc import Iterable, Iterator
from itertools import islice

from app.apis.catalog import App, Catalog, Operation, Parameter
from app.apis.look_up_room import (
    NOTE,
    SHORT,
    Room,
    fitted,
    how_many_fit,
    likeliest,
    next_page,
    page_of_entries,
    rest_of,
    shortened,
)
from app.apis.names import nearest
from app.apis.operation_index import index_of, ranked
from app.apis.query_words import read_query
from app.apis.short_signature import LEFT_OUT, SignatureWords, page_of_signatures
from app.apis.short_text import short_repr
from app.apis.type_form import values_form
from app.apis.type_names import map_values, type_name
from app.apis.words import split_words
from app.base.errors import HostError
from app.base.values import Json

_SHAPE_DEPTH = 5
_SHAPE_FIELDS = 5_000
_BRANCHES = 20  # of one schema whose fields are shown
_SHOWN = 2_000  # parameters of one operation
_BOUND_CHARS = 4_000  # of one constraint
_FOUND = 30
_SUGGESTED = 3
_RANKED = 300  # operations, by which apps are ranked
_ROOM = Room()
_ANSWER = ""  # beside the names of parameters, which are not empty
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


def show_app_descriptions(catalog: Catalog, page: int = 1, *, room: Room = _ROOM) -> list[Json]:
    """Name and description of each app, on pages that fit."""
    apps = {app.name: {"name": app.name, "description": app.description} for app in catalog.apps.values()}

    def likeliest_apps() -> list[Json]:
        found = ranked(map(index_of, catalog.apps.values()), read_query(room.instruction), _RANKED)
        return [apps[name] for name in dict.fromkeys([*(each.app for each in found), *apps]) if name in apps]

    return page_of_entries(list(apps.values()), room, page, "show_app_descriptions()", likeliest_apps)


def show_api_descriptions(catalog: Catalog, app_name: str, page: int = 1, *, room: Room = _ROOM) -> list[Json]:
    """Name and summary of each operation, on pages that fit. Raises HostError for an unknown app."""
    app = _app(catalog, app_name)

    def described(operations: Iterable[Operation]) -> list[Json]:
        return [{"name": each.name, "description": each.summary} for each in operations]

    return page_of_entries(
        described(app.operations.values()),
        room,
        page,
        f"show_api_descriptions({app_name!r})",
        lambda: described(likeliest(app, room.instruction)),
    )


def show_api_doc(
    catalog: Catalog, app_name: str, api_name: str, page: int = 1, *, room: Room = _ROOM
) -> dict[str, Json]:
    """The full description of one operation, on pages that fit. Raises HostError for an unknown one."""
    app = _app(catalog, app_name)
    operation = app.operations.get(api_name)
    if operation is None:
        raise HostError("LookupError", unknown_operation(app, api_name))
    call = f"show_api_doc({app_name!r}, {api_name!r})"
    forms = _forms(app, operation)
    parameters = [_parameter(each, forms.get(each.name), None) for each in operation.parameters[:_SHOWN]]
    whole = _document(operation, parameters, forms[_ANSWER], None)
    if page == 1 and len(repr(whole)) <= room.chars:
        return whole
    pages = _pages(app, operation, room)
    shown, more = next(islice(pages, page - 1, None), ({"parameters": [], "response_schemas": {}}, ""))
    return {**shown, "more": f"{more}: {next_page(call, page)}"} if more else shown


def show_signatures(catalog: Catalog, app_name: str, page: int = 1, *, room: Room = _ROOM) -> str:
    """One line per operation: `fetch_mails(access_token, page) -> id, sender: list mails`.

    If not all fit, the likeliest for the instruction of the task come first. Of lines that are too long, arguments
    and fields are left out, last those that the instruction names. A last line says how many more operations there
    are, and the call that shows them.
    """
    app = _app(catalog, app_name)
    left = list(app.operations.values())
    words = SignatureWords(app, room.instruction)
    shown = page_of_signatures(app, left, words, room.chars)
    if page > 1 or shown.is_cut or len(shown.lines) < len(left):
        if len(page_of_signatures(app, left, words, room.chars - NOTE).lines) < len(left):
            left = likeliest(app, room.instruction)
        for _ in range(min(page, len(left) + 1)):  # one after the last is empty
            shown = page_of_signatures(app, left, words, room.chars - NOTE)
            left = left[len(shown.lines) :]
    else:
        left = []
    notes = []
    if shown.is_cut:
        notes.append(f"[{LEFT_OUT}: apis.api_docs.show_api_doc({app_name!r}, api_name=...) shows more of one]")
    if left:
        notes.append(f"[{len(left)} more: {next_page(f'show_signatures({app_name!r})', page)}]")
    return "\n".join([*shown.lines, *notes])


def search(catalog: Catalog, query: str, limit: int = 10, page: int = 1, *, room: Room = _ROOM) -> list[Json]:
    """The operations that fit the query, the best first: at most 30, on pages that fit."""
    found = ranked(map(index_of, catalog.apps.values()), read_query(query), min(limit, _FOUND))
    entries = [
        {"app_name": each.app, "api_name": each.name, "description": each.summary[:_SUMMARY_CHARS]}
        for each in found
    ]
    call = f"search({query[:_SUMMARY_CHARS]!r}, limit={limit})"
    return page_of_entries(entries, room, page, call, lambda: entries)


def unknown_operation(app: App, name: str) -> str:
    """For an error message: the names that are alike, or else the operations that its words find, or all."""

    def found() -> str:
        query = read_query(" ".join(split_words(name[:_SUMMARY_CHARS])))
        best = ranked([index_of(app)], query, _SUGGESTED)
        return f"did you mean {' or '.join(each.name for each in best)}?" if best else ""

    return f"no API {name!r} in {app.name}: {nearest(name, app.operations, otherwise=found)}"


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

    def __init__(self, *, typed: bool = False) -> None:
        self._typed = typed
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
        chosen = values_form(schema) if self._typed else ""
        return f"{type_name(schema)}: {chosen}" if chosen else type_name(schema)


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


def _pages(app: App, operation: Operation, room: Room) -> Iterator[tuple[dict[str, Json], str]]:
    """The description in parts with short texts, and of each what more there is: "" after the last."""
    words = SignatureWords(app, room.instruction)
    parameters = sorted(operation.parameters[:_SHOWN], key=lambda each: (not each.required, words.rank(each.name)))
    by_name = {each.name: each for each in parameters}
    forms: dict[str, Json] = _forms(app, operation)
    chars = room.chars - NOTE - len(repr(_document(operation, [], "", SHORT)))
    more = "more"
    while more:
        sizes = [len(repr(_parameter(each, None, SHORT))) + 2 for each in parameters]
        count = max(1, how_many_fit(sizes, chars // 2 if forms else chars))
        first, parameters = parameters[:count], parameters[count:]
        shown = fitted(forms, chars - sum(sizes[:count]), lambda name: (name != _ANSWER, words.rank(name)))
        forms = rest_of(forms, shown) or {}
        names = dict.fromkeys([*(each.name for each in first), *(name for name in shown if name in by_name)])
        described = [_parameter(by_name[name], shown.get(name), SHORT) for name in names]
        more = " and ".join(
            [*([f"{len(parameters)} parameters"] if parameters else []), *(["fields"] if forms else [])]
        )
        yield _document(operation, described, shown.get(_ANSWER, LEFT_OUT), SHORT), more


def _forms(app: App, operation: Operation) -> dict[str, Json]:
    """Examples of what it returns, and of the parameters that are objects or lists of them, by name."""
    shapes = _Shape(typed=app.typed)
    returned = shapes.of(operation.returns, _SHAPE_DEPTH)
    forms = {each.name: shapes.of(each.schema, _SHAPE_DEPTH) for each in operation.parameters[:_SHOWN]}
    return {_ANSWER: returned, **{name: form for name, form in forms.items() if _has_fields(form)}}


def _document(operation: Operation, parameters: list[Json], answer: Json, chars: int | None) -> dict[str, Json]:
    return {
        "app_name": operation.app,
        "api_name": operation.name,
        "path": operation.path,
        "method": operation.method,
        "description": _text(operation.description or operation.summary, chars),
        "parameters": parameters,
        "response_schemas": {"success": answer},
    }


def _parameter(parameter: Parameter, form: Json, chars: int | None) -> dict[str, Json]:
    """`form` is that of its fields. With `chars`, texts are cut to so many, and what says nothing is left out."""
    schema = parameter.schema
    described = {
        "name": parameter.name,
        **({"sent_as": parameter.wire_name} if parameter.wire_name != parameter.name else {}),
        "type": type_name(schema),
        **({"fields": form} if form is not None else {}),
        "required": parameter.required,
        "description": _text(parameter.description or schema.get("description", ""), chars),
        "default": schema.get("default"),
        "constraints": [text.format(_bound(schema[word])) for word, text in _BOUNDS.items() if word in schema],
    }
    if chars is None:
        return described
    described["constraints"] = [_text(each, chars) for each in described["constraints"]]
    if len(short_repr(described["default"], chars)) > chars:
        described["default"] = short_repr(described["default"], chars)
    return {name: value for name, value in described.items() if value not in ("", None, [])}


def _text(text: str, chars: int | None) -> str:
    return text if chars is None else shortened(" ".join(text.split()), chars)


def _has_fields(form: Json) -> bool:
    """Whether an example is an object, or a list of objects."""
    return isinstance(form, dict) or (isinstance(form, list) and any(map(_has_fields, form)))


def _bound(value: Json) -> str:
    return value[:_BOUND_CHARS] if isinstance(value, str) else short_repr(value, _BOUND_CHARS)

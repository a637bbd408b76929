"""The calls that the gateway answers itself: look-ups in a catalog's documents, and the answer of a completed
task.

Operations are found by words, their beginnings and their n-grams. A look-up fits what an agent reads: pages,
the likeliest first, each with the call of the next.
"""

import asyncio
import hashlib
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary

import msgspec

from app.apis.catalog import App, Catalog, Operation, Parameter
from app.apis.documents.schemas import short_repr
from app.apis.listing import (
    KIND_OF,
    LEFT_OUT,
    OperationQuery,
    SignatureWords,
    map_values,
    page_of_signatures,
    read_query,
    type_name,
    values_form,
)
from app.apis.naming import is_beginning, nearest, singular, split_words
from app.base.errors import HostError
from app.base.text import shortened
from app.base.values import Json

_WEIGHTS: Mapping[str, float] = {
    "name": 4.0,
    "app": 2.0,
    "summary": 3.0,
    "path": 2.0,
    "tags": 1.0,
    "description": 0.7,
}
_FIELD_CHARS = {"description": 400}
_TEXT_CHARS = 2_000  # of any other field
_INDEXED_CHARS = 4_000_000  # of an app
_SATURATION = 3.0  # weight at which a word counts half of what it can
_PREFIX_WORTH = 0.7  # of a word that begins as another does: repo, repository
_SIMILAR = 0.6  # share of n-grams that a misspelled word has in common
_SIMILAR_WORTH = 0.5
_SAME_KIND, _OTHER_KIND = 1.4, 0.55
_AS_MANY, _NOT_AS_MANY = 1.15, 0.9
_COVERED = 0.7  # how much of the worth depends on whether the query names all that the name does
_ACTING = {"change", "start", ""}
_OF_METHOD = {"GET": "read", "HEAD": "read", "QUERY": "read", "DELETE": "remove", "PUT": "change"}
_INDEXES: WeakKeyDictionary[App, "OperationIndex"] = WeakKeyDictionary()

NOTE = 160  # characters, of the remark that there is more
SHORT = 80  # characters of a description, where all do not fit
_LEAST = 40  # characters of what an object has within it
MORE = "..."

_SHAPE_DEPTH = 5
_SHAPE_FIELDS = 5_000
_BRANCHES = 20  # of one schema whose fields are shown
_SHOWN = 2_000  # parameters of one operation
_BOUND_CHARS = 4_000  # of one constraint
_FOUND = 30
_SUGGESTED = 3
_RANKED = 300  # operations, by which apps are ranked

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

MAX_ANSWER_BYTES = 1_000_000  # as JSON

_LEAST_ROOM = 300  # characters of a look-up, however many a turn makes
_READ_CHARS = 10_000  # of an argument
_ROOMS = 1_000  # look-ups whose next pages go on where the first ended


class OperationIndex:
    """Made once for an app. A search takes time by the number of operations that share a word with the query."""

    def __init__(self, app: App) -> None:
        self._operations = list(app.operations.values())
        self._postings: defaultdict[str, dict[int, float]] = defaultdict(dict)
        self._named: list[frozenset[str]] = []
        self._verbs: list[str] = []
        self._left = _INDEXED_CHARS
        self._kinds: list[str] = []
        for number, operation in enumerate(self._operations):
            self._add(number, operation)
        self._grams = {word: _ngrams(word) for word in self._postings}

    def search(self, query: OperationQuery) -> Iterator[tuple[float, Operation]]:
        """Operations that share a word with the query, in the order of the document, with their worth."""
        worth: defaultdict[int, float] = defaultdict(float)
        matched: defaultdict[int, set[str]] = defaultdict(set)
        for term, meant in query.terms.items():
            best: dict[int, float] = {}
            for word, share in self._matching(term):
                most = meant * share * math.log(1 + len(self._operations) / len(self._postings[word]))
                for number, weight in self._postings[word].items():
                    best[number] = max(best.get(number, 0.0), most * weight / (weight + _SATURATION))
                    matched[number].add(word)
            for number, each in best.items():
                worth[number] += each
        for number in sorted(worth):
            yield worth[number] * self._fit(number, matched[number], query), self._operations[number]

    def _add(self, number: int, operation: Operation) -> None:
        for field, weight in _WEIGHTS.items():
            text = " ".join(operation.tags) if field == "tags" else getattr(operation, field)
            text = text[: min(self._left, _FIELD_CHARS.get(field, _TEXT_CHARS))]
            self._left -= len(text)
            for word in set(map(singular, split_words(text))):
                posting = self._postings[word]
                posting[number] = posting.get(number, 0.0) + weight
        verb, *named = operation.name.split("_")
        kind = KIND_OF.get(verb) or _OF_METHOD.get(operation.method.replace("PATCH", "PUT"), "")
        self._verbs.append(verb)
        self._kinds.append("count" if "count" in (verb, *named) else kind)
        self._named.append(frozenset(map(singular, named)))

    def _matching(self, term: str) -> Iterator[tuple[str, float]]:
        """Words of the app that mean a term of a query, and how much of it they are worth."""
        if term in self._postings:
            yield term, 1.0
        grams, alike = _ngrams(term), False
        for word in self._postings:
            if is_beginning(word, term):
                alike = True
                yield word, _PREFIX_WORTH
        if term in self._postings or alike:
            return
        for word, known in self._grams.items():
            if 2 * len(grams & known) >= _SIMILAR * (len(grams) + len(known)):
                yield word, _SIMILAR_WORTH

    def _fit(self, number: int, matched: set[str], query: OperationQuery) -> float:
        """How well the rest of the operation fits: its verb, whether it returns many, what else its name says."""
        kind, named = self._kinds[number], self._named[number]
        fit = _fit_of_kind(kind, query.kind) if self._verbs[number] != query.verb else _SAME_KIND
        if kind == "read":
            fit *= _AS_MANY if query.many == _is_many(self._operations[number]) else _NOT_AS_MANY
        covered = len(named & matched) / len(named) if named else 1.0
        return fit * (1 - _COVERED + _COVERED * covered)


def _fit_of_kind(kind: str, wanted: str) -> float:
    """A verb of no kind, as in "comment on an issue", mostly makes something."""
    if not wanted:
        return 1.0
    if wanted == "act":
        return _SAME_KIND if kind == "create" else 1.0 if kind in _ACTING else _OTHER_KIND
    return _SAME_KIND if kind == wanted else _OTHER_KIND


def _is_many(operation: Operation) -> bool:
    verb, *named = operation.name.split("_")
    return verb == "list" or "items" in operation.returns or any(singular(word) != word for word in named[-1:])


def _ngrams(word: str) -> frozenset[str]:
    padded = f" {word} "
    return frozenset(padded[start : start + 3] for start in range(len(padded) - 2))


def index_of(app: App) -> OperationIndex:
    """Made at the first search, and kept as long as the app is."""
    if app not in _INDEXES:
        _INDEXES[app] = OperationIndex(app)
    return _INDEXES[app]


def ranked(indexes: Iterable[OperationIndex], query: OperationQuery, limit: int) -> list[Operation]:
    """The best of several apps, the best first."""
    found = [each for index in indexes for each in index.search(query)]
    return [operation for _, operation in sorted(found, key=lambda each: -each[0])[:limit]]


class Room(NamedTuple):
    """The characters that one look-up may take, and the instruction of the task that it is made for."""

    chars: int = 8_000
    instruction: str = ""


def likeliest(app: App, instruction: str) -> list[Operation]:
    """All operations of an app, first those that the words of a task speak of."""
    found = sorted(index_of(app).search(read_query(instruction)), key=lambda each: -each[0])
    first = dict.fromkeys(operation for _, operation in found)
    return list(first | dict.fromkeys(app.operations.values()))


def page_of_entries(
    entries: Sequence[dict[str, Json]], room: Room, page: int, call: str, sort: Callable[[], Sequence[Any]]
) -> list[Json]:
    """All entries if they fit, or else one page of them in the order of `sort`, with shorter descriptions.

    The last entry of a page says how many more there are, and the call that shows them.
    """
    if page == 1 and len(repr(entries)) <= room.chars:
        return list(entries)
    left = [{**each, "description": shortened(str(each["description"]), SHORT)} for each in sort()]
    sizes = [len(repr(each)) + 2 for each in left]
    start = end = 0
    for _ in range(min(page, len(left) + 1)):  # one after the last is empty
        start, end = end, end + max(1, how_many_fit(sizes[end:], room.chars - NOTE))
    shown: list[Json] = [*left[start:end]]
    if end < len(left):
        blank = dict.fromkeys(left[0], MORE)
        shown.append({**blank, "description": f"{len(left) - end} more: {next_page(call, page)}"})
    return shown


def next_page(call: str, page: int) -> str:
    """
    >>> next_page("search('mail')", 1)
    "apis.api_docs.search('mail', page=2)"
    """
    return f"apis.api_docs.{call.removesuffix(')')}, page={page + 1})".replace("(, ", "(")


def fitted(form: Json, chars: int, rank: Callable[[str], Any]) -> Json:
    """As much of the form as fits, at least something. Objects that lack fields say how many.

    >>> fitted({"id": "integer", "rows": [{"a": "string", "b": "string"}]}, 40, len)
    {'id': 'integer', '...': '1 more'}
    """
    if not form or len(repr(form)) <= chars:
        return form
    if isinstance(form, list):
        return [fitted(form[0], chars - 2, rank)]
    if not isinstance(form, dict):
        return shortened(str(form), max(chars, _LEAST))
    names = sorted(form, key=rank)
    sizes = {name: len(repr(form[name])) for name in names}
    names_alone = [len(repr(name)) + 4 for name in names]
    least = [alone + min(sizes[name], _LEAST) for alone, name in zip(names_alone, names, strict=True)]
    count = max(1, how_many_fit(least, chars - len("'...': '9999 more'")))
    left = chars - sum(names_alone[:count])
    chosen: dict[str, Json] = {}
    for number, name in enumerate(sorted(names[:count], key=lambda name: sizes[name])):
        chosen[name] = fitted(form[name], left // (count - number), rank)
        left -= len(repr(chosen[name]))
    shown = {name: chosen[name] for name in form if name in chosen}
    return shown if count == len(form) else {**shown, MORE: f"{len(form) - count} more"}


def rest_of(form: Json, shown: Json) -> Json:
    """What the form has besides what is shown; None if that is all."""
    if isinstance(form, list):
        left = rest_of(form[0], shown[0]) if isinstance(shown, list) else None
        return None if left is None else [left]
    if not isinstance(form, dict) or form == shown:
        return None
    parts = {name: rest_of(each, shown[name]) if name in shown else each for name, each in form.items()}
    return {name: each for name, each in parts.items() if each is not None} or None


def how_many_fit(sizes: Sequence[int], chars: int) -> int:
    """How many of the first take no more than `chars`."""
    for count, size in enumerate(sizes):
        chars -= size
        if chars < 0:
            return count
    return len(sizes)


_ROOM = Room()


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
        fields = _fields_of(schema)
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


def _fields_of(schema: dict[str, Json]) -> dict[str, Json]:
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


_LOOK_UPS: Final[dict[str, Callable[..., Json]]] = {
    "show_app_descriptions": show_app_descriptions,
    "show_api_descriptions": show_api_descriptions,
    "show_api_doc": show_api_doc,
    "show_signatures": show_signatures,
    "search": search,
}


class LookUps:
    """The look-ups of one task. Those of one turn share `chars`: what that turn is shown of all of them."""

    def __init__(self, catalog: Catalog, instruction: str) -> None:
        self.chars = Room().chars
        self._catalog = catalog
        self._instruction = instruction
        self._turn = -1
        self._left = 0
        # that the first page of a look-up had: the others begin where it ended
        self._rooms = dict[bytes, Room]()

    async def answer(self, operation: Operation, arguments: Mapping[str, Json], turn: int) -> Json:
        """Computed in a thread: in a large document a look-up takes a second, which other tasks do not wait for.
        Raises HostError for what the catalog lacks.
        """
        if turn != self._turn:
            self._turn, self._left = turn, self.chars
        room = Room(max(self._left, _LEAST_ROOM), self._instruction)
        read = {name: each[:_READ_CHARS] if isinstance(each, str) else each for name, each in arguments.items()}
        asked = _digest(operation, read)
        if read.get("page", 1) == 1:
            self._rooms.pop(asked, None)
            self._rooms[asked] = room  # as one of the latest
            if len(self._rooms) > _ROOMS:
                del self._rooms[next(iter(self._rooms))]
        look_up = partial(_LOOK_UPS[operation.name], self._catalog, **read)
        found = await asyncio.to_thread(look_up, room=self._rooms.get(asked, room))
        self._left -= len(found if isinstance(found, str) else repr(found)) + 1
        return found


def _digest(operation: Operation, arguments: Mapping[str, Json]) -> bytes:
    """Identify a look-up, whatever page of it."""
    exact = repr((operation.name, sorted((name, each) for name, each in arguments.items() if name != "page")))
    return hashlib.sha256(exact.encode("utf-8", "surrogatepass")).digest()


def checked_answer(answer: Json) -> Json:
    """Raises HostError if an answer is too large to be stored, shown and checked."""
    size = len(msgspec.json.encode(answer))
    if size > MAX_ANSWER_BYTES:
        raise HostError(
            "ValueError",
            f"the answer takes {size:,} bytes as JSON, at most {MAX_ANSWER_BYTES:,} are allowed. "
            "The task goes on: complete it with a shorter answer",
        )
    return answer

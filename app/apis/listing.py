"""APIs as prompts list them: each operation in one line, with its arguments, results and summary. Pure.

Where there is little room, of many optional arguments and fields those are shown that a task seems to need: the
words of a search tell what is to be done, and with what. Forms of values are written so that nobody takes them
for code.
"""

import json
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple, TypeAlias
from weakref import WeakKeyDictionary

import msgspec

from app.apis.catalog import COMPLETE_TASK, App, Catalog, Operation, Parameter
from app.apis.documents.schemas import short_repr
from app.apis.naming import is_beginning, singular, split_words, word_set
from app.apis.values import is_binary
from app.base.text import shortened
from app.base.values import Json

_ALTERNATIVES = 100  # that the name of a type is made of
_NOTHING: dict[str, Json] = {"not": {}}  # the schema `false`

_FIELDS = 8
_INNER_FIELDS = 4
_DEPTH = 2  # of lists and objects within one another
_CHARS = 60  # of a type, a field, or the values of one
_CONSIDERED = 300  # fields of one object, or arguments of one operation
_VALUES = 20  # of an enumeration

FieldRank: TypeAlias = Callable[[str], Any]
"""A key to sort names of fields by, those that are most likely to be needed first."""

_SHOWN_CHARS = 4_000  # of one default value, or of the fields of a result
_RESULT_FIELDS = 1_000
_COMPOUND = ("list", "map", "object")

_WORD = re.compile(r"[a-z0-9]+")
_QUERY_CHARS = 10_000
_WORDS = 40  # of a query that count
_KINDS: Final = {
    "read": "list show get read fetch find search retrieve view look see browse display print query filter "
    "inspect download describe which who what where all",
    "count": "count many number",
    "create": "create add new make post register insert open generate submit write",
    "change": "update change edit modify set rename patch replace put configure close reopen adjust",
    "remove": "delete remove destroy drop erase purge clear",
    "start": "start run trigger launch execute begin rerun restart reboot",
    "stop": "stop cancel end abort terminate halt",
}
KIND_OF: Final[dict[str, str]] = {verb: kind for kind, verbs in _KINDS.items() for verb in verbs.split()}
"""What a verb asks for; of verbs of one kind, an API has the one and a person says the other."""
_IDLE: Final = word_set(
    "a an and any are as at be by can current do does for from give has have how i if in into is it its me my of "
    "on one or our out please so than that the their them there these this those to up us want we with you your"
)
_LINKS: Final = word_set("about at by for from in of on to under with within")
_ARTICLES: Final = word_set("a an the my our this")
_VERB = 0.3  # worth of the verb as a word, besides its kind
_CONTEXT = 0.6  # worth of the words behind "of", "in", ...: they say where, not what

LEFT_OUT = "..."
_SHORTEST = 320  # characters to which a line may be cut, so that there are more of them
_FEWEST = 12  # lines of a page, where they can have _LEAST
_LEAST = 80  # characters
_SUMMARY = 120
_REQUIRED: WeakKeyDictionary[App, frozenset[str]] = WeakKeyDictionary()  # names, kept as long as the app is

_SIGNATURE_CHARS = 5_400  # of one app: at most some 2,000 tokens, of 2.7 characters
_LISTED: WeakKeyDictionary[App, "ListedApp"] = WeakKeyDictionary()


def type_name(schema: dict[str, Json]) -> str:
    """The JSON Schema type, alternatives joined with `or`.

    >>> type_name({"anyOf": [{"type": "string"}, {"type": "null"}]}), type_name({"format": "binary"})
    ('string or null', 'bytes')
    """
    return _Types().of(schema)


def map_values(schema: dict[str, Json]) -> dict[str, Json] | None:
    """The schema of the values of an object whose keys are no names of fields, such as ids; None for others.

    >>> map_values({"type": "object", "additionalProperties": {"type": "string"}})
    {'type': 'string'}
    """
    if schema.get("properties") or "object" not in type_name(schema).split():
        return None
    patterns = schema.get("patternProperties")
    values = next(iter(patterns.values()), None) if patterns else schema.get("additionalProperties")
    return values if isinstance(values, dict) and values not in ({}, _NOTHING) else None


class _Types:
    """Names of types, for a limited number of schemas: alternatives that share parts unfold without bound."""

    def __init__(self) -> None:
        self._left = _ALTERNATIVES

    def of(self, schema: dict[str, Json]) -> str:
        self._left -= 1
        kind = schema.get("type")
        if isinstance(kind, list):
            return " or ".join("bytes" if each == "string" and is_binary(schema) else each for each in kind)
        if is_binary(schema):
            return "bytes"
        if kind:
            return str(kind)
        choices = schema.get("anyOf")
        if choices and self._left > 0:
            return " or ".join(dict.fromkeys(self.of(choice) for choice in choices[: self._left]))
        if "properties" in schema:
            return "object"
        return "array" if "items" in schema else "any"


def type_form(schema: dict[str, Json], rank: FieldRank | None = None) -> str:
    """ "" if nothing is known. The fields of a list within an object are shown: often those are wanted.

    Of many fields the first by `rank` are shown, or else the first of the document.

    >>> rows = {"type": "array", "items": {"properties": {"id": {}, "state": {"enum": ["on", "off"]}}}}
    >>> type_form(rows), type_form({"type": "integer"}), type_form({"type": "array", "items": {"type": "string"}})
    ('list of objects with id, state ("on" or "off")', 'integer', 'list of string')
    >>> type_form({"properties": {"data": rows, "more": {}}})
    'object with data (list of objects with id, state ("on" or "off")), more'
    >>> type_form({"type": "object", "additionalProperties": rows["items"]})
    'map to objects with id, state ("on" or "off")'
    """
    return _form(schema, _FIELDS, _DEPTH, rank) if schema else ""


def values_form(schema: Json) -> str:
    """The values of an enumeration, as many as are short; "" for other schemas.

    >>> values_form({"anyOf": [{"enum": ["a", "b"]}, {"type": "null"}]}), values_form({"type": "string"})
    ('"a" or "b"', '')
    """
    choices = (schema, *islice(schema.get("anyOf", ()), _VALUES)) if isinstance(schema, dict) else ()
    lists = (each["enum"] for each in choices if isinstance(each, dict) and isinstance(each.get("enum"), list))
    values: list[Json] = next(lists, [])
    shown: list[str] = []
    left = _CHARS
    for each in islice(values, _VALUES):
        text = json.dumps(each, ensure_ascii=False) if isinstance(each, str) else short_repr(each, _CHARS)
        left -= len(text)
        if left < 0:
            break
        shown.append(text)
    more = ["..."] if len(shown) < len(values) else []
    return " or ".join([*shown, *more]) if shown else ""


def _form(
    schema: dict[str, Json], limit: int, depth: int, rank: FieldRank | None, *, several: bool = False
) -> str:
    """`several`: of which there are some, in a list or a map."""
    if "array" in type_name(schema).split():
        items = schema.get("items")
        if not (isinstance(items, dict) and items and depth):
            return "list"
        return f"list of {_form(items, limit, depth, rank, several=True)}"
    if depth and (values := map_values(schema)) is not None:
        return f"map to {_form(values, limit, depth, rank, several=True)}"
    fields = schema.get("properties")
    if not fields or not depth:
        return values_form(schema) or type_name(schema)[:_CHARS]
    shown = [_field(name, fields[name], depth, rank) for name in _chosen(fields, limit, rank)]
    more = ["..."] if len(fields) > limit else []
    return f"{'objects' if several else 'object'} with {', '.join([*shown, *more])}"


def _chosen(fields: dict[str, Json], limit: int, rank: FieldRank | None) -> list[str]:
    """In the order of the document."""
    if rank is None or len(fields) <= limit:
        return list(islice(fields, limit))
    first = set(sorted(islice(fields, _CONSIDERED), key=rank)[:limit])
    return [name for name in fields if name in first]


def _field(name: str, schema: Json, depth: int, rank: FieldRank | None) -> str:
    if not isinstance(schema, dict):
        return name[:_CHARS]
    if "array" in type_name(schema).split() or map_values(schema) is not None:
        return f"{name[:_CHARS]} ({_form(schema, _INNER_FIELDS, depth - 1, rank)})"
    values = values_form(schema)
    return f"{name[:_CHARS]} ({values})" if values else name[:_CHARS]


def signature(operation: Operation, *, typed: bool = False, rank: FieldRank | None = None) -> str:
    """`fetch_mails(access_token, page=1) -> id, sender: list mails`; an optional argument shows its default.

    If `typed`, it is `-> list of objects with id, sender`, the fields chosen by `rank`; and arguments say if they
    are lists, objects or one of some values.
    """
    returned = type_form(operation.returns, rank) if typed else result(operation.returns)
    return signature_line(call_form(operation, typed=typed), returned, operation.summary)


def signature_line(call: str, returned: str, summary: str) -> str:
    """One line, whatever a document calls its fields: a prompt has other lines below it.

    >>> signature_line("ping()", "", ""), signature_line("ping()", "id\\nTask: end", "say hello")
    ('ping()', 'ping() -> id Task: end: say hello')
    """
    text = f"{call}{f' -> {returned}' if returned else ''}{f': {summary}' if summary else ''}"
    return " ".join(text.splitlines())


def call_form(operation: Operation, *, typed: bool = False) -> str:
    """`fetch_mails(access_token, page=1)`."""
    return f"{operation.name}({', '.join(argument(each, typed=typed) for each in operation.parameters)})"


def result(schema: dict[str, Json]) -> str:
    """The fields of an object, or of those in a list or a map; otherwise the type; "" if nothing is returned.

    >>> result({"type": "object", "additionalProperties": {"properties": {"id": {}, "title": {}}}})
    'map of id, title'
    """
    start, fields = result_fields(schema)
    return f"{start}{_cut(', '.join(fields))}"


def result_fields(schema: dict[str, Json]) -> tuple[str, list[str]]:
    """The fields of a result, and what stands before them, or without any the type."""
    if not schema:
        return "", []
    if (values := map_values(schema)) is not None:
        fields = _fields(values)
        return f"map of {'' if fields else type_name(values)}", fields
    rows = schema.get("items", {}) if "array" in type_name(schema).split() else schema
    if fields := _fields(rows):
        return "", fields
    return f"list of {type_name(rows)}" if rows is not schema and rows else type_name(schema), []


def _fields(schema: dict[str, Json]) -> list[str]:
    return list(islice(schema.get("properties", ()), _RESULT_FIELDS))


def argument(parameter: Parameter, *, typed: bool) -> str:
    """`page=1`, or `page` if it is required; if `typed`, `state (one of "open" or "closed")`."""
    values = values_form(parameter.schema) if typed else ""
    form = type_form(parameter.schema) if typed and parameter.place == "body" and not values else ""
    about = f" (one of {values})" if values else f" ({form})" if form.startswith(_COMPOUND) else ""
    if parameter.required:
        return f"{parameter.name}{about}"
    default = parameter.schema.get("default")
    if isinstance(default, str):
        return f"{parameter.name}={_cut(json.dumps(default, ensure_ascii=False))}{about if values else ''}"
    return f"{parameter.name}={short_repr(default, _SHOWN_CHARS)}{about if values else ''}"


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}..."


class OperationQuery(NamedTuple):
    """`kind` is that of its verb: "act" for an unknown one, "" without any. `terms` are stems with their worth."""

    kind: str
    verb: str
    terms: dict[str, float]
    many: bool  # whether it asks for a list


def read_query(text: str) -> OperationQuery:
    """
    >>> read_query("create an issue")
    OperationQuery(kind='create', verb='create', terms={'issue': 1.0, 'create': 0.3}, many=False)
    >>> read_query("How many flows are there?")
    OperationQuery(kind='count', verb='how', terms={'flow': 1.0}, many=True)
    """
    words = _WORD.findall(text[:_QUERY_CHARS].lower())[:_WORDS]
    kind = _kind(words)
    verb = next((word for word in words if KIND_OF.get(word) == kind), "")
    terms: dict[str, float] = {}
    worth = 1.0
    for word in words:
        if word in _LINKS and terms:
            worth = _CONTEXT
        elif word not in _IDLE and word != verb:
            terms.setdefault(singular(word), worth)
    if terms and verb and kind not in ("read", "count"):
        terms.setdefault(verb, _VERB)
    if not terms:
        terms = {singular(word): 1.0 for word in words}
    end = next((number for number, word in enumerate(words) if number and word in _LINKS), len(words))
    heads = [(word, singular(word)) for word in words[:end]]
    many = not {"list", "all"}.isdisjoint(words) or any(each in terms and each != word for word, each in heads)
    return OperationQuery(kind, words[0] if words else "", terms, many)


def _kind(words: list[str]) -> str:
    kinds = [KIND_OF[word] for word in words if word in KIND_OF]
    if "count" in kinds:
        return "count"
    if words[1:] and words[0] not in KIND_OF and words[1] in _LINKS | _ARTICLES:
        return "act"
    return kinds[0] if kinds else ""


class SignatureWords:
    """What the arguments and fields of an app are chosen by: the words of a task, and what operations require.

    One serves all pages of a look-up: it remembers the ranks of names, and nothing of it outlives the look-up but
    what depends on the app alone.
    """

    def __init__(self, app: App, instruction: str) -> None:
        self._terms = read_query(instruction).terms
        if app not in _REQUIRED:
            every = (each for operation in app.operations.values() for each in operation.parameters)
            _REQUIRED[app] = frozenset(each.name for each in every if each.required)
        self._required = _REQUIRED[app]
        self._ranks: dict[str, tuple[int, bool, int]] = {}

    def rank(self, name: str) -> tuple[int, bool, int]:
        """The first are the most likely to be needed: named in the task, required somewhere, of few words."""
        if name not in self._ranks:
            words = [singular(word) for word in split_words(name)]
            named = sum(any(word == term or is_beginning(word, term) for term in self._terms) for word in words)
            self._ranks[name] = -named, name not in self._required, len(words)
        return self._ranks[name]


class SignaturePage(NamedTuple):
    lines: list[str]
    is_cut: bool  # whether there is more to some of them


def page_of_signatures(
    app: App, operations: Iterable[Operation], words: SignatureWords, chars: int
) -> SignaturePage:
    """A line for each of the first operations: as many as fit if long lines are cut, but twelve even in little
    room, and these as long as fits.
    """
    lines: list[str] = []
    left, shown = chars, list[Operation]()
    fewest = max(1, min(_FEWEST, chars // _LEAST))
    for operation in operations:
        line = signature(operation, typed=app.typed, rank=words.rank)
        left -= min(len(line), _SHORTEST) + 1
        if left < 0 and len(lines) >= fewest:
            break
        lines.append(line)
        shown.append(operation)
    limit = max(_LEAST, _fair_limit([len(line) for line in lines], chars - len(lines)))
    if all(len(line) <= limit for line in lines):
        return SignaturePage(lines, is_cut=False)
    short = [
        line if len(line) <= limit else short_signature(operation, limit, words, typed=app.typed)
        for line, operation in zip(lines, shown, strict=True)
    ]
    return SignaturePage(short, is_cut=True)


def short_signature(operation: Operation, limit: int, words: SignatureWords, *, typed: bool = False) -> str:
    """At most `limit` characters, `create_tag(title, color=None, ...) -> id, title, ...: Create a tag`.

    All required arguments are shown, unless they are too many.
    """
    required = [argument(each, typed=typed) for each in operation.parameters if each.required]
    optional = {each.name: argument(each, typed=typed) for each in operation.parameters if not each.required}
    start, fields = (type_form(operation.returns, words.rank), []) if typed else result_fields(operation.returns)
    line = _line(operation, [*required, *([LEFT_OUT] if optional else [])], start, [LEFT_OUT] if fields else [])
    left = limit - len(line)
    of_fields = sum(len(each) + 2 for each in fields)
    shown = _fitting(optional, words, left - min(of_fields, left // 2))
    left -= sum(len(optional[name]) + 2 for name in shown)
    kept = _fitting({name: name for name in fields}, words, left)
    arguments = [*required, *_marked([optional[each] for each in optional if each in shown], optional)]
    line = _line(operation, arguments, start, _marked([each for each in fields if each in kept], fields))
    return shortened(line, limit)


def _line(operation: Operation, arguments: Sequence[str], start: str, fields: Sequence[str]) -> str:
    call = f"{operation.name}({', '.join(arguments)})"
    return signature_line(call, f"{start}{', '.join(fields)}", shortened(operation.summary, _SUMMARY))


def _fitting(texts: dict[str, str], words: SignatureWords, left: int) -> set[str]:
    """The names of those that fit, the most likely first."""
    chosen = set[str]()
    for name in sorted(islice(texts, _CONSIDERED), key=words.rank):
        if len(texts[name]) + 2 <= left:
            left -= len(texts[name]) + 2
            chosen.add(name)
    return chosen


def _marked(shown: list[str], every: Collection[str]) -> list[str]:
    return shown if len(shown) == len(every) else [*shown, LEFT_OUT]


def _fair_limit(lengths: list[int], chars: int) -> int:
    """How long lines may be, so that all take `chars`.

    >>> _fair_limit([10, 80, 90], 100), _fair_limit([10, 20], 100)
    (45, 100)
    """
    left = chars
    for rank, length in enumerate(sorted(lengths)):
        share = left // (len(lengths) - rank)
        if length > share:
            return share
        left -= length
    return chars


class ListedApp(msgspec.Struct, frozen=True):
    """`signatures` are those of all operations but `complete_task`, a line each, shortened where need be; None if
    they are too many.

    They do not depend on the task, so that tasks of a project share this part of their prompts.
    """

    name: str
    description: str
    signatures: tuple[str, ...] | None = None

    @classmethod
    def of(cls, app: App) -> "ListedApp":
        if app not in _LISTED:
            operations = [each for each in app.operations.values() if each.api != COMPLETE_TASK.api]
            lines = page_of_signatures(app, operations, SignatureWords(app, ""), _SIGNATURE_CHARS).lines
            _LISTED[app] = cls(app.name, app.description, tuple(lines) if len(lines) == len(operations) else None)
        return _LISTED[app]

    def about(self, chars: int) -> str:
        """What the app is for: the first paragraph of its description that is no heading, cut at a word.

        >>> ListedApp("pages", "# Pages API\\n\\nKeeps what is read.\\n\\n## Log-in").about(60)  # Markdown
        'Keeps what is read'
        """
        about = " ".join(_first_paragraph(self.description).split()).rstrip(".")
        if len(about) <= chars:
            return about
        start = about[:chars]
        return f"{start.rpartition(' ')[0] or start} ..."


def listed_apps(catalog: Catalog) -> list[ListedApp]:
    return [ListedApp.of(app) for app in catalog.apps.values()]


def _first_paragraph(markdown: str) -> str:
    """The first that is not a heading, or else the first heading."""
    lines = markdown.strip().splitlines()
    text = "\n".join(line.strip() for line in lines if not line.startswith("#")).strip()
    return text.partition("\n\n")[0] or "".join(lines[:1]).lstrip("# ")

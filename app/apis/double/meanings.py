"""What names mean to records: the parameters of a list, and the verb of an action. Pure.

A parameter means what its name says of a field: `status`, `created_after`, `min_price`, `name__icontains`; a
search looks for words in all texts. What no name tells is in `ignored`. An action does what its verb and the
fields of the record tell: `close` sets the state to `closed`, `archive` the flag `archived`.
"""

import base64
import binascii
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final, Literal

import msgspec

from app.apis.catalog import Operation, Parameter
from app.apis.double.shapes import KEYS, Schema, fields_of, flat, kind_of
from app.apis.naming import plain, split_words, word_set
from app.apis.pagination import Paging, paging_of, size_of
from app.base.values import Json

Test = Literal["equal", "unequal", "contains", "words", "least", "most", "over", "under"]

_SEARCHES: Final = word_set("q query search searchquery searchterm keyword keywords term text s find")
_SORTS: Final = word_set("sort sortby sortfield orderby ordering sortkey sortcolumn order sorting")
_DIRECTIONS: Final = word_set("direction sortdirection sortorder orderdirection dir sortdir orderdir order")
_ENDINGS: Final[Mapping[str, Test]] = {
    "icontains": "contains", "contains": "contains", "like": "contains", "ilike": "contains", "gte": "least",
    "ge": "least", "since": "least", "from": "least", "min": "least", "start": "least", "lte": "most",
    "le": "most", "until": "most", "to": "most", "max": "most", "end": "most", "gt": "over", "after": "over",
    "lt": "under", "before": "under", "ne": "unequal", "not": "unequal", "eq": "equal", "in": "equal",
    "is": "equal", "exact": "equal",
}  # fmt: skip
_BEGINNINGS: Final[Mapping[str, Test]] = {
    "min": "least", "from": "least", "since": "least", "start": "least", "max": "most", "until": "most",
    "to": "most", "end": "most", "after": "over", "before": "under", "not": "unequal", "is": "equal",
    "filter": "equal", "by": "equal", "exclude": "unequal",
}  # fmt: skip
_TIMES: Final = ("created", "date", "timestamp", "time", "updated", "started", "start", "published", "modified")
_DEFAULT_SIZE: Final = 20
_LARGEST_SIZE: Final = 1_000
_CURSOR: Final = "after:"
_STATES: Final = ("state", "status", "phase", "stage", "condition")
_AFTER: Final[Mapping[str, tuple[str, ...]]] = {  # besides the participle
    "reopen": ("open", "opened", "reopened", "active", "new"), "open": ("open", "opened"),
    "start": ("running", "started", "active", "in_progress", "inprogress"),
    "stop": ("stopped", "inactive", "idle"), "resume": ("running", "active", "resumed", "started"),
    "run": ("running",), "pause": ("paused",), "complete": ("completed", "complete", "done", "finished"),
    "finish": ("finished", "done", "completed"), "cancel": ("cancelled", "canceled"),
    "enable": ("enabled", "active", "on"), "send": ("sent",), "disable": ("disabled", "inactive", "off"),
    "activate": ("active", "activated", "enabled"), "deactivate": ("inactive", "deactivated", "disabled"),
    "approve": ("approved", "accepted"), "reject": ("rejected", "declined", "denied"), "pay": ("paid",),
    "hide": ("hidden",), "read": ("read",), "restore": ("active", "restored", "open"),
    "unpublish": ("draft", "unpublished"), "submit": ("submitted", "pending"), "freeze": ("frozen",),
    "ship": ("shipped",), "suspend": ("suspended",), "void": ("void", "voided"),
}  # fmt: skip
_FLAGS: Final[Mapping[str, tuple[str, bool]]] = {
    "enable": ("enabled", True), "disable": ("enabled", False), "activate": ("active", True),
    "deactivate": ("active", False), "reopen": ("closed", False), "open": ("closed", False),
    "resume": ("paused", False), "restore": ("deleted", False), "show": ("hidden", False),
    "complete": ("completed", True), "read": ("read", True), "finish": ("finished", True),
    "favorite": ("favorite", True), "favourite": ("favourite", True), "like": ("liked", True),
    "follow": ("following", True), "subscribe": ("subscribed", True),
}  # fmt: skip
_DOUBLED: Final = ("pin", "stop", "ship", "star", "ban", "drop", "flag")
_SETTING: Final = {"assign", "rename", "move", "set", "update", "change", "edit", "transfer", "label", "priority"}


class Filter(msgspec.Struct, frozen=True):
    """Keeps the records that pass the test. `field` "" is every text, "()" the key of the record."""

    parameter: Parameter
    field: str
    test: Test


class ListQuery(msgspec.Struct, frozen=True):
    """`sort` names the field, perhaps with the direction; `direction` the direction alone."""

    filters: tuple[Filter, ...] = ()
    sort: Parameter | None = None
    direction: Parameter | None = None
    paging: Paging | None = None
    size: Parameter | None = None
    ignored: tuple[Parameter, ...] = ()
    fields: tuple[str, ...] = ()  # that can be sorted by


class Record(msgspec.Struct):
    """One record. `scope` are the keys of the records above it."""

    key: str
    scope: tuple[str, ...]
    fields: dict[str, Json]


class Page(msgspec.Struct, frozen=True):
    """The records of one page, of `total` ones on all pages."""

    rows: list[Record]
    size: int
    total: int
    following: Json = None  # the parameter of the next page; None on the last


def list_query(operation: Operation, item: Schema, key: str, parents: Sequence[str] = ()) -> ListQuery:
    """`parents` are the names of path parameters, which choose the records before the query does."""
    fields = fields_of(item)
    paging, size = paging_of(operation), size_of(operation)
    about_pages = {
        each.wire_name for each in (None if paging is None else paging.parameter, size) if each is not None
    }
    free = [
        each
        for each in operation.parameters
        if each.wire_name not in about_pages and each.place in ("query", "querystring", "body")
    ]
    sort = next((each for each in free if plain(each.wire_name) in _SORTS and not _is_direction(each)), None)
    direction = next((each for each in free if each is not sort and plain(each.wire_name) in _DIRECTIONS), None)
    filters: list[Filter] = []
    ignored: list[Parameter] = []
    for each in free:
        if each.wire_name in parents or each is sort or each is direction:
            continue
        found = _filter(each, fields, key)
        if found is None:
            ignored.append(each)
        else:
            filters.append(found)
    return ListQuery(tuple(filters), sort, direction, paging, size, tuple(ignored), tuple(fields))


def chosen(query: ListQuery, rows: Sequence[Record], given: Mapping[str, Json]) -> list[Record]:
    """The rows that pass the filters, in the order asked for. `given` are the parameters, by wire name."""
    kept = list(rows)
    for each in query.filters:
        value = given.get(each.parameter.wire_name)
        if value is not None and value != "":
            kept = [row for row in kept if _passes(each, row, value)]
    return _sorted(query, kept, given)


def page_of(query: ListQuery, rows: Sequence[Record], given: Mapping[str, Json]) -> Page:
    """The page asked for; all of the rows if the list has no pages."""
    asked = None if query.size is None else given.get(query.size.wire_name, query.size.schema.get("default"))
    most = _LARGEST_SIZE if query.size is None else query.size.schema.get("maximum", _LARGEST_SIZE)
    whole = query.paging is None and asked is None
    size = (
        len(rows) if whole else max(1, min(asked if isinstance(asked, int) and asked > 0 else _DEFAULT_SIZE, most))
    )
    first = 0 if query.paging is None else _first_row(query.paging, given, size, rows)
    found = list(rows[first : first + size])
    more = first + size < len(rows) and query.paging is not None
    following = _following(query.paging, first + size, size, found) if query.paging is not None and more else None
    return Page(found, size, len(rows), following)


def same(one: Json, other: Json) -> bool:
    """Whether a value is the one asked for, which may be written as a text.

    >>> same(7, "7"), same(True, "true"), same("Open", "open"), same(7, "8")
    (True, True, True, False)
    """
    return one == other or _text(one) == _text(other)


def _is_direction(parameter: Parameter) -> bool:
    choices = [str(each).lower() for each in flat(parameter.schema).get("enum", ())]
    return bool(choices) and set(choices) <= {"asc", "desc", "ascending", "descending", "1", "-1", "none"}


def _filter(parameter: Parameter, fields: Mapping[str, Schema], key: str) -> Filter | None:
    name = plain(parameter.wire_name)
    words = [each for each in split_words(parameter.wire_name) if each not in ("filter", "filters", "where")]
    own = "".join(words) or name
    if own in ("ids", f"{plain(key)}s", "id") or (own == plain(key) and key):
        return Filter(parameter, key or "()", "equal")
    if (field := _field(own, fields)) is not None:
        return Filter(parameter, field, "equal")
    if own in _SEARCHES:
        return Filter(parameter, "", "words")
    for tests, place, rest in ((_BEGINNINGS, 0, words[1:]), (_ENDINGS, -1, words[:-1])):
        test = tests.get(words[place]) if words else None
        if test is not None and (field := _compared("".join(rest), fields, test)) is not None:
            return Filter(parameter, field, test)
    return None


def _field(name: str, fields: Mapping[str, Schema]) -> str | None:
    """The field of this name, or of nearly this name: `project` for `project_id`, `active` for `is_active`."""
    by_name = {plain(each): each for each in reversed(list(fields)) if plain(each)}
    forms = (name, f"{name}id", name.removesuffix("id"), f"is{name}", name.removeprefix("is"))
    return next((by_name[each] for each in (*forms, name.removesuffix("s"), f"{name}s") if each in by_name), None)


def _compared(name: str, fields: Mapping[str, Schema], test: Test) -> str | None:
    """The field that a comparison is about. Without a name, or with one of a time, the time of the record."""
    found = next((each for each in fields if plain(each) in (name, f"{name}at", f"{name}on", f"{name}date")), None)
    if found is not None and name:
        return found
    if test in ("equal", "unequal", "contains") or name not in ("", "date", "time", "timestamp", "datetime"):
        return None
    formats = ("date-time", "date", "datetime", "timestamp")
    times = [each for each, schema in fields.items() if flat(schema).get("format") in formats]
    return next(
        (each for start in _TIMES for each in times if plain(each).startswith(start)), next(iter(times), None)
    )


def _passes(rule: Filter, row: Record, wanted: Json) -> bool:
    if rule.field == "":
        words = _text(wanted).split()
        told = " ".join(_texts(row.fields))
        return all(each in told for each in words)
    value = row.key if rule.field == "()" else row.fields.get(rule.field)
    if rule.test in ("equal", "unequal"):
        asked = wanted if isinstance(wanted, list) else _listed(wanted, value)
        values = [row.key] if rule.field in KEYS[:1] and value is None else [*_values(value)]
        return any(same(each, one) for each in values for one in asked) == (rule.test == "equal")
    if rule.test == "contains":
        return _text(wanted) in _text(value)
    found, bound = _rank(value), _rank(wanted)
    if found is None or bound is None:
        return False
    return {"least": found >= bound, "most": found <= bound, "over": found > bound, "under": found < bound}[
        rule.test
    ]


def _listed(wanted: Json, value: Json) -> list[Json]:
    """A text with commas may be several, unless the field has such a text."""
    several = isinstance(wanted, str) and "," in wanted and not (isinstance(value, str) and "," in value)
    return [each.strip() for each in str(wanted).split(",")] if several else [wanted]


def _values(value: Json) -> Iterator[Json]:
    """The value, what a list has, or the key and name of an object."""
    for each in value if isinstance(value, list) else [value]:
        if isinstance(each, Mapping):
            yield from (each[name] for name in KEYS if name in each)
        else:
            yield each


def _rank(value: Json) -> float | None:
    """A number, or an instant in seconds."""
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, int | float):
        return float(value)
    if isinstance(value, str) and re.fullmatch(r"-?\d{1,15}(\.\d{1,9})?", value):
        return float(value)
    try:
        found = datetime.fromisoformat(value) if isinstance(value, str) else None
    except ValueError:
        return None
    if found is None:
        return None
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


def _sorted(query: ListQuery, rows: list[Record], given: Mapping[str, Json]) -> list[Record]:
    asked = None if query.sort is None else given.get(query.sort.wire_name, query.sort.schema.get("default"))
    direction = None if query.direction is None else given.get(query.direction.wire_name)
    for name, descending in reversed(_orders(asked)):
        field = _field(plain(name), {each: {} for each in query.fields})
        if field is not None:
            down = descending or _text(direction) in ("desc", "descending", "-1")
            known = [row for row in rows if row.fields.get(field) is not None]
            known.sort(key=lambda row: _order(row.fields[field]), reverse=down)
            rows = known + [row for row in rows if row.fields.get(field) is None]
    return rows


def _orders(asked: Json) -> list[tuple[str, bool]]:
    """Names and whether they are descending, as in `-created`, `name:desc`, `name desc` or `name,-age`."""
    given = asked if isinstance(asked, list) else str(asked or "").split(",")
    found: list[tuple[str, bool]] = []
    for each in map(str, given):
        if plain(each) in ("asc", "desc") and found and not each.startswith("-"):  # as Spring writes it: name,desc
            found[-1] = (found[-1][0], plain(each) == "desc")
            continue
        name, _, direction = each.strip().lstrip("+-").replace(" ", ":").partition(":")
        ends = re.fullmatch(r"(\w+?)_(asc|desc)", name, re.IGNORECASE)
        if ends:
            name, direction = ends[1], ends[2]
        found.append((name, each.strip().startswith("-") or direction.lower() == "desc"))
    return found


def _order(value: Json) -> tuple[int, float, str]:
    rank = _rank(value)
    return (0, rank, "") if rank is not None else (1, 0.0, _text(value))


def _first_row(paging: Paging, given: Mapping[str, Json], size: int, rows: Sequence[Record]) -> int:
    value = given.get(paging.parameter.wire_name)
    if paging.by == "cursor":
        return _after(value, rows)
    number = value if isinstance(value, int) and not isinstance(value, bool) else paging.first
    place = (number - paging.first) * (size if paging.by == "page" else 1)
    return max(0, place)


def _following(paging: Paging, place: int, size: int, rows: Sequence[Record]) -> Json:
    if paging.by != "cursor":
        return paging.first + (place // size if paging.by == "page" else place)
    if kind_of(flat(paging.parameter.schema)) in ("integer", "number"):
        return place
    if plain(paging.parameter.wire_name) == "startingafter":
        return rows[-1].key
    return base64.urlsafe_b64encode(f"{_CURSOR}{place}".encode()).decode().rstrip("=")


def _after(value: Json, rows: Sequence[Record]) -> int:
    """The place behind a cursor, which is one of ours or a key; 0 for any other."""
    if isinstance(value, int) and not isinstance(value, bool):
        return max(0, value)
    text = _text(value)
    place = next((number + 1 for number, row in enumerate(rows) if text and text == row.key.lower()), 0)
    try:
        told = base64.urlsafe_b64decode(f"{value}{'=' * (-len(str(value)) % 4)}").decode()
    except (binascii.Error, ValueError):
        return place
    number = told.removeprefix(_CURSOR)
    return int(number) if told.startswith(_CURSOR) and number.isdecimal() and len(number) < 10 else place


def _texts(value: Json) -> Iterator[str]:
    if isinstance(value, Mapping):
        for each in value.values():
            yield from _texts(each)
    elif isinstance(value, list):
        for each in value:
            yield from _texts(each)
    elif isinstance(value, str):
        yield value.casefold()


def _text(value: Json) -> str:
    """As it is written in a query, without regard to case."""
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value).casefold()


class Effect(msgspec.Struct, frozen=True):
    """The fields that an action sets, and those that its body gives. `at` are times of the action."""

    sets: dict[str, Json] = {}
    given: frozenset[str] = frozenset()
    at: tuple[str, ...] = ()


def effect_of(
    words: Sequence[str], fields: Mapping[str, Schema], sent: Mapping[str, Schema], *, undone: bool = False
) -> Effect | None:
    """The effect of an action of these words on a record with these fields; None if it cannot be told.

    `undone`: the action is taken back, as DELETE does. `sent` are the fields of its body.

    >>> state = {"state": {"enum": ["open", "closed"]}, "is_locked": {"type": "boolean"}}
    >>> effect_of(["close"], state, {}).sets, effect_of(["lock"], state, {}, undone=True).sets
    ({'state': 'closed'}, {'is_locked': False})
    >>> effect_of(["sync"], state, {}) is None
    True
    """
    if not words:
        return None
    verb = words[0]
    given = frozenset(each for each in sent if each in fields)
    if verb.startswith("un") and len(verb) > 4:
        verb, undone = verb[2:], not undone
    sets, at = dict[str, Json](), tuple[str, ...]()
    if undone:
        sets = _flag(verb, fields, value=False) or (_state(words[0], fields) if words[0] != verb else {})
    else:
        sets = _state(verb, fields) or _flag(verb, fields, value=True)
        done = plain(participle(verb))
        at = tuple(each for each in fields if plain(each) in (f"{done}at", f"{done}on", f"{done}date"))
        at = tuple(each for each in at if kind_of(flat(fields[each])) == "string")
    if sets or at:
        return Effect(sets, given, at)
    named = [each for each in fields if set(split_words(each)) & set(words)]
    every_known = bool(given) and len(given) == len(sent)
    return Effect(given=given) if every_known and (set(named) & given or verb in _SETTING) else None


def participle(verb: str) -> str:
    """
    >>> [participle(each) for each in ("close", "lock", "pin", "verify", "archive", "send")]
    ['closed', 'locked', 'pinned', 'verified', 'archived', 'sended']
    """
    if verb.endswith("e"):
        return f"{verb}d"
    if verb.endswith("y") and verb[-2:-1] not in "aeiou":
        return f"{verb[:-1]}ied"
    return f"{verb}{verb[-1]}ed" if verb in _DOUBLED else f"{verb}ed"


def _state(verb: str, fields: Mapping[str, Schema]) -> dict[str, Json]:
    wanted = [plain(each) for each in (participle(verb), *_AFTER.get(verb, ()))]
    for name, schema in fields.items():
        if split_words(name)[-1:] and split_words(name)[-1] in _STATES:
            choices = {plain(str(each)): each for each in flat(schema).get("enum", ()) if isinstance(each, str)}
            if found := next((choices[each] for each in wanted if each in choices), None):
                return {name: found}
    return {}


def _flag(verb: str, fields: Mapping[str, Schema], *, value: bool) -> dict[str, Json]:
    name, own = _FLAGS.get(verb, (participle(verb), True))
    names = {name, f"is{name}", verb, f"is{verb}"}
    for each, schema in fields.items():
        if plain(each) in names and kind_of(flat(schema)) == "boolean":
            return {each: own == value}
    return {}

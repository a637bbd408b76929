"""One task: the records of its world are made to fit the form, and what the task wants of them is carried out by
the API's own operations on the double.

Values are easily got wrong: addresses with queries, quotes, other alphabets, long titles, numbers that look
like ids, and titles that share words.
"""

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Final, TypeVar

import msgspec

from app.apis.catalog import Operation
from app.apis.documents.protocols import encode
from app.apis.double import texts
from app.apis.double.meanings import Record
from app.apis.double.model import Collection, Link, Modelled
from app.apis.double.service import Answer, Double
from app.apis.double.shapes import Schema, field_in, fields_of, flat, kind_of, own_name, root_of, value_at
from app.apis.double.state import Part, State, linked, new_key, typed_key
from app.apis.double.values import Drawer, NoValueError
from app.apis.naming import singular, split_words, word_set
from app.apis.pagination import first_page, next_page
from app.base.errors import HostError
from app.base.values import Json
from trainer.practice.checks import Goal, Place, verdict
from trainer.practice.forms import ADDRESSES, Condition, Form, Reach, Test, Through, effect, is_address

_OWN_FORMS: Final = word_set(
    "email mail phone mobile author owner assignee reporter reviewer sender recipient customer first_name "
    "last_name full_name display_name username city country currency language locale timezone time_zone color "
    "version hostname slug"
)
"""Formats and ends of names whose texts have a form of their own: nobody's e-mail address is a title."""
_FOREIGN: Final = ("Überblick", "Café", "Größe", "Señal", "Žluťoučký", "Обзор", "报告", "Résumé", "Ærø")
_PATHS: Final = ("prices", "news", "docs/start.html", "a/b", "offers", "feed.xml")
_TRIES: Final = 8  # of another text
_TEXTS: Final = 3  # of a list, at most
_HOSTS: Final = (
    "shop.example.net", "docs.example.com", "news.example.net", "status.example.com", "blog.example.net",
    "data.example.com", "jobs.example.net",
)  # fmt: skip
_OPPOSITES: Final[Mapping[Test, Test]] = {"more": "less", "less": "more", "before": "after", "after": "before"}
_PAGES: Final = 40  # of a list that are read
_LEFT: Final = 3  # records that stay where some are taken away
_WORDS: Final = ("draft", "urgent", "2027", "copy", "annex", "café", "north")


def draw_value(schema: Schema, name: str, drawer: Drawer, rng: Random) -> Json:
    """A value that can be said in an instruction. Raises NoValueError."""
    inner, name = flat(schema), own_name(name)
    choices = [each for each in inner.get("enum", ()) if each is not None]
    if choices:
        return rng.choice(choices)
    if kind_of(inner) == "array" and kind_of(items := flat(inner.get("items") or {})) == "string":
        return _texts(inner, items, name, drawer, rng)
    if kind_of(inner) != "string" or inner.get("format") not in (None, "uri", "url") or "pattern" in inner:
        found = drawer.value(schema, name, f"value {rng.random()}")
        if found is None or found == "":
            raise NoValueError("its values are empty")
        return found
    return draw_text(schema, name, drawer, rng)


def _texts(schema: Schema, items: Schema, name: str, drawer: Drawer, rng: Random) -> list[str]:
    drawn = (draw_text(items, singular(name), drawer, rng) for _ in range(rng.randint(1, _TEXTS)))
    found = list(dict.fromkeys(drawn))
    if not drawer.fits(schema, found):
        raise NoValueError("its lists cannot be said")
    return found


def draw_text(schema: Schema, name: str, drawer: Drawer, rng: Random) -> str:
    """Raises NoValueError."""
    name = own_name(name)
    form, words = flat(schema).get("format"), split_words(name)
    is_address = form in ("uri", "url") or bool(set(words) & ADDRESSES)
    told = {form, *words[-1:], "_".join(words[-2:])} & _OWN_FORMS
    for _ in range(_TRIES):
        if told and not is_address:
            found = texts.text_of_format(str(form), rng) or texts.text_of_name(name, rng)
        else:
            found = _address(rng) if is_address else rng.choice(_FORMS)(rng)
        if drawer.fits(schema, found):
            return found
    drawn = drawer.value(schema, name, f"text {rng.random()}")
    if not isinstance(drawn, str) or not drawn.strip() or drawn != " ".join(drawn.split()):
        raise NoValueError("its texts cannot be said")
    return drawn


def like(text: str, rng: Random) -> str:
    """Another text that is easily taken for this one."""
    if "://" in text:
        return f"{text}&v=2" if "?" in text else f"{text}?v=2"
    if "@" in text:
        return text.replace("@", f"{rng.randint(2, 9)}@")
    first, *rest = text.split(" ")
    return rng.choice((f"{text} 2", f"{text} ({texts.word(rng)})", " ".join([first, texts.word(rng), *rest])))


def at_host(address: str, host: str) -> str:
    """The address at another host."""
    scheme, _, rest = address.partition("://")
    return f"{scheme if rest else 'https'}://{host}/{rest.partition('/')[2] or scheme}"


def _address(rng: Random) -> str:
    dated = f"?year={rng.randint(2024, 2029)}&x={rng.randint(1, 9)}"
    query = rng.choice((dated, f"?q={texts.word(rng)}", f"?page={rng.randint(2, 9)}", ""))
    return f"https://{texts.slug(rng)}.example.org/{rng.choice(_PATHS)}{query}"


def _long(rng: Random) -> str:
    first, second, year = texts.title(rng), texts.title(rng).lower(), rng.randint(2024, 2027)
    return f"{first} and {second}, as agreed with {texts.person(rng)} in {year}"


_FORMS: Final[tuple[Callable[[Random], str], ...]] = (
    texts.title,
    texts.title,
    texts.title,
    lambda rng: f'The "{texts.word(rng)}" {texts.word(rng)}',
    lambda rng: f"{texts.person(rng).split()[0]}'s {texts.word(rng)}",
    lambda rng: f"{rng.choice(_FOREIGN)} {texts.word(rng)}",
    lambda rng: str(rng.randint(2, 9_999)),
    lambda rng: f"{texts.title(rng)} {rng.randint(2, 40)}",
    lambda rng: f"{texts.word(rng).capitalize()} & {texts.word(rng)} (50%)",
    _long,
)


Values = dict[str, Json]
"""The details of one task, in the order of the program's parameters."""
V = TypeVar("V")


class UnfitError(Exception):
    """The records of a double cannot be made to fit a form, or an operation refuses what a task asks for."""


class Drawn(msgspec.Struct, frozen=True):
    """One task: its details, and what it wants of the records."""

    values: Values
    goal: Goal


def _sharing(state: State, other: State) -> State:
    """The state, with the other's records where they are the same: thousands of tasks have most in common."""
    for name, keyed in state.records.items():
        known = other.records.get(name, {})
        state.records[name] = {
            place: known[place] if known.get(place) == each else each for place, each in keyed.items()
        }
    return state


def parameters(form: Form, collection: Collection) -> list[str]:
    """The details in which the tasks of a form differ: keys above, `owner`, `key`, `where`, `new`, and the fields
    of a new record; and, though all have the same, where the records are.
    """
    found = [f"home{number}" for number in range(len(collection.home))]
    found += [f"above{number}" for number in range(len(collection.scopes) - 1)]
    found += ["owner"] if form.through is not None else []
    found += ["key"] if form.by in ("id", "text") and form.goal != "create" else []
    found += [name for name, each in form.conditions.items() if each.flag is None]
    found += ["but"] if form.but else []
    found += ["new"] if form.has_new else []
    return [*found, *form.fields] if form.goal == "create" else found


def draw_task(form: Form, every: Mapping[str, Reach], double: Double, rng: Random, index: int) -> Drawn:
    """Makes records of those of the double that fit the form. Raises UnfitError."""
    reach, begun = every[form.collection], double.state
    double.state = begun.copy()
    try:
        values = _Fit(form, every, double, rng, index).values()
    except NoValueError as error:
        raise UnfitError(str(error)) from error
    before = double.state.copy()
    carried = CarriedOut(form, reach, double, values)
    try:
        answer = carried.out()
        wanted = double.state
    finally:
        double.state = before
    goal = Goal(_sharing(before, begun), _sharing(wanted, begun), carried.asked, answer)
    if form.is_answered and answer in (None, "", []):
        raise UnfitError("there is nothing to answer")
    if not form.is_answered and verdict(reach.model, goal, before, None, completed=True).success:
        raise UnfitError("there is nothing to do")
    return Drawn({name: values[name] for name in parameters(form, reach.collection)}, goal)


def arguments(
    made: Modelled,
    operation: Operation,
    known: Mapping[str, V],
    fields: Mapping[str, V],
    nest: Callable[[Mapping[str, V]], V],
) -> dict[str, V]:
    """What to call an operation with, by Python name: `known` are its parameters by wire name, `fields` those of
    the record that it writes, as in `within`.
    """
    names = {(each.place == "body", each.wire_name): each.name for each in operation.parameters}
    found: dict[str, V] = {}
    for name, value in known.items():
        if (argument := names.get((False, name)) or names.get((True, name))) is not None:
            found[argument] = value
    keys = () if made.body is None or made.body.shape is None else made.body.shape.keys
    fields = _gathered(fields, nest)
    if fields and keys:
        fields = {keys[0]: nest(fields)}
    if fields and is_whole_body(operation):
        fields = {"body": nest(fields)}
    for name, value in fields.items():
        if (True, name) not in names:
            raise UnfitError(f"{operation.name} does not take {name}")
        found[names[True, name]] = value
    return found


def _gathered(fields: Mapping[str, V], nest: Callable[[Mapping[str, V]], V]) -> dict[str, V]:
    """The fields of a record, those of an object in it together."""
    found: dict[str, V] = {}
    for name, value in fields.items():
        root, _, inner = name.partition("/")
        if not inner:
            found[root] = value
        elif root not in found:
            own = {each.partition("/")[2]: one for each, one in fields.items() if each.startswith(f"{root}/")}
            found[root] = nest(own)
    return found


def pinned(made: Modelled) -> dict[str, Json]:
    """The path parameters that have one value, by wire name, as the operation takes them."""
    types = {each.wire_name: each.schema for each in made.operation.parameters}
    return {name: typed_key(types.get(name, {}), key) for name, key in made.pinned.items()}


def is_whole_body(operation: Operation) -> bool:
    """Whether the body is one argument, as that of which no fields are described."""
    return [each.wire_name for each in operation.parameters if each.place == "body"] == ["body"]


def chosen_records(form: Form, reach: Reach, state: State, values: Values, *, by: str = "") -> list[Record]:
    """The records that a task is about, the oldest first."""
    collection, how = reach.collection, by or form.by
    found = list(state.records[collection.name].values())
    if collection.scopes:
        scope = scope_of(form, reach, state, values)
        found = [each for each in found if each.scope == scope]
    elif form.is_of_owner and form.through is not None:
        owner = owner_of(form, state, values)
        found = [each for each in found if belongs(each.fields.get(form.through.field), owner, reach)]
    if how == "id":
        return [each for each in found if each.key == str(values["key"])]
    if how == "text":
        return [each for each in found if value_of(each, form.key) == values["key"]]
    if form.but:
        found = [each for each in found if value_of(each, form.but) != values.get("but")]
    return [
        each for each in found if all(meets(where, each, values, name) for name, where in form.conditions.items())
    ]


def value_of(record: Record, field: str) -> Json:
    """None where the record has no such field."""
    return field_in(record.fields, field)


def _with(fields: Mapping[str, Json], field: str, value: Json) -> dict[str, Json]:
    """The field of a record, or the object that it is in, once it has a value."""
    root, _, inner = field.partition("/")
    return {root: {**(fields.get(root) or {}), inner: value} if inner else value}


def scope_of(form: Form, reach: Reach, state: State, values: Values) -> tuple[str, ...]:
    """The keys of what is above the records."""
    outer = [str(values[f"above{number}"]) for number in range(len(reach.collection.scopes) - 1)]
    return (*outer, owner_of(form, state, values))


def owner_of(form: Form, state: State, values: Values) -> str:
    """The key of the record that others belong to."""
    through = form.through
    if through is None or not through.name:
        return str(values["owner"])
    records = state.records[through.collection].values()
    return next(each.key for each in records if value_of(each, through.name) == values["owner"])


def belongs(value: Json, key: str, reach: Reach) -> bool:
    """Whether a link names a record of this key."""
    if isinstance(value, list):
        return any(belongs(each, key, reach) for each in value)
    if isinstance(value, Mapping):
        names = {"id", *(each.key for each in reach.model.collections.values() if each.key)}
        return any(str(value[name]) == key for name in names if name in value)
    return value is not None and str(value) == key


def meets(where: Condition, record: Record, values: Values, name: str = "where") -> bool:
    value = value_of(record, where.field)
    wanted = values.get(name) if where.flag is None else where.flag
    if value is None:
        return False
    match where.test:
        case "has":
            return str(wanted).lower() in str(value).lower()
        case "more":
            return bool(value > wanted)
        case "less":
            return bool(value < wanted)
        case "before":
            return str(value)[:10] < str(wanted)
        case "after":
            return str(value)[:10] > str(wanted)
    return bool(value == wanted)


class CarriedOut:
    """Does what a task asks on a double. `asked` are the fields that it decides."""

    def __init__(self, form: Form, reach: Reach, double: Double, values: Values) -> None:
        self._form, self._reach, self._double, self._values = form, reach, double, values
        self.asked: dict[Place, frozenset[str]] = {}

    def out(self) -> Json:
        """The answer. Raises UnfitError for what the API refuses."""
        form = self._form
        if form.by == "only":
            return self._alone()
        chosen = [] if form.goal == "create" else self._chosen()
        match form.goal:
            case "count":
                return len(chosen)
            case "list":
                return [value for each in chosen if (value := value_of(each, form.field)) is not None]
            case "sum":
                return sum(value_of(each, form.field) or 0 for each in chosen)
            case "most" | "least":
                return self._extreme(chosen)
            case "read":
                return value_of(self._only(chosen), form.field)
            case "create":
                self._create({field: self._values[field] for field in form.fields})
                return None
            case "ensure":
                if not chosen:
                    self._create({form.key: self._values["key"]})
                return len(self._chosen("all"))
        for record in chosen if form.by in ("all", "where") else [self._only(chosen)]:
            self._write(record)
        if form.goal != "check":
            return None
        value = self._new
        return sum(value_of(each, form.field) == value for each in self._chosen("all"))

    def _alone(self) -> Json:
        """What there is one of is read, or changed."""
        form, made = self._form, self._reach.write
        shown = alone(self._reach, self._double)
        value = field_in(shown, form.field)
        if form.is_answered:
            return len(value or ()) if form.goal == "count" else value
        assert made is not None  # a form of it
        call(self._double, made, {}, self._sent(shown, self._changed(value)))
        return None

    def _sent(self, fields: Mapping[str, Json], new: Json) -> Values:
        """What a change sends: the new value, and what has to be kept of a record with these fields."""
        kept = {name: fields[name] for name in kept_fields(self._reach) if fields.get(name) is not None}
        return kept | _with(fields, self._form.field, new)

    @property
    def _new(self) -> Json:
        return self._values["new"] if self._form.value is None else self._form.value

    def _changed(self, value: Json) -> Json:
        """What becomes of a value."""
        match self._form.goal:
            case "add":
                return [*(value or []), self._new]
            case "drop":
                return [each for each in value or [] if each != self._new]
        return self._new

    def _chosen(self, by: str = "") -> list[Record]:
        return chosen_records(self._form, self._reach, self._double.state, self._values, by=by)

    def _only(self, chosen: Sequence[Record]) -> Record:
        if len(chosen) != 1:
            raise UnfitError(f"{len(chosen)} records are meant")
        return chosen[0]

    def _extreme(self, chosen: Sequence[Record]) -> Json:
        form = self._form
        known = [each for each in chosen if value_of(each, form.field) is not None]
        if not known:
            raise UnfitError("no record has the field")
        choose = max if form.goal == "most" else min
        best = choose(value_of(each, form.field) for each in known)
        return value_of(self._only([each for each in known if value_of(each, form.field) == best]), form.key)

    def _create(self, fields: Values) -> None:
        made, form, reach = self._reach.one("create"), self._form, self._reach
        assert made is not None  # a form of it
        scope: tuple[str, ...] = ()
        if reach.collection.scopes:
            scope = scope_of(form, reach, self._double.state, self._values)
        elif form.through is not None:
            owner = owner_of(form, self._double.state, self._values)
            schema = reach.sent_by(made).get(form.through.field, {})
            fields = {**fields, form.through.field: _linking(form, schema, owner)}
        call(self._double, made, dict(zip(made.scopes, scope, strict=True)), fields)
        self.asked[reach.collection.name, ()] = frozenset(map(root_of, fields))

    def _joined(self, record: Record) -> Json:
        """The link of a record that is put into another one, or taken out."""
        form, owner = self._form, owner_of(self._form, self._double.state, self._values)
        schema = fields_of(self._reach.collection.item)[form.field]
        new = _linking(form, schema, owner)
        if not isinstance(new, list):
            return new
        left = [each for each in record.fields.get(form.field) or [] if str(each) != owner]
        return left if form.goal == "unlink" else [*left, *new]

    def _write(self, record: Record) -> None:
        form, reach = self._form, self._reach
        place: Place = (reach.collection.name, (*record.scope, record.key))
        match form.goal:
            case "delete":
                made, fields = reach.one("delete"), Values()
            case "act":
                made, fields = reach.model.operations[form.operation], Values()
                self.asked[place] = frozenset(effect(made).sets)
            case _:
                joins = form.goal in ("link", "unlink")
                new = self._joined(record) if joins else self._changed(value_of(record, form.field))
                made, fields = reach.write, self._sent(record.fields, new)
                self.asked[place] = frozenset({root_of(form.field)})
        assert made is not None  # a form of it
        known = {**dict(zip(made.scopes, record.scope, strict=True)), made.key: record.key}
        call(self._double, made, known, fields)


def _linking(form: Form, schema: Schema, owner: str) -> Json:
    """The value of a field that links to one record."""
    if form.through is not None and form.through.link is not None and form.through.link.many:
        return [typed_key(flat(flat(schema).get("items") or {}), owner)]
    return typed_key(schema, owner)


def alone(reach: Reach, double: Double, sets: Mapping[str, Json] = {}) -> dict[str, Json]:
    """What an API answers of what there is one of, once some of its fields were set. Raises UnfitError."""
    made = reach.one("get")
    assert made is not None  # it is read
    assert made.shape is not None
    whole = call(double, made, {}, {}).value
    found = value_at(whole, made.shape.keys)
    if not isinstance(found, dict):
        raise UnfitError(f"{made.operation.name} answers with no object")
    if sets:
        for field, value in sets.items():
            found |= _with(found, field, value)
        double.state.parts["/".join(made.path)] = Part(whole, whole)
    return found


def call(double: Double, made: Modelled, known: Mapping[str, Json], fields: Mapping[str, Json]) -> Answer:
    """The answer of a double to a program's call. Raises UnfitError for one that it refuses."""
    return _sent(double, made, arguments(made, made.operation, _typed(made, known), fields, dict))


def rows_of(double: Double, made: Modelled, known: Mapping[str, Json]) -> list[tuple[str, Json]]:
    """The rows of a list on all its pages, as programs read them, each with its key in a map.

    Raises UnfitError.
    """
    given = first_arguments(made.operation) | arguments(made, made.operation, _typed(made, known), {}, dict)
    url, found = f"{double.model.app.server}{made.operation.path}", list[tuple[str, Json]]()
    for _ in range(_PAGES):
        answer = _sent(double, made, given)
        listed = value_at(answer.value, made.shape.keys if made.shape is not None else ())
        found += listed.items() if isinstance(listed, Mapping) else [("", each) for each in listed or ()]
        headers = {name.lower(): value for name, value in answer.headers.items()}
        following = next_page(made.operation, given, answer.value, headers, url)
        if not isinstance(following, dict) or made.query.paging is None:
            return found
        given |= following
    raise UnfitError(f"the pages of {made.operation.name} have no end")


def _typed(made: Modelled, known: Mapping[str, Json]) -> dict[str, Json]:
    types = {each.wire_name: each.schema for each in made.operation.parameters}
    return {name: typed_key(types.get(name, {}), value) for name, value in known.items()} | pinned(made)


def first_arguments(operation: Operation) -> dict[str, Json]:
    """What a list has to be given for its first page, besides the keys in its path."""
    asked = tuple(each for each in operation.parameters if each.place != "path")
    return first_page(msgspec.structs.replace(operation, parameters=asked)) or {}


def _sent(double: Double, made: Modelled, given: Mapping[str, Json]) -> Answer:
    operation = made.operation
    try:
        request = encode(double.model.app, operation, given)
    except HostError as error:
        raise UnfitError(error.message) from error
    path, _, query = request.target.partition("?")
    credential = double.authentication(operation.name)
    query = credential.url(f"http://double/?{query}" if query else "http://double/").partition("?")[2]
    headers = credential.merged(request.headers)
    answer = double.respond(operation.method, path, query, headers, request.content or b"")
    if answer.status >= 300:
        raise UnfitError(f"{operation.name} answers with {answer.status}: {answer.body.decode()[:200]}")
    return answer


def kept_fields(reach: Reach) -> list[str]:
    """What a change has to send of the record besides: of one that replaces it, all that it takes."""
    known = reach.shown_by(reach.one("get") or reach.listing)
    sent = reach.sent_by(reach.write) if reach.is_whole else {}
    return [
        name
        for name, each in sent.items()
        if name in known and root_of(name) == name != reach.collection.key and not each.get("readOnly")
    ]


class _Fit:
    """Makes records fit a form, and draws the details of a task."""

    def __init__(self, form: Form, every: Mapping[str, Reach], double: Double, rng: Random, index: int) -> None:
        self._form, self._every, self._double, self._rng, self._index = form, every, double, rng, index
        self._reach = every[form.collection]
        self._collection = self._reach.collection
        self._drawer = Drawer(f"{double.seed} values {index}", double.model.fits)
        self._fields = self._reach.fields

    def values(self) -> Values:
        form = self._form
        if form.by == "only":
            return self._alone()
        values = Values(zip(parameters(form, self._collection), self._home(), strict=False))
        self._take_some_away()
        self._place(values)
        self._tell_which(values)
        if form.goal in ("link", "unlink"):
            self._join(values)
        if form.has_new:
            values["new"] = self._new_value()
        if form.goal in ("change", "check", "act", "add", "drop"):
            self._unlike(values)
        if form.goal == "create":
            self._new(values)
        if form.goal in ("most", "least"):
            self._tell_apart(values)
        return values

    def _tell_which(self, values: Values) -> None:
        """Which records are meant."""
        form = self._form
        if form.is_of_owner and form.through is not None and form.through.link is not None:
            self._link(form.through, form.through.link, values)
        for name, where in form.conditions.items():
            self._meet(where, values, name)
        if form.also is not None:
            self._meet_both(values)
        if form.but:
            self._leave_one(values)
        if form.by in ("id", "text") and form.goal != "create":
            self._name(values)

    def _alone(self) -> Values:
        """What there is one of becomes another one for each task, as far as it may be set."""
        form, values = self._form, Values()
        if form.has_new:
            values["new"] = self._new_value()
        if form.goal in ("add", "drop"):
            value = self._list_without(values["new"])
        else:
            value = self._value(form.field, self._fields[form.field])
        if value == values.get("new", form.value) and form.goal == "change":
            value = self._other(form.field, value)
        alone(self._reach, self._double, {form.field: value})
        return values

    def _new_value(self) -> Json:
        form = self._form
        schema = self._reach.settable.get(form.field, {})
        if form.goal not in ("add", "drop"):
            return self._value(form.field, schema)
        return draw_text(flat(schema).get("items") or {}, singular(form.field), self._drawer, self._rng)

    def _list_without(self, new: Json) -> list[Json]:
        """Some texts, and among them the one that is to go, if it is to."""
        schema = self._fields[self._form.field]
        items = [each for each in self._value(self._form.field, schema) if each != new]
        if self._form.goal == "drop":
            items.insert(self._rng.randint(0, len(items)), new)
        if not self._drawer.fits(schema, items):
            raise UnfitError("its list takes no such texts")
        return items

    def _home(self) -> list[Json]:
        """The keys of what the records are in."""
        made = next(iter(self._reach.every), None)
        return [] if made is None else list(pinned(made).values())

    def _take_some_away(self) -> None:
        """So that no two tasks of a scenario have as many."""
        keyed = self._double.state.records[self._collection.name]
        above = {scope.parent for each in self._double.model.collections.values() for scope in each.scopes}
        if self._collection.name not in above and not self._collection.scopes:
            for place in self._rng.sample(list(keyed), min(self._index % 3, max(0, len(keyed) - _LEFT))):
                del keyed[place]

    def _place(self, values: Values) -> None:
        """Where the records are: above them, or of whom."""
        state, scopes = self._double.state, self._collection.scopes
        if not scopes:
            return
        counted: dict[tuple[str, ...], int] = {}
        for each in state.records[self._collection.name].values():
            counted[each.scope] = counted.get(each.scope, 0) + 1
        most = sorted(counted, key=lambda scope: (-counted[scope], scope))[:3]
        if not most:
            raise UnfitError("there are no records above")
        scope = self._rng.choice(most if self._form.where is None else most[:1])
        for number, (key, above) in enumerate(zip(scope, scopes, strict=True)):
            named = "owner" if number == len(scopes) - 1 else f"above{number}"
            schema = self._every[above.parent].collection.key_schema if above.parent else above.schema
            values[named] = typed_key(schema, key)
        through = self._form.through
        if through is not None and through.name:
            values["owner"] = self._call_it(
                state.records[through.collection][scope], through.collection, through.name
            )

    def _link(self, through: Through, link: Link, values: Values) -> None:
        """Gives some records, and not all, to one."""
        owners = list(self._double.state.records[through.collection].values())
        records = list(self._double.state.records[self._collection.name].values())
        if len(owners) < 2 or len(records) < 3:
            raise UnfitError("there are too few records to tell apart")
        owner, other = self._rng.sample(owners, 2)
        if link.collection != through.collection or owner in records:
            raise UnfitError("records that belong to their own kind")
        for number, record in enumerate(self._rng.sample(records, len(records))):
            if number < 2 or belongs(record.fields.get(link.field), owner.key, self._reach):
                self._belong(record, link, owner if number < 2 + self._index % 2 else other)
        values["owner"] = self._say_owner(through, owner)

    def _say_owner(self, through: Through, owner: Record) -> Json:
        """How a task says whom a record is of: by its key, or by a name."""
        if through.name:
            return self._call_it(owner, through.collection, through.name)
        return typed_key(self._every[through.collection].collection.key_schema, owner.key)

    def _belong(self, record: Record, link: Link, owner: Record) -> None:
        schema, model = flat(self._fields.get(link.field, {})), self._double.model
        if link.many:
            inner = flat(schema.get("items") or {})
            record.fields[link.field] = [linked(link, owner, inner, model, None)]
        else:
            record.fields[link.field] = linked(link, owner, schema, model, record.fields.get(link.field))

    def _meet_both(self, values: Values) -> None:
        """Some records meet both conditions, and others one of them."""
        records = self._in_place(values)
        met = [
            {id(each) for each in records if meets(where, each, values, name)}
            for name, where in self._form.conditions.items()
        ]
        if not met[0] & met[1] or not met[0] - met[1] or not met[1] - met[0]:
            raise UnfitError("no records meet one condition and not the other")

    def _leave_one(self, values: Values) -> None:
        """One of the records that are meant is not."""
        form = msgspec.structs.replace(self._form, but="")
        chosen = chosen_records(form, self._reach, self._double.state, values)
        if len(chosen) < 2:
            raise UnfitError("there are too few records to leave one out")
        values["but"] = self._call_it(self._rng.choice(chosen), self._collection.name, self._form.but)

    def _join(self, values: Values) -> None:
        """Draws the record that another one is put into, or taken out of."""
        through = self._form.through
        assert through is not None  # a form of it
        assert through.link is not None
        owners = list(self._double.state.records[through.collection].values())
        chosen = chosen_records(self._form, self._reach, self._double.state, values)
        if len(owners) < 2 or len(chosen) != 1:
            raise UnfitError("there are no records that it could be of")
        owner, other = self._rng.sample(owners, 2)
        self._belong(chosen[0], through.link, owner if self._form.goal == "unlink" else other)
        values["owner"] = self._say_owner(through, owner)

    def _meet(self, where: Condition, values: Values, name: str = "where") -> None:
        """Some records meet the condition, and not all."""
        records = self._in_place(values)
        may_be_set = where.test == "is" and root_of(where.field) in self._collection.given
        known = [each for each in records if may_be_set or value_of(each, where.field) is not None]
        if len(known) < 2:
            raise UnfitError("there are too few records to tell apart")
        self._rng.shuffle(known)
        some = max(1, (len(known) - 1) // 2)  # and not as many as the others
        yes, no = known[:some], known[some:]
        if where.test == "is":
            value = self._tell_by_value(where, yes, no)
            if where.flag is None:
                values[name] = value
        elif where.test == "has":
            values[name] = self._tell_by_text(where, yes, len(records) + 3 * self._index)
        else:
            values[name] = self._border(where, [value_of(each, where.field) for each in known])
        met = [each for each in records if meets(where, each, values, name)]
        if not met or len(met) == len(records):
            raise UnfitError("the condition chooses nothing, or everything")
        opposite = msgspec.structs.replace(
            where,
            test=_OPPOSITES.get(where.test, where.test),
            flag=None if where.flag is None else not where.flag,
        )
        if opposite != where and len(met) == sum(meets(opposite, each, values, name) for each in records):
            raise UnfitError("as many records meet the opposite condition")

    def _tell_by_value(self, where: Condition, yes: Sequence[Record], no: Sequence[Record]) -> Json:
        """The value that some have, and others not."""
        choices = [each for each in flat(self._fields[where.field]).get("enum", ()) if each is not None]
        value = where.flag if where.flag is not None else self._rng.choice(choices)
        for each in yes:
            self._put(each, where.field, value)
        others = [not value] if where.flag is not None else [each for each in choices if each != value]
        for each in no:
            self._put(each, where.field, self._rng.choice(others))
        return value

    def _tell_by_text(self, where: Condition, yes: Sequence[Record], number: int) -> str:
        """The word, or of addresses the host, that some have."""
        is_host = is_address(where.field, self._reach)
        words = _HOSTS if is_host else _WORDS
        word = words[number % len(words)]
        for each in yes:
            text = str(value_of(each, where.field))
            self._set_text(each, where.field, at_host(text, word) if is_host else f"{text} {word}")
            if word not in str(value_of(each, where.field)):
                raise UnfitError("its texts are too short")
        return word

    def _border(self, where: Condition, found: Sequence[Json]) -> Json:
        """A value between those of the records; of dates, a day without a record."""
        if where.kind == "number":
            values = sorted(set(found))
            if len(values) < 2:
                raise UnfitError("its numbers do not tell records apart")
            return self._rng.choice(values[:-1] if where.test == "more" else values[1:])
        days = sorted({str(each)[:10] for each in found})
        between = [
            f"{each[:8]}{int(each[8:]) + 1:02}" for each in days[:-1] if each[8:].isdigit() and int(each[8:]) < 28
        ]
        fit = [each for each in between if each not in days]
        if not fit:
            raise UnfitError("its days do not tell records apart")
        return self._rng.choice(fit)

    def _name(self, values: Values) -> None:
        """One record, and no other, is the one that the task names; others are taken for it easily."""
        form, records = self._form, self._in_place(values)
        if form.goal == "ensure" and self._index % 2:
            values["key"] = draw_text(self._fields[form.key], form.key, self._drawer, self._rng)
            return
        if not records:
            raise UnfitError("there are no records")
        with_field = [each for each in records if form.goal != "read" or value_of(each, form.field) is not None]
        meant = self._rng.choice(with_field or records)
        if form.by == "id":
            values["key"] = typed_key(self._collection.key_schema, meant.key)
            return
        values["key"] = self._call_it(meant, self._collection.name, form.key)

    def _call_it(self, meant: Record, collection: str, field: str) -> str:
        """Gives a record a name that no other has."""
        reach = self._every[collection]
        schema, every = reach.fields[field], self._double.state.records[collection].values()
        if root_of(field) in reach.collection.given:
            name = draw_text(schema, field, self._drawer, self._rng)
            self._put(meant, field, name)
            others = [each for each in every if each is not meant]
            for each in self._rng.sample(others, min(2, len(others))):
                self._set_text(each, field, like(name, self._rng), schema)
        called = value_of(meant, field)
        if not isinstance(called, str) or called != " ".join(called.split()) or not called:
            raise UnfitError(f"its {field} cannot be said")
        if sum(value_of(each, field) == called for each in every) != 1:
            raise UnfitError(f"several records have the same {field}")
        return called

    def _put(self, record: Record, field: str, value: Json) -> None:
        root = root_of(field)
        if root != field and record.fields.get(root) is None:
            record.fields[root] = self._drawer.value(self._fields[root], root, f"object of {record.key}")
        record.fields |= _with(record.fields, field, value)

    def _set_text(self, record: Record, field: str, text: str, schema: Schema | None = None) -> None:
        if self._drawer.fits(self._fields[field] if schema is None else schema, text):
            self._put(record, field, text)

    def _unlike(self, values: Values) -> None:
        """What the task wants does not hold yet."""
        form = self._form
        if form.goal in ("add", "drop"):
            for record in chosen_records(form, self._reach, self._double.state, values):
                self._put(record, form.field, self._list_without(values["new"]))
            return
        sets = effect(self._double.model.operations[form.operation]).sets if form.operation else {}
        if form.goal != "act":
            sets = {form.field: values["new"] if form.value is None else form.value}
        for record in chosen_records(form, self._reach, self._double.state, values):
            for field, value in sets.items():
                if value_of(record, field) == value:
                    self._put(record, field, self._other(field, value))

    def _other(self, field: str, value: Json) -> Json:
        if isinstance(value, bool):
            return not value
        choices = [each for each in flat(self._fields[field]).get("enum", ()) if each not in (None, value)]
        if not choices:
            raise UnfitError(f"there is no other {field}")
        return self._rng.choice(choices)

    def _new(self, values: Values) -> None:
        """The fields of a new record, and whom it is of."""
        form, sent = self._form, self._reach.sent_by(self._reach.one("create"))
        if form.through is not None and form.through.link is not None:
            owners = list(self._double.state.records[form.through.collection].values())
            if not owners:
                raise UnfitError("there are no records that it could be of")
            values["owner"] = self._say_owner(form.through, self._rng.choice(owners))
        for field in form.fields:
            values[field] = self._value(field, sent[field]) if field != self._collection.key else self._new_key()

    def _new_key(self) -> Json:
        """One that the task chooses."""
        key = new_key(self._collection, self._double.state, self._drawer, self._rng)
        if key is None:
            raise UnfitError("there is no key left for another record")
        return typed_key(self._collection.key_schema, key)

    def _value(self, field: str, schema: Schema) -> Json:
        return draw_value(schema, field, self._drawer, self._rng)

    def _tell_apart(self, values: Values) -> None:
        chosen = chosen_records(self._form, self._reach, self._double.state, values)
        if len({str(value_of(each, self._form.key)) for each in chosen}) != len(chosen) or len(chosen) < 2:
            raise UnfitError("its records cannot be told apart")

    def _in_place(self, values: Values) -> list[Record]:
        """The records of the place that the task is about."""
        form = msgspec.structs.replace(self._form, where=None, also=None, but="")
        return chosen_records(form, self._reach, self._double.state, values, by="all")

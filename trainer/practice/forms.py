"""What can be asked of an API: each form says what is done, and to which records, in terms of a double's model.

The forms are a product of goals and of ways to name records, so that what differs in one word alone (to pause and
to resume, to count all and to count those of a state) stands beside each other. What cannot be asked is left out,
with a reason. Pure.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from math import prod
from typing import Final, Literal, TypeAlias

import msgspec

from app.apis.double.meanings import Effect, Filter
from app.apis.double.model import HIDDEN, Collection, Link, Model, Modelled, Role
from app.apis.double.shapes import Schema, flat, item_shape, kind_of, own_name, root_of, within
from app.apis.double.state import Sampled
from app.apis.naming import plain, split_words
from app.base.secrets import is_telling
from app.base.values import Json

Goal: TypeAlias = Literal[
    "count", "list", "sum", "most", "least", "read", "create", "ensure", "change", "act", "delete", "check",
    "link", "unlink", "add", "drop",
]  # fmt: skip
By: TypeAlias = Literal["all", "id", "text", "where", "only"]
Test: TypeAlias = Literal["is", "has", "more", "less", "before", "after"]
Kind: TypeAlias = Literal["text", "texts", "number", "flag", "choice", "date"]

ANSWERED: Final[frozenset[Goal]] = frozenset({"count", "list", "sum", "most", "least", "read", "ensure", "check"})
NAMES: Final = (
    "name", "title", "subject", "headline", "label", "fullname", "displayname", "username", "code", "reference",
    "email", "url", "uri", "link", "slug", "plate",
)  # fmt: skip
_USUAL: Final = {
    "name", "title", "url", "description", "status", "state", "type", "category", "priority", "due", "duedate",
    "email", "enabled", "paused", "active", "archived", "completed", "done", "starred", "pinned", "muted",
    "locked",
    "public", "private", "price", "amount", "total", "quantity", "count", "date", "size", "color", "colour",
}  # fmt: skip
ADDRESSES: Final = {"url", "uri", "link", "href", "website", "homepage", "address"}
_NAMES: Final = 3  # by which a record is called
_FEW: Final = 4  # fields of a kind that are asked for
_READ: Final = 8
_ID: Final = re.compile(r"(^|_)(id|uuid|guid)s?$|hash|etag|checksum|signature|cursor|avatar|timestamp")
_MOMENT: Final = re.compile(r"(^|_)(date|timestamp)(_|$)|_(at|on|time)$|^last_[a-z]+ed$")
_NO_TEXTS: Final = ("byte", "binary", "password", "uuid", "time", "duration", "ipv4", "ipv6", "regex", "json")
_DATES: Final = ("date", "date-time")
_TESTS: Final[Mapping[Kind, tuple[Test, ...]]] = {
    "text": ("has",), "texts": (), "number": ("more", "less"), "flag": ("is",), "choice": ("is",),
    "date": ("before", "after"),
}  # fmt: skip
_WRITES: Final[Mapping[str, Role]] = {"PATCH": "update", "PUT": "replace"}
_FILTERS: Final[Mapping[Test, str]] = {"is": "equal", "has": "contains", "more": "over", "less": "under"}


class Condition(msgspec.Struct, frozen=True):
    """Which records are meant. The value of a flag belongs to the form, any other to a task."""

    field: str
    test: Test
    kind: Kind
    flag: bool | None = None

    @property
    def name(self) -> str:
        return f"{self.field} {self.test if self.flag is None else str(self.flag).lower()}"


class Through(msgspec.Struct, frozen=True):
    """The record that others belong to: `field` links to it, "" if it is above them in the path.

    `name` is the field by which a task names it, "" for its key.
    """

    collection: str  # "" for what is no record
    field: str = ""
    name: str = ""
    link: Link | None = None


class Form(msgspec.Struct, frozen=True, kw_only=True):
    """What all tasks of a scenario ask. `key` is the text field that names the one record, `field` what is read,
    compared or changed, `value` what a flag is changed to, `fields` those of a new record.
    """

    goal: Goal
    collection: str
    by: By = "all"
    key: str = ""
    where: Condition | None = None
    also: Condition | None = None  # meant are records that meet both
    but: str = ""  # the text field that names a record which is not meant
    through: Through | None = None
    field: str = ""
    kind: Kind = "text"  # of the field
    value: bool | None = None
    fields: tuple[str, ...] = ()
    operation: str = ""  # an action

    @property
    def is_answered(self) -> bool:
        return self.goal in ANSWERED

    @property
    def has_new(self) -> bool:
        """Whether a task says the new value."""
        return self.goal in ("add", "drop") or (self.goal in ("change", "check") and self.value is None)

    @property
    def is_of_owner(self) -> bool:
        """Whether only records are meant that link to another one."""
        linked = self.through is not None and self.through.link is not None
        return linked and self.goal not in ("create", "link", "unlink")

    @property
    def conditions(self) -> dict[str, Condition]:
        """By the details that they are compared with."""
        return {name: each for name, each in (("where", self.where), ("also", self.also)) if each is not None}

    @property
    def name(self) -> str:
        detail = [self.field, "" if self.value is None else str(self.value).lower(), *self.fields, self.operation]
        by = self.where.name if self.by == "where" and self.where else self.key if self.by == "text" else self.by
        by += (f" and {self.also.name}" if self.also else "") + (f" but {self.but}" if self.but else "")
        of = f"of {self.through.field or self.through.collection} {self.through.name}" if self.through else ""
        return ".".join(filter(None, (self.collection, self.goal, "_".join(filter(None, detail)), by, of.strip())))


class Reach(msgspec.Struct, frozen=True, eq=False, dict=True):
    """How the records of one collection are read and written, and which of their fields can be asked for.

    What stands alone at its path, as settings do, is the only record of a collection that its path names.
    """

    model: Model
    collection: Collection
    roles: Mapping[Role, Sequence[Modelled]]
    seen: Sampled = Sampled()

    @property
    def is_alone(self) -> bool:
        return self.collection.name not in self.model.collections

    @property
    def every(self) -> list[Modelled]:
        return [each for made in self.roles.values() for each in made]

    def one(self, role: Role) -> Modelled | None:
        return next(iter(self.roles.get(role, ())), None)

    @property
    def listing(self) -> Modelled | None:
        """The list of all records of a place."""
        return next((each for each in self.roles.get("list", ()) if not each.fixed), None)

    @property
    def write(self) -> Modelled | None:
        """What changes a record: the operation that takes a part of it, if there is one."""
        return self.one("update") or self.one("replace")

    @property
    def is_whole(self) -> bool:
        """Whether a change replaces the record, so that all of it has to be sent."""
        made = self.write
        if made is None or made.body is None or made.body.shape is None:
            return False
        needed = [each for each in made.body.shape.item.get("required", ()) if each != self.collection.key]
        return (made.role == "replace" and not made.partial) or bool(needed)

    @cached_property
    def fields(self) -> dict[str, Schema]:
        """All of records, and those of objects in them, called as in `within`."""
        return within(self.collection.item)

    @cached_property
    def _ranked(self) -> list[str]:
        """The fields of records, first those that the API itself puts first, in its lists, in what a record needs
        and in its examples, and those that people ask for everywhere.
        """
        made, name = self.one("create"), self.collection.name
        shape = made.body.shape if made is not None and made.body is not None else None
        needed = () if shape is None else flat(shape.item).get("required", ())
        listed, single = self.seen.lists.get(name, {}), self.seen.items.get(name, {})

        def points(field: str) -> int:
            root = root_of(field)
            return (
                2 * (root in needed)
                + 2 * (plain(own_name(field)) in _USUAL)
                + (root in listed)
                + (root in single)
                + (root in self.collection.examples)
                + (len(split_words(field)) == 1)
            )

        return sorted(self.fields, key=points, reverse=True)

    @cached_property
    def kinds(self) -> dict[str, Kind]:
        """The fields that can be asked for, with what they are, those first that are likely to be."""
        shown = {name for made in (*self.roles.get("list", ()), self.one("get")) for name in self.shown_by(made)}
        links = {each.field for each in self.collection.links}
        scopes = {each.parameter for each in self.collection.scopes}
        free = ((name, self.fields[name]) for name in self._ranked if name in shown)
        others = links | scopes | {self.collection.key}
        known = {name: kind_of_field(name, schema) for name, schema in free if root_of(name) not in others}
        return {name: kind for name, kind in known.items() if kind is not None}

    def shown_by(self, made: Modelled | None) -> set[str]:
        """The fields that the document promises of what an operation shows."""
        return set() if made is None or made.shape is None else set(within(flat(made.shape.item)))

    def sent_by(self, made: Modelled | None) -> dict[str, Schema]:
        """The fields that an operation takes of a record."""
        return within(flat(made.body.shape.item)) if made and made.body and made.body.shape else {}

    def of_kind(self, *kinds: Kind) -> list[str]:
        return [name for name, kind in self.kinds.items() if kind in kinds]

    @cached_property
    def names(self) -> list[str]:
        """The texts that a record is called by, the usual first."""
        texts = [name for name in self.of_kind("text") if is_name(self.fields[name])]
        texts.sort(key=lambda each: root_of(each) != each)  # nobody calls a record by what is in an object of it
        usual = sorted((each for each in texts if plain(each) in NAMES), key=lambda each: NAMES.index(plain(each)))
        return usual[:_NAMES] or texts[:1]

    @cached_property
    def settable(self) -> dict[str, Schema]:
        """What a change may set."""
        sent = self.sent_by(self.write)
        return {
            name: each
            for name, each in sent.items()
            if name in self.kinds
            and not each.get("readOnly")
            and (name == root_of(name) or self._is_sent_back(root_of(name), sent))
        }

    def _is_sent_back(self, root: str, sent: Mapping[str, Schema]) -> bool:
        """Whether all that is read of an object in a record may be sent again, so that a change of one of its
        fields loses no other.
        """
        shown = [name for name in self.fields if name.startswith(f"{root}/")]
        single = self.one("get") is not None and root in self.shown_by(self.one("get"))
        return single and all(name in sent and not sent[name].get("readOnly") for name in (root, *shown))

    def view(self, link: Link) -> Modelled | None:
        """The list of the records that link to one."""
        return next(
            (each for each in self.roles.get("list", ()) if set(each.fixed) == {link.field} and not each.scopes),
            None,
        )


def likelihood(form: Form, reach: Reach) -> float:
    """How likely people ask for it, as against other forms of the goal: by the ranks of its fields."""
    order = {name: place for place, name in enumerate(reach.kinds)}
    fields = [form.field, *(each.field for each in form.conditions.values()), *form.fields]
    ranks = [order[each] for each in dict.fromkeys(fields) if each in order]
    if form.by == "text" and form.key in reach.names:
        ranks.append(2 * reach.names.index(form.key))
    if form.through is not None and form.through.collection and not form.through.name:
        ranks.append(1)  # people know names, and hardly ever ids
    return prod(1 / (1 + rank) for rank in ranks)


def kind_of_field(name: str, schema: Schema) -> Kind | None:
    """None for what no task asks for: keys, secrets, what is deprecated, lists, objects."""
    schema = flat(schema)
    told = "_".join(split_words(name))
    if (
        schema.get("writeOnly") is True
        or schema.get("deprecated") is True
        or is_telling(name)
        or _ID.search(told)
        or not name.isprintable()
    ):
        return None
    choices = [each for each in schema.get("enum", ()) if each is not None]
    if choices:
        return "choice" if len(choices) > 1 and all(isinstance(each, str) and each for each in choices) else None
    match kind_of(schema):
        case "boolean":
            return "flag"
        case "integer" | "number":
            return None if schema.get("format") == "timestamp" or _MOMENT.search(told) else "number"
        case "array" if kind_of(flat(schema.get("items") or {})) == "string":
            item = kind_of_field(name, schema["items"])
            return "texts" if item == "text" else None
        case "string" if schema.get("format") in _DATES:
            return "date"
        case "string" if schema.get("format") not in _NO_TEXTS and "const" not in schema:
            return "text"
    return None


def is_address(name: str, reach: Reach) -> bool:
    """Whether a field holds URLs."""
    schema = flat(reach.fields.get(name, {}))
    return schema.get("format") in ("uri", "url") or bool(set(split_words(own_name(name))) & ADDRESSES)


def is_name(schema: Schema) -> bool:
    schema = flat(schema)
    return "pattern" not in schema or schema.get("format") is not None or int(schema.get("maxLength", 99)) > 20


def reaches(model: Model, seen: Sampled = Sampled()) -> dict[str, Reach]:  # noqa: B008 - frozen
    """Of all collections, by name."""
    found: dict[str, Reach] = {}
    for name, collection in model.collections.items():
        roles: dict[Role, list[Modelled]] = {}
        for made in model.every:
            if made.collection == name and _is_usable(made, collection):
                roles.setdefault(made.role, []).append(made)
        roles["list"] = sorted(roles.get("list", ()), key=lambda each: bool(each.fixed))
        found[name] = Reach(model, collection, roles, seen)
    return found | {each.collection.name: each for each in _alone(model, seen)}


def _alone(model: Model, seen: Sampled) -> Iterator[Reach]:
    """What is read at a path without parameters and is no record of a collection, as if it were the only one."""
    for read in model.operations.values():
        shape = item_shape(read.part) if read.role == "read" and not read.scopes else None
        if shape is None:
            continue
        collection = Collection(
            name="/".join(("", *read.path)), path=read.path, noun="", item=shape.item, key="", key_schema={}
        )
        made: dict[Role, Modelled] = {"get": msgspec.structs.replace(read, shape=shape)}
        for each in model.operations.values():
            if each.role == "write" and each.path == read.path and each.operation.method in _WRITES:
                made[_WRITES[each.operation.method]] = each
        known = {
            role: msgspec.structs.replace(each, role=role, collection=collection.name)
            for role, each in made.items()
        }
        roles = {role: [each] for role, each in known.items() if _is_usable(each, collection)}
        yield Reach(model, collection, roles, seen)


def _is_usable(made: Modelled, collection: Collection) -> bool:
    """Whether a program can call it with what is known of a record, and of no secret."""
    if made.operation.method == "HEAD" or _is_bound(made) or any(map(is_telling, made.scopes)):
        return False
    if made.role in ("list", "get") and made.shape is None:
        return False
    known = {made.key, *made.scopes, *made.fixed.values(), *made.pinned}
    if made.role == "list":
        paging = (made.query.size, made.query.paging.parameter if made.query.paging is not None else None)
        known |= {each.wire_name for each in paging if each is not None}
    required = [each for each in made.operation.parameters if each.required and not each.preset]
    if any(each.wire_name not in known for each in required if each.place != "body"):
        return False
    if made.fixed:
        return made.role == "list" and not made.scopes
    keys = () if made.body is None or made.body.shape is None else made.body.shape.keys
    return len(made.scopes) == len(collection.scopes) and len(keys) <= 1


def _is_bound(made: Modelled) -> bool:
    """Whether what the gateway fills in decides what it does, or is missed where nothing is filled in."""
    filters = made.role == "list"
    return any(
        each.required
        or each.place in ("path", "body")
        or (filters and each.place == "query" and each.wire_name not in made.ignored)
        for each in (bound.parameter for bound in made.operation.bound)
    )


def all_forms(every: Mapping[str, Reach]) -> tuple[list[Form], list[str]]:
    """All forms, and why there are none of some collections."""
    found: dict[str, Form] = {}
    reasons: list[str] = []
    for name, reach in every.items():
        if reach.collection.has_types:
            continue
        forms = list(_of_alone(reach) if reach.is_alone else _forms(reach, every))
        if not forms and not reach.is_alone:
            reasons.append(f"{name}: {_reason(reach)}")
        found |= {each.name: each for each in forms}
    if all(every[each.collection].is_alone for each in found.values()):
        return [], reasons  # too little to be divided among exercises and exams
    return list(found.values()), reasons


def _reason(reach: Reach) -> str:
    name = reach.collection.name
    reads = [each for each in reach.model.every if each.collection == name and each.role in ("list", "get")]
    if reads and reach.listing is None and reach.one("get") is None:
        return f"no task can tell all that {reads[0].operation.name} has to be given"
    if reach.listing is None:
        return f"no operation {'lists' if reads else 'reads'} its records"
    return "its records have no field that can be asked for"


def _forms(reach: Reach, every: Mapping[str, Reach]) -> Iterator[Form]:
    name = reach.collection.name
    owners, links = _owners(reach, every), list(_links(reach, every))
    whole = reach.listing is not None
    for owner in owners:
        if whole:
            for where in (None, *_conditions(reach)):
                by: By = "all" if where is None else "where"
                base = Form(goal="count", collection=name, by=by, where=where, through=owner)
                yield from _of_many(reach, base)
                yield from _of_some(reach, base)
        for key in ("", *reach.names):
            if (key and whole) or (not key and reach.collection.key):
                base = Form(goal="read", collection=name, by="text" if key else "id", key=key, through=owner)
                yield from _of_one(reach, base)
        yield from _new(reach, owner, every)
    for link in links:
        yield from _of_many(reach, Form(goal="count", collection=name, through=link))
        yield from _joins(reach, link)


def _of_alone(reach: Reach) -> Iterator[Form]:
    if reach.one("get") is None:
        return
    base = Form(goal="read", collection=reach.collection.name, by="only")
    for field in [*reach.kinds][:_READ]:
        yield _with(base, reach, goal="read", field=field)
    for field in reach.of_kind("texts"):
        yield _with(base, reach, goal="count", field=field)
    yield from _changes(reach, base, flags_only=False)


def _owners(reach: Reach, every: Mapping[str, Reach]) -> list[Through | None]:
    """How what is above the records is named."""
    if not reach.collection.scopes:
        return [None]
    parent = reach.collection.scopes[-1].parent
    above = every.get(parent)
    named = [Through(parent, name=each) for each in above.names[:1]] if above and above.listing else []
    return [Through(parent), *named]


def _links(reach: Reach, every: Mapping[str, Reach]) -> Iterator[Through]:
    """Other records that those of a collection may belong to."""
    for link in reach.collection.links:
        target, whole = every.get(link.collection), reach.listing
        if target is None or target.collection.scopes or reach.collection.scopes:
            continue
        hidden = link.field.startswith(HIDDEN) or link.collection == reach.collection.name
        shown = whole is not None and link.field in reach.shown_by(whole)
        if target.collection.key and (reach.view(link) or (shown and not hidden)):
            yield Through(link.collection, link.field, "", link)
            if target.names and target.listing is not None:
                yield Through(link.collection, link.field, target.names[0], link)


def _conditions(reach: Reach) -> Iterator[Condition]:
    for kind, tests in _TESTS.items():
        texts = [*reach.names[:1], *(each for each in reach.names[1:] if is_address(each, reach))]
        for field in texts if kind == "text" else reach.of_kind(kind)[:_FEW]:
            for test in tests:
                if kind == "flag":
                    yield from (Condition(field, test, kind, flag) for flag in (True, False))
                else:
                    yield Condition(field, test, kind)


def _of_many(reach: Reach, base: Form) -> Iterator[Form]:
    yield base
    name = next(iter(reach.names), "")
    for field in dict.fromkeys([*reach.names[:1], *reach.of_kind("choice", "text")[:2]]):
        if base.where is None or field != base.where.field:
            yield _with(base, reach, goal="list", field=field)
    for field in reach.of_kind("number")[:_FEW]:
        yield _with(base, reach, goal="sum", field=field)
    for field in reach.of_kind("number", "date")[:_FEW] if name else ():
        yield _with(base, reach, goal="most", field=field, key=name)
        yield _with(base, reach, goal="least", field=field, key=name)
    if base.by == "all" and base.through is None and name == "":
        return
    yield from _changes(reach, base, flags_only=True)


def _of_some(reach: Reach, base: Form) -> Iterator[Form]:
    """The records that meet two conditions, and all but one."""
    name = next(iter(reach.names), "")
    own = base.where.field if base.where is not None else ""
    if name and own != name:
        for form in _changes(reach, base, flags_only=True):
            yield msgspec.structs.replace(form, but=name)
    for also in _conditions(reach) if own else ():
        if base.where is not None and (also.field, also.name) > (own, base.where.name) and also.field != own:
            both = msgspec.structs.replace(base, also=also)
            yield both
            if name not in ("", own, also.field):
                yield _with(both, reach, goal="list", field=name)
            if reach.one("delete") is not None:
                yield msgspec.structs.replace(both, goal="delete")
            for field in [each for each in reach.of_kind("flag") if each in reach.settable][:_FEW]:
                if reach.write is not None and field not in (own, also.field):
                    yield from (
                        _with(both, reach, goal="change", field=field, value=each) for each in (True, False)
                    )


def _joins(reach: Reach, through: Through) -> Iterator[Form]:
    """Putting a record into another one, and taking it out."""
    link, sent = through.link, reach.sent_by(reach.write)
    if link is None or link.embedded or link.field not in sent or reach.one("get") is None:
        return
    for key in ("", *reach.names) if reach.listing is not None else ("",):
        base = Form(goal="link", collection=reach.collection.name, by="text" if key else "id", key=key)
        base = msgspec.structs.replace(base, through=through, field=link.field)
        yield base
        if link.many:
            yield msgspec.structs.replace(base, goal="unlink")


def _of_one(reach: Reach, base: Form) -> Iterator[Form]:
    if reach.one("get") is not None or base.by == "text":
        single = reach.shown_by(reach.one("get"))
        shown = [each for each in reach.kinds if each != base.key and (base.by == "text" or each in single)]
        for field in shown[:_READ]:
            yield _with(base, reach, goal="read", field=field)
    yield from _changes(reach, base, flags_only=False)
    if base.by == "text" and reach.write is not None:
        for field in reach.of_kind("flag", "choice")[:_FEW]:
            if field in reach.settable:
                for value in (True, False) if reach.kinds[field] == "flag" else (None,):
                    yield _with(base, reach, goal="check", field=field, value=value)


def _changes(reach: Reach, base: Form, *, flags_only: bool) -> Iterator[Form]:
    """Writes to the records that are meant. What is counted or named by a field is not changed in it."""
    own = base.where.field if base.where else ""
    if not reach.collection.key and not reach.is_alone:
        return
    for field in reach.settable if reach.write is not None else ():
        kind = reach.kinds[field]
        if kind == "flag" and field != own:
            yield from (_with(base, reach, goal="change", field=field, value=each) for each in (True, False))
        elif field != own and (kind == "choice" or not flags_only):
            yield _with(base, reach, goal="change", field=field)
        if kind == "texts" and not flags_only and reach.one("get") is not None:
            yield _with(base, reach, goal="add", field=field)
            yield _with(base, reach, goal="drop", field=field)
    for made in reach.roles.get("act", ()):
        if is_plain_action(made) and not (own and own in effect(made).sets):
            yield msgspec.structs.replace(base, goal="act", operation=made.operation.name)
    if reach.one("delete") is not None:
        yield msgspec.structs.replace(base, goal="delete")


def is_plain_action(made: Modelled) -> bool:
    """One that needs nothing but the record."""
    needed = made.body is not None and made.body.required and made.body.schema.get("required")
    return bool(effect(made).sets) and not needed


def effect(made: Modelled) -> Effect:
    return made.effect or Effect()


def _new(reach: Reach, owner: Through | None, every: Mapping[str, Reach]) -> Iterator[Form]:
    made = reach.one("create")
    if made is None or made.body is None or made.body.shape is None:
        return
    item = flat(made.body.shape.item)
    sent, links = within(item), {each.field: each for each in reach.collection.links}
    required = [each for each in item.get("required", ()) if "default" not in sent.get(each, {})]
    needed = [one for each in required for one in ([each] if each in links else _said_of(each, sent))]
    linked = [each for each in needed if each in links]
    if any(
        each not in linked and (each not in sent or kind_of_field(each, sent[each]) is None) for each in needed
    ):
        return
    if len(linked) > 1 or (linked and owner is not None) or any(links[each].embedded for each in linked):
        return
    throughs: list[Through | None] = [owner]
    optional = [each for each, link in links.items() if each in sent and not link.embedded]
    for field in linked or (optional[:1] if owner is None else ()):
        target = every[links[field].collection]
        if not target.collection.scopes:
            names = ["", *(target.names[:1] if target.listing is not None else [])]
            of_link = [Through(target.collection.name, field, each, links[field]) for each in names]
            throughs = [*of_link, *([] if linked else throughs)]
    if linked and throughs == [owner]:
        return
    first = _first_fields(reach, sent, [each for each in needed if each not in linked])
    more = [
        each
        for each in reach.kinds
        if each in sent
        and each not in first
        and not sent[each].get("readOnly")
        and set(_needed_beside(each, sent)) <= {each, *first}
    ]
    for through in throughs:
        base = Form(goal="create", collection=reach.collection.name, through=through, by="id", fields=first)
        if first:
            yield base
        for each in more[:_READ]:
            yield msgspec.structs.replace(base, fields=(*first, each))
        for two in pairwise(more[: _FEW + 1]):
            yield msgspec.structs.replace(base, fields=(*first, *two))
        if len(first) == 1 and first[0] in reach.names and reach.listing is not None and through == owner:
            yield msgspec.structs.replace(base, goal="ensure", by="text", key=first[0])


def _said_of(name: str, sent: Mapping[str, Schema]) -> list[str]:
    """What a task says of a field that is needed: of an object, what it needs, or else its first field."""
    inner = [each for each in sent if each.startswith(f"{name}/")]
    if not inner:
        return [name]
    askable = (each for each in inner if kind_of_field(each, sent[each]) is not None)
    return _needed_beside(inner[0], sent) or [next(askable, name)]


def _needed_beside(name: str, sent: Mapping[str, Schema]) -> list[str]:
    """What the object needs that a field is in."""
    root = root_of(name)
    return [f"{root}/{each}" for each in flat(sent[root]).get("required", ())] if name != root else []


def _first_fields(reach: Reach, sent: Mapping[str, Schema], needed: Sequence[str]) -> tuple[str, ...]:
    """What each new record has: what it needs, and what it is called by."""
    if reach.collection.named and reach.collection.key in sent:
        return (reach.collection.key, *needed)
    named = [each for each in reach.names if each in sent and each not in needed][:1]
    return tuple(needed) if any(each in reach.names for each in needed) else (*needed, *named)


def _with(base: Form, reach: Reach, **more: Json) -> Form:
    return msgspec.structs.replace(base, kind=reach.kinds[more["field"]], **more)


def filter_for(made: Modelled, field: str, test: Test) -> Filter | None:
    """The parameter of a list that does the same as a condition."""
    wanted = _FILTERS.get(test, "")
    return next((each for each in made.query.filters if each.field == field and each.test == wanted), None)


def contrasts(form: Form, forms: Sequence[Form]) -> list[Form]:
    """The forms that differ from one in a single respect: to do the opposite, to others, of another field."""

    def parts(each: Form) -> tuple[object, ...]:
        return (
            each.goal,
            (each.by, each.key),
            each.where,
            (each.also, each.but),
            each.through,
            (each.field, each.value),
            each.fields,
            each.operation,
        )

    own = parts(form)
    near = [each for each in forms if each.collection == form.collection and each != form]
    counted = [(sum(a != b for a, b in zip(own, parts(each), strict=True)), each) for each in near]
    least = min((count for count, _ in counted), default=0)
    return [each for count, each in counted if count <= max(1, least)]

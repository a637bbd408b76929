"""What the operations of an API do to its records, read from its OpenAPI document.

Paths tell: what ends with a parameter is one record, what such a path extends is its collection, and what
follows a record is a collection in it, a part of it, or an action on it. Schemas tell where an answer has the
records, and names which field a parameter is about. An operation of which one of these cannot be told is left
out, with a reason.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, Literal

import msgspec

from app.apis.catalog import App, LeftOut, Operation, Parameter
from app.apis.documents.protocols import parse_document
from app.apis.double.documents import Body, Described, Reply, descriptions, segments
from app.apis.double.meanings import Effect, ListQuery, effect_of, list_query
from app.apis.double.record_types import NOT_NAMES, Path, is_word, names_person, with_types
from app.apis.double.shapes import (
    KEYS,
    Fits,
    Schema,
    Shape,
    fields_of,
    flat,
    item_shape,
    kind_of,
    likeness,
    list_shape,
    noun_of,
)
from app.apis.double.values import Drawer, Examples, NoValueError
from app.apis.naming import plain, singular, split_words
from app.base.errors import ApiDocumentError
from app.base.values import Json

Role = Literal["list", "get", "create", "replace", "update", "delete", "clear", "act", "read", "write"]

HIDDEN: Final = "."
"""Begins the names of fields that no answer shows."""
NO_SCHEMA: Final = "its answer has no schema"
NO_RECORDS: Final = "no schema shows the records that it is about"
"""Why an operation is left out that an answer of the real server would explain."""
_ALIKE: Final = 0.6  # share of fields that two descriptions of the same records have in common
_SEARCHING: Final = {"search", "query", "filter", "find", "list", "lookup", "all"}
_ALL: Final = {"all", "every", "each", "clear", "clears", "empty", "empties", "purge", "purges", "matching"}
_PEOPLE: Final = ("user", "member", "person", "account", "employee", "contact", "customer")
_COUNTING: Final = {"count", "total", "num", "number", "counter", "quantity"}
_KEY_WORDS: Final = {"id", "ids", "uuid", "uuids", "guid", "identifier", "key"}
_BOUNDS: Final = ("format", "pattern", "enum", "minLength", "maxLength", "minimum", "maximum")
_UNIQUE: Final = ("name", "username", "login", "email", "slug", "key", "code", "title")


class Scope(msgspec.Struct, frozen=True):
    """A path parameter of a collection: the key of a record of `parent`, or of nothing that is modelled."""

    parameter: str
    parent: str = ""
    schema: Schema = {}


class Link(msgspec.Struct, frozen=True):
    """A field that holds the key of a record of a collection, `many` of them, or the record itself."""

    field: str
    collection: str
    many: bool = False
    embedded: bool = False


class Counter(msgspec.Struct, frozen=True):
    """A field with the number of records of a collection that are in a record, or name it in the field `link`."""

    field: str
    collection: str
    link: str = ""


class Home(msgspec.Struct, frozen=True):
    """A record whose key is a part of a path: of a collection, "" if none has it, and `what` it is, in words."""

    what: str
    collection: str
    key: str


class Collection(msgspec.Struct, frozen=True, kw_only=True):
    """Records of one kind. `key` is the field with the key, "" if no field has it.

    If users define what its records are, they are in one place, its `home`, and in no other.
    """

    name: str
    path: Path
    noun: str
    item: Schema
    key: str
    key_schema: Schema
    scopes: tuple[Scope, ...] = ()
    links: tuple[Link, ...] = ()
    counters: tuple[Counter, ...] = ()
    unique: str = ""  # a field that no two records share
    given: frozenset[str] = frozenset()  # fields that bodies may set
    examples: Mapping[str, Sequence[Json]] = {}
    home: tuple[Home, ...] = ()
    free: bool = False  # the server sets nothing that a body may set
    named: bool = False  # its keys are words, which clients choose
    has_types: bool = False  # its records are in collections of their own, but for those that nobody has seen

    @property
    def homes(self) -> list[tuple[str, Path]]:
        """The records that its own are in: of which collections, and their scope and key."""
        keys = tuple(each.key for each in self.home)
        return [(each.collection, keys[: place + 1]) for place, each in enumerate(self.home) if each.collection]


class Modelled(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """An operation with what it does. `fixed` are fields that path parameters decide, by field; `pinned` are path
    parameters that have one value here, which names the kind of the records.
    """

    operation: Operation
    role: Role
    reply: Reply
    collection: str = ""  # "" for a part of its own, which `path` names
    path: Path = ()
    part: Schema = {}  # what is read there, whole
    shape: Shape | None = None  # None: its answer shows no record
    body: Body | None = None
    key: str = ""  # the parameter that names the record
    scopes: tuple[str, ...] = ()  # path parameters in front of it
    fixed: Mapping[str, str] = {}
    pinned: Mapping[str, str] = {}
    query: ListQuery = ListQuery()
    effect: Effect | None = None
    upserts: bool = False  # a replacement that creates what there is not
    partial: bool = False  # a replacement that keeps what the body does not name
    errors: Mapping[str, Reply] = {}

    @property
    def ignored(self) -> tuple[str, ...]:
        """The parameters whose meaning is not known: they change nothing."""
        return tuple(each.wire_name for each in self.query.ignored)


class Model(msgspec.Struct, frozen=True, eq=False):
    """An API as collections of records, and what its operations do to them. `typed` are operations once more, each
    for a place whose records are of a kind of their own; one that is known of such places alone is among
    `operations` as the first of them has it.
    """

    app: App
    document: Mapping[str, Json]
    operations: dict[str, Modelled]
    collections: dict[str, Collection]
    left_out: tuple[LeftOut, ...]
    fits: Fits
    typed: tuple[Modelled, ...] = ()

    @property
    def every(self) -> tuple[Modelled, ...]:
        """Each operation for all places that it is known of."""
        return (*(each for each in self.operations.values() if not each.pinned), *self.typed)

    def meant(self, operation: str, given: Mapping[str, Json]) -> Modelled | None:
        """What an operation does, given its path parameters by wire name."""
        found = (*self.typed, *self.operations.values())
        own = (each for each in found if each.operation.name == operation)
        return next(
            (each for each in own if all(given.get(name) == key for name, key in each.pinned.items())), None
        )

    @property
    def coverage(self) -> str:
        """`19 of 23`: the operations that are modelled, of those of the document."""
        return f"{len(self.operations)} of {len(self.operations) + len(self.left_out)}"


class NotModelledError(ApiDocumentError):
    """Why an operation is left out, in words."""


def read_model(
    name: str,
    document: Mapping[str, Json],
    *,
    server: str | None = None,
    source: str | None = None,
    samples: Mapping[str, Json] = {},
) -> Model:
    """The model of a document. `samples` are answers of the real server, by operation, for what has no schema; of
    lists whose records are of another kind in each place, by `sample_key`.

    Raises ApiDocumentError for a document that cannot be read at all.
    """
    app = parse_document(name, document, source=source, server=server)
    if app.protocol != "openapi":
        raise ApiDocumentError(f"only an OpenAPI document can be modelled, this is one of {app.protocol}")
    described = with_types(descriptions(app, document, source, samples), samples)
    return _Reading(app, document, described).model()


class _Kind(msgspec.Struct):
    """A collection while it is read."""

    path: Path
    noun: str
    reads: list[Described] = []
    lists: list[Described] = []
    creates: list[Described] = []
    item: Schema = {}
    listed: Schema = {}
    key: str = ""
    key_name: str = ""  # of its path parameter
    key_parameter: Schema = {}
    key_schema: Schema = {}
    is_map: bool = False
    has_items: bool = False  # a path of their own


class _Reading:
    def __init__(self, app: App, document: Mapping[str, Json], described: Sequence[Described]) -> None:
        self._app, self._document, self._described = app, document, described
        self._fits = Fits()
        self._kinds: dict[Path, _Kind] = {}
        self._views: dict[Path, tuple[Path, dict[str, str]]] = {}
        self._names: dict[Path, str] = {}
        self._schemas = _parameter_schemas(described)

    def model(self) -> Model:
        self._find_collections()
        self._find_views()
        self._kinds = {path: kind for path, kind in self._kinds.items() if kind.item or kind.is_map}
        self._names = _unique_names(self._kinds)
        found: dict[str, Modelled] = {}
        typed: list[Modelled] = []
        left_out = [each for each in self._app.left_out if not each.reason.startswith("it is called")]
        for each in self._described:
            try:
                made = self._checked(self._modelled(each))
            except ApiDocumentError as error:
                left_out.append(LeftOut(f"{each.operation.method} {each.operation.path}", str(error)))
                continue
            if each.pinned:
                typed.append(made)
            else:
                found[each.operation.name] = made
        every = [*found.values(), *typed]
        found = {each.operation.name: each for each in reversed(typed)} | found
        known = {f"{each.operation.method} {each.operation.path}" for each in every}
        left_out = [each for each in left_out if each.operation not in known]
        used = {each.collection for each in every}
        within = [segments(each.operation.path)[0] for each in every if each.fixed or each.pinned]
        used |= {self._names[up] for path in within for up in self._above(path)}
        used |= {self._names[up] for path in self._kinds if self._names[path] in used for up in self._above(path)}
        collections = {
            self._names[path]: self._collection(kind, every)
            for path, kind in self._kinds.items()
            if self._names[path] in used
        }
        named = {at.collection for each in collections.values() for at in each.home if is_word(at.key)}
        collections = {
            name: msgspec.structs.replace(each, named=name in named) for name, each in collections.items()
        }
        above = {name: self._links_above(name, collections, found.values()) for name in collections}
        collections = {name: _linked(each, collections, above[name]) for name, each in collections.items()}
        collections = {
            name: msgspec.structs.replace(each, counters=tuple(_counters(each, collections)))
            for name, each in collections.items()
        }
        return Model(self._app, self._document, found, collections, tuple(left_out), self._fits, tuple(typed))

    def _links_above(self, name: str, every: Mapping[str, Collection], made: Iterable[Modelled]) -> list[Link]:
        """To the records in whose paths those of a collection are listed."""
        found: list[Link] = []
        for each in made:
            path, parameters = segments(each.operation.path)
            for field, parameter in each.fixed.items() if each.collection == name else ():
                target = self._names.get(path[: _places(path)[parameters.index(parameter)]])
                if target is not None and target in every:
                    schema = flat(fields_of(every[name].item).get(field, {}))
                    many, inner = kind_of(schema) == "array", flat(schema.get("items") or {})
                    embedded = kind_of(inner if many else schema) == "object"
                    found.append(Link(field, target, many, embedded))
        return found

    def _find_collections(self) -> None:
        for each in self._described:
            self._note_item(each)
        for each in self._described:
            self._note_list(each)
        for each in self._described:
            self._note_body(each)
        for kind in self._kinds.values():
            _find_key(kind)

    def _note_item(self, each: Described) -> None:
        """A path that ends with a parameter is one record of a collection, which a GET shows."""
        if each.path[-1:] != ("{}",) or len(each.path) < 2:
            return
        kind = self._kind(each.path[:-1])
        kind.has_items, kind.key_name = True, kind.key_name or each.parameters[-1]
        kind.key_parameter = max(kind.key_parameter, each.key_schema, key=len)
        schema = each.reply.schema or {}
        shape = item_shape(schema, [kind.noun])
        if each.operation.method == "GET" and shape is not None and list_shape(schema, [kind.noun]) is None:
            kind.reads.append(each)
            kind.item = _with(kind.item, shape.item)

    def _note_list(self, each: Described) -> None:
        """A GET of several records is a collection."""
        if each.operation.method != "GET" or each.path[-1:] in ((), ("{}",)):
            return
        shape = list_shape(each.reply.schema or {}, [self._kind(each.path, make=False).noun])
        if shape is not None:
            kind = self._kind(each.path)
            kind.lists.append(each)
            kind.is_map = kind.is_map or shape.holds == "map"
            kind.listed = shape.item
            kind.item = _with(kind.item, shape.item)

    def _note_body(self, each: Described) -> None:
        """What a collection or a record is written with belongs to it, and so does what is answered."""
        known = self._kinds.get(each.path)
        if each.operation.method == "POST" and known is not None:
            known.creates.append(each)
            shape = item_shape(each.reply.schema or {}, [known.noun])
            if shape is not None and (not known.item or likeness(known.item, shape.item) >= _ALIKE):
                known.item = _with(known.item, shape.item)
        kind = known or (self._kinds.get(each.path[:-1]) if each.path[-1:] == ("{}",) else None)
        if kind is None or each.sent is None or not (kind.reads or kind.lists):
            return
        if each.operation.method in ("POST", "PUT", "PATCH"):
            kind.item = _with(kind.item, _stored(each.sent))

    def _find_views(self) -> None:
        """Lists that show records of another collection: some of them, or those of a record above them."""
        for path, kind in self._kinds.items():
            if kind.has_items or not kind.lists:
                continue
            nouns = (
                at for at in self._kinds if at[:-1] == path[:-1] and at != path and _is_plural(at[-1], path[-1])
            )
            above = next(
                (
                    at
                    for at in (path[:-1], path[:-2], *nouns)
                    if "{}" not in path[min(len(at), len(path) - 1) :] and self._shows(at, kind)
                ),
                None,
            )
            if above is not None:
                self._views[path] = (above, {})
                whole = self._kinds[above]
                whole.lists, whole.creates = whole.lists + kind.lists, whole.creates + kind.creates
                continue
            for other_path, other in self._kinds.items():
                if other is kind or not other.has_items or other.noun != kind.noun or len(other_path) >= len(path):
                    continue
                fixed = self._fixed(path, kind.lists[0].parameters, other)
                if fixed and likeness(other.item, kind.listed) >= _ALIKE:
                    self._views[path] = (other_path, fixed)
                    break
        for path in self._views:
            del self._kinds[path]

    def _shows(self, path: Path, kind: _Kind) -> bool:
        above = self._kinds.get(path)
        return above is not None and above.has_items and likeness(above.item, kind.listed) >= _ALIKE

    def _fixed(self, path: Path, parameters: Sequence[str], other: _Kind) -> dict[str, str]:
        """The fields of another collection that the path parameters decide, each by its parameter; empty if that
        cannot be told. Where no field shows what a record is in, it has one that nobody sees.
        """
        fixed: dict[str, str] = {}
        for place, parameter in zip(_places(path), parameters, strict=False):
            owner = noun_of(split_words(path[place - 1])) if place else ""
            names = (plain(parameter), f"{owner}id", owner)
            known = (each for each in fields_of(other.item) if plain(each) in names and plain(each) != "id")
            above = self._kinds.get(path[:place])
            field = next(known, "")
            if not field and (above is None or not above.has_items):
                return {}
            fixed[field or f"{HIDDEN}{owner}"] = parameter
        return fixed

    def _modelled(self, each: Described) -> Modelled:
        if each.problem:
            raise NotModelledError(each.problem)
        method, path = each.operation.method, each.path
        if method not in ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"):
            raise NotModelledError(f"what {method} does is not known")
        of_one = self._kinds.get(path[:-1]) if path[-1:] == ("{}",) else None
        if of_one is not None and list_shape(each.reply.schema or {}) is None:
            return self._of_item(each, of_one)
        target, fixed = self._views.get(path, (path, {}))
        if target in self._kinds:
            return self._of_collection(each, self._kinds[target], fixed)
        if path in self._views:
            return self._alone(each)
        if of_one is not None:
            return self._of_item(each, of_one)
        if path[-1:] == ("{}",):
            raise NotModelledError(NO_RECORDS)
        return self._alone(each)

    def _of_collection(self, each: Described, kind: _Kind, fixed: dict[str, str]) -> Modelled:
        method = each.operation.method
        if (key := _named_key(each, kind)) and (
            method != "GET" or list_shape(each.reply.schema or {}, [kind.noun]) is None
        ):
            return self._of_item(each, kind, key)
        if method in ("GET", "HEAD"):
            return self._list(each, kind, fixed)
        if method == "POST":
            if each.body is not None and each.sent is None:
                several = each.body.shape is not None
                raise NotModelledError("its body has several records" if several else "its body is no record")
            return self._made(each, "create", kind, fixed=fixed, shape=self._answered(each, kind))
        if method == "DELETE":
            _refuse_unknown(_asked(each))
            query = self._query(each, kind, fixed)
            said = {*split_words(each.operation.summary), *split_words(each.operation.description)}
            if not query.filters and not said & _ALL:
                raise NotModelledError("which of the records it deletes is not known")
            return self._made(each, "clear", kind, fixed=fixed, query=query, shape=self._many(each, kind))
        raise NotModelledError("it writes a whole collection at once")

    def _list(self, each: Described, kind: _Kind, fixed: Mapping[str, str]) -> Modelled:
        shape = self._many(each, kind)
        if shape is None and each.operation.method == "GET":
            return self._alone(each)
        query = self._query(each, kind, fixed)
        _refuse_unknown(query.ignored)
        return self._made(each, "list", kind, fixed=fixed, query=query, shape=shape)

    def _query(self, each: Described, kind: _Kind, fixed: Mapping[str, str]) -> ListQuery:
        return list_query(each.operation, kind.item, kind.key, [*each.parameters, *fixed.values()])

    def _of_item(self, each: Described, kind: _Kind, key: str = "") -> Modelled:
        method = each.operation.method
        named, shape = key or each.parameters[-1], self._answered(each, kind)
        if method in ("GET", "HEAD"):
            if shape is None and method == "GET":
                raise NotModelledError(_no_record(each.reply))
            return self._made(each, "get", kind, key=named, shape=shape)
        if method == "DELETE":
            return self._made(each, "delete", kind, key=named, shape=shape)
        if method == "PUT" and each.body is None and kind.lists:  # it is to be there
            return self._made(each, "replace", kind, key=named, shape=shape, partial=True, upserts=True)
        if each.sent is None:
            raise NotModelledError("what it changes is not known: its body is no record")
        if method == "POST" and likeness(each.sent, kind.item) < _ALIKE:
            raise NotModelledError("what it changes is not known: its body has other fields than the records")
        role: Role = "replace" if method == "PUT" else "update"
        needed = [name for name in each.sent.get("required", ()) if name != kind.key]
        partial = role == "replace" and not each.is_free and not needed
        upserts = role == "replace" and "201" in each.statuses
        return self._made(each, role, kind, key=named, shape=shape, partial=partial, upserts=upserts)

    def _alone(self, each: Described) -> Modelled:
        """A part of a record or of the whole, an action, or a search."""
        method, above = each.operation.method, each.path[:-1]
        words = split_words(each.path[-1]) if each.path else []
        if method == "POST" and above in self._kinds and set(words) & _SEARCHING:
            kind = self._kinds[above]
            if (shape := self._many(each, kind)) is not None:
                query = self._query(each, kind, {})
                return self._made(each, "list", kind, query=query, shape=shape)
        if method == "POST" and (made := self._made_within(each)) is not None:
            return made
        if method in ("POST", "PUT", "PATCH", "DELETE") and above[-1:] == ("{}",) and above[:-1] in self._kinds:
            kind = self._kinds[above[:-1]]
            effect = effect_of(words, fields_of(kind.item), _sent(each.body), undone=method == "DELETE")
            if effect is not None:
                shape = self._answered(each, kind)
                return self._made(each, "act", kind, key=each.parameters[-1], shape=shape, effect=effect)
        if method in ("GET", "HEAD"):
            return self._part(each)
        read = next(
            (one for one in self._described if one.path == each.path and one.operation.method == "GET"), None
        )
        if method in ("PUT", "PATCH", "POST") and read is not None and not read.problem:
            return self._part_written(each, read)
        if method == "POST" and not words:
            raise NotModelledError("what it does is not known: its path names nothing")
        raise NotModelledError(f"what {method} {'/'.join(words) or '/'} does cannot be told from the document")

    def _made_within(self, each: Described) -> Modelled | None:
        """A creation at a path under another record, of a record that has a path of its own."""
        noun = noun_of(split_words(each.path[-1])) if each.path else ""
        for kind in self._kinds.values() if each.sent is not None else ():
            if kind.noun != noun or not kind.has_items or len(kind.path) >= len(each.path):
                continue
            shape, fixed = self._answered(each, kind), self._fixed(each.path, each.parameters, kind)
            if fixed and (shape is not None or likeness(each.sent or {}, kind.item) >= _ALIKE):
                return self._made(each, "create", kind, fixed=fixed, shape=shape)
        return None

    def _part(self, each: Described) -> Modelled:
        if each.operation.method == "GET" and each.reply.schema is None:
            raise NotModelledError(NO_SCHEMA)
        _refuse_unknown(_asked(each))
        return Modelled(
            operation=each.operation,
            role="read",
            reply=each.reply,
            path=each.path,
            scopes=each.parameters,
            errors=each.errors,
            part=each.reply.schema or {},
            query=ListQuery(ignored=tuple(one for one in each.operation.parameters if one.place == "query")),
        )

    def _part_written(self, each: Described, read: Described) -> Modelled:
        part = self._part(read)
        shape = item_shape(read.reply.schema or {})
        if each.sent is None or shape is None:
            raise NotModelledError("what it changes is not known: its body is no record")
        if likeness(each.sent, shape.item) < _ALIKE:
            raise NotModelledError(
                "what it changes is not known: its body has other fields than what is read there"
            )
        return msgspec.structs.replace(
            part,
            operation=each.operation,
            role="write",
            reply=each.reply,
            body=each.body,
            shape=shape,
            errors=each.errors,
        )

    def _made(self, each: Described, role: Role, kind: _Kind, **more: Json) -> Modelled:
        scopes = tuple(
            one for one in each.parameters if one != more.get("key") and one not in more.get("fixed", {}).values()
        )
        if role == "create" and len(scopes) != len(_places(kind.path)):
            raise NotModelledError("what the record is made in is not known")
        return Modelled(
            operation=each.operation,
            role=role,
            reply=each.reply,
            collection=self._names[kind.path],
            body=each.body if role in ("create", "replace", "update", "act") else None,
            scopes=scopes,
            pinned=each.pinned,
            errors=each.errors,
            **more,
        )

    def _many(self, each: Described, kind: _Kind) -> Shape | None:
        """Where an answer has several records."""
        shape = list_shape(each.reply.schema or {}, [kind.noun])
        known = shape is not None and bool(fields_of(shape.item)) and bool(fields_of(kind.item))
        return None if shape is None or (known and likeness(shape.item, kind.item) < _ALIKE) else shape

    def _answered(self, each: Described, kind: _Kind) -> Shape | None:
        """Where an answer has the record; None if it has none, as one that says that all went well."""
        shape = None if each.reply.schema is None else item_shape(each.reply.schema, [kind.noun])
        if shape is None:
            return None
        fields = fields_of(shape.item)
        return shape if not fields or kind.key in fields or likeness(shape.item, kind.item) >= _ALIKE else None

    def _checked(self, made: Modelled) -> Modelled:
        """The operation, if an answer can be drawn for it."""
        if made.reply.schema is not None:
            try:
                Drawer("check", self._fits).value(made.reply.schema, "", made.operation.name)
            except NoValueError as error:
                raise NotModelledError(f"for its answer {error}") from error
        return made

    def _kind(self, path: Path, *, make: bool = True) -> _Kind:
        known = self._kinds.get(path)
        if known is None:
            statics = [each for each in path if each != "{}" and not NOT_NAMES.fullmatch(each)]
            known = _Kind(path, noun_of(split_words(statics[-1])) if statics else "record")
            if make:
                self._kinds[path] = known
        return known

    def _above(self, path: Path) -> list[Path]:
        return [path[:place] for place in range(len(path)) if path[:place] in self._kinds and path[place] == "{}"]

    def _collection(self, kind: _Kind, made: Iterable[Modelled]) -> Collection:
        scopes = []
        every = (each for each in self._described if each.path[: len(kind.path)] == kind.path)
        parameters = next((each.parameters for each in every), ())
        for place, parameter in zip(_places(kind.path), parameters, strict=False):
            schema = self._schemas.get((kind.path[: place + 1], parameter), {})
            above = self._kinds.get(kind.path[:place])
            is_key = above is not None and (above.has_items or _may_be(schema, above.key_schema))
            scopes.append(Scope(parameter, self._names[kind.path[:place]] if is_key else "", schema))
        name = self._names[kind.path]
        own = [each for each in made if each.collection == name]
        fields = (_sent(each.body) for each in own if each.role == "create" and "409" in each.errors)
        names = [each for one in fields for each in one if each in fields_of(kind.item)]
        unique = next((each for name in _UNIQUE for each in names if plain(each) == name), "")
        return Collection(
            name=name,
            path=kind.path,
            noun=kind.noun,
            item=kind.item,
            key=kind.key,
            key_schema=kind.key_schema,
            scopes=tuple(scopes),
            unique=unique,
            given=frozenset(field for each in own for field in _sent(each.body)),
            examples=_examples(kind),
            home=next((self._home(each) for each in own if each.pinned), ()),
            has_types=any(each.pinned and segments(each.operation.path)[0] == kind.path for each in made),
            free=any(each.is_free for each in self._described if each.path in (kind.path, (*kind.path, "{}"))),
        )

    def _home(self, made: Modelled) -> tuple[Home, ...]:
        path, names = segments(made.operation.path)
        found: list[Home] = []
        for place, name in zip(_places(path), names, strict=True):
            if name in made.pinned:
                what = [each for each in split_words(name) if each not in _KEY_WORDS]
                found.append(Home(" ".join(what), self._names.get(path[:place], ""), made.pinned[name]))
        return tuple(found)


def _is_plural(one: str, other: str) -> bool:
    """Whether two names in paths are one noun, as `/tag/{id}` and `/tags` have it."""
    return [singular(each) for each in split_words(one)] == [singular(each) for each in split_words(other)]


def _places(path: Path) -> list[int]:
    """Where the path has parameters."""
    return [place for place, each in enumerate(path) if each == "{}"]


def _parameter_schemas(described: Sequence[Described]) -> dict[tuple[Path, str], Schema]:
    """Of the path parameters, by the path up to each, and its name."""
    found: dict[tuple[Path, str], Schema] = {}
    for each in described:
        own = {one.wire_name: one.schema for one in each.operation.parameters if one.place == "path"}
        for place, name in zip(_places(each.path), each.parameters, strict=False):
            found.setdefault((each.path[: place + 1], name), own.get(name, {}))
    return found


def _find_key(kind: _Kind) -> None:
    fields, name = fields_of(kind.item), plain(kind.key_name)
    own = [plain(kind.noun) + each for each in ("id", "uuid", "key", "name", "number")]
    ending = (split_words(kind.key_name) or ["id"])[-1]
    wanted = [name, f"{name}id"] if name not in ("", "id") else []
    if ending in ("id", "uuid", "guid", "pk"):
        wanted += ["id", *own[:2], "uuid", "guid", "uid", "pk", "key"]
    wanted += [ending, name.removeprefix(plain(kind.noun)), *map(plain, KEYS), *own]
    by_name = {plain(each): each for each in reversed(fields)}
    fit = (by_name[each] for each in wanted if each in by_name)
    kind.key = next(
        (each for each in fit if kind_of(flat(fields[each])) in ("string", "integer", "number", "")), ""
    )
    kind.key_schema = _key_schema(flat(fields.get(kind.key, {})), flat(kind.key_parameter))


def _sent(body: Body | None) -> Mapping[str, Schema]:
    return {} if body is None else body.fields


def _may_be(parameter: Schema, key: Schema) -> bool:
    """Whether a parameter may take the keys of a collection, which no operation of its own says."""
    return "enum" not in flat(parameter) and _same_type(parameter, key)


def _key_schema(field: Schema, parameter: Schema) -> Schema:
    """What a key is, by its field and by the parameter that names it in a path."""
    if not kind_of(field) or kind_of(parameter) == "integer":
        return parameter or {"type": "string"}
    if kind_of(field) != kind_of(parameter):
        return field
    return field | {word: parameter[word] for word in _BOUNDS if word in parameter}


def _named_key(each: Described, kind: _Kind) -> str:
    """The parameter of the query or the body that names the record, where the path does not."""
    if each.operation.method == "POST":
        return ""
    own = {"id", f"{kind.noun}id", plain(kind.key)} - {""}
    named = [
        one for one in each.operation.parameters if one.place in ("query", "body") and plain(one.wire_name) in own
    ]
    in_body = each.operation.method in ("PUT", "PATCH")
    return next((one.wire_name for one in named if one.required or (in_body and one.place == "body")), "")


def _asked(each: Described) -> list[Parameter]:
    """The parameters of the query."""
    places = ("query", "querystring")
    return [
        one for one in each.operation.parameters if one.place in places and one.wire_name not in each.parameters
    ]


def _refuse_unknown(parameters: Iterable[Parameter]) -> None:
    """Raises NotModelledError for one without which there is no call, and whose meaning is not known."""
    for each in parameters:
        if each.required and not each.preset:
            raise NotModelledError(f"what its parameter {each.wire_name!r} chooses is not known")


def _no_record(reply: Reply) -> str:
    if reply.schema is None:
        return NO_SCHEMA
    return "its answer is several records" if list_shape(reply.schema) else "its answer is no record"


def _stored(item: Schema) -> Schema:
    return {
        "properties": {name: each for name, each in fields_of(item).items() if each.get("writeOnly") is not True}
    }


def _with(known: Schema, more: Schema) -> Schema:
    """The fields of both; of the same name the known one, unless only the other says what it is."""
    fields = dict(fields_of(known))
    for name, each in fields_of(more).items():
        if name not in fields or not kind_of(flat(fields[name])):
            fields[name] = each
    return {"type": "object", "properties": fields} if fields else known or more


def _unique_names(kinds: Mapping[Path, _Kind]) -> dict[Path, str]:
    """For each collection the static parts of its path, or all of it."""
    found: dict[Path, str] = {}
    for path in kinds:
        short = "/".join(each for each in path if each != "{}" and not NOT_NAMES.fullmatch(each)) or "/".join(path)
        found[path] = short if short not in found.values() else "/".join(path)
    return found


def _linked(collection: Collection, every: Mapping[str, Collection], above: Sequence[Link]) -> Collection:
    links = [
        each
        for name, schema in fields_of(collection.item).items()
        if (each := _link(name, schema, collection, every))
    ]
    known = {each.field for each in links}
    others = {each.field: each for each in above if each.field not in known}
    return msgspec.structs.replace(collection, links=(*links, *others.values()))


def _link(name: str, schema: Schema, own: Collection, every: Mapping[str, Collection]) -> Link | None:
    """The link that a field is, by its name and type."""
    if name == own.key:
        return None
    schema, words = flat(schema), split_words(name)
    many = kind_of(schema) == "array"
    inner = flat(schema.get("items") or {}) if many else schema
    named_key = words[-1:] and singular(words[-1]) in ("id", "uuid", "key", "guid")
    noun = noun_of(words[:-1] if named_key else words)
    if noun == "parent" and named_key and len(own.scopes) == 0:
        return Link(name, own.name, many) if _same_type(inner, own.key_schema) else None
    target = _target(noun, own, every)
    if target is None or not noun:
        return None
    if kind_of(inner) == "object":
        is_it = target.key in fields_of(inner) or likeness(inner, target.item) >= _ALIKE
        return Link(name, target.name, many, embedded=True) if is_it and fields_of(inner) else None
    told = {*split_words(str(schema.get("description", ""))), *split_words(str(inner.get("description", "")))}
    known = named_key or inner.get("format") == "uuid" or (kind_of(inner) == "integer" and not many)
    known = known or (many and bool({singular(each) for each in told} & _KEY_WORDS))
    return Link(name, target.name, many) if known and _same_type(inner, target.key_schema) else None


def _counters(own: Collection, every: Mapping[str, Collection]) -> Iterator[Counter]:
    """As `note_count`, `notesTotal` and `num_notes` count notes."""
    for name, schema in fields_of(own.item).items():
        words = [each for each in split_words(name) if each != "of"]
        counted = [each for each in words if each not in _COUNTING]
        if kind_of(flat(schema)) != "integer" or len(counted) in (0, len(words)):
            continue
        for other in every.values():
            if other.noun != noun_of(counted) or other.name == own.name:
                continue
            inside = len(other.scopes) == len(own.scopes) + 1 and other.scopes[-1].parent == own.name
            link = next((each.field for each in other.links if each.collection == own.name and not each.many), "")
            if inside or link:
                yield Counter(name, other.name, "" if inside else link)
                break


def _target(noun: str, own: Collection, every: Mapping[str, Collection]) -> Collection | None:
    """The collection of this noun: the nearest in the paths. People have many names."""
    nouns = _PEOPLE if names_person(noun) else (noun,)
    fit = [each for wanted in nouns for each in every.values() if each.noun == wanted and each.name != own.name]
    near = [each for each in fit if len(each.scopes) <= len(own.scopes)]
    near = [each for each in near if not each.home or each.home[:-1] == own.home[:-1]]
    return max(near, key=lambda each: (_shared(each.path, own.path), -len(each.path)), default=None)


def _shared(one: Path, other: Path) -> int:
    return next(
        (at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
    )


def _same_type(one: Schema, other: Schema) -> bool:
    kinds = {kind_of(flat(each)) for each in (one, other)} - {""}
    return len(kinds) <= 1


def _examples(kind: _Kind) -> Examples:
    """Those of the answers and bodies, by field."""
    found: dict[str, list[Json]] = {}
    for each in (*kind.reads, *kind.lists, *kind.creates):
        for name, values in each.examples.items():
            found.setdefault(name, []).extend(values)
    return found

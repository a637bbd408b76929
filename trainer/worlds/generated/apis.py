"""An app's API: its shape, the kinds of records that it keeps, its operations, and the names its makers chose.

The shape is how one logs in, pages, reads rows and writes; held-out shapes combine values that never meet in
training. Two kinds of apps are drawn. Those of the gym have one kind of records, which operations change in all
the ways that APIs have; those of `crud` have up to two, which are created, updated and deleted.
"""

from collections.abc import Mapping
from functools import cached_property
from random import Random
from typing import ClassVar, Literal, NamedTuple, Self, TypeAlias, get_args

import msgspec

from app.apis.naming import operation_name
from trainer.worlds.generated.words import (
    CRUD_WORDS,
    GYM_WORDS,
    MORE_GYM_WORDS,
    OPTIONS,
    OTHERS,
    QUALIFIERS,
    SPARE_FIELDS,
    STATUS,
    TAKEN,
    Domain,
    Pool,
    Style,
    Verb,
    spell,
)

Pair = Mapping[str, str]  # two values by their axes
RecordField: TypeAlias = Literal["title", "link", "person", "label", "number", "date", "state"]
Method: TypeAlias = Literal["GET", "POST", "PUT", "PATCH", "DELETE"]
Role: TypeAlias = Literal[
    "login", "list", "show", "create", "update", "delete", "act", "search", "settings", "info", "other"
]

RECORD_FIELDS: tuple[RecordField, ...] = get_args(RecordField)
PAGE_SIZE = 4
_DESCRIBED, _CALLED = 0.4, 0.15  # of kinds: with a qualifier in the app's description, and in operations' names
_BY_LINK_ALONE = 0.35  # of kinds with links
_FEW = 8  # fields that no task asks for


class ApiShape(msgspec.Struct, frozen=True, kw_only=True):
    """One choice for each axis. A family of shapes draws some of them; the others stay plain."""

    auth: Literal["login", "query_token", "key", "open"]
    paging: Literal["page", "offset", "cursor", "link", "whole"]
    envelope: Literal["bare", "named", "data", "wrapped", "keyed", "named_keyed"]  # keyed ones map ids to rows
    nesting: Literal["flat", "grouped", "object"]  # fields beside the id, in a group, or the person an object
    ids: Literal["number", "string"]
    errors: Literal["strict", "soft", "limited"] = "strict"  # 4xx; 200 with ok: false, also while busy; or 429
    write: Literal["path", "body", "patch", "batch"]  # of states: an operation of its own, or an update
    rows: Literal["full", "partial", "undocumented"]  # in lists, see `lacks_field`
    filters: Literal["none", "equal"] = "none"  # of the list, by person and label
    update: Literal["PATCH", "PUT", "POST"] = "PATCH"
    body: Literal["flat", "wrapped"] = "flat"
    created: Literal["record", "id", "nothing"] = "record"  # what the answer to a creation has
    states: Literal["word", "flags"] = "word"  # one field that names the state, or a boolean for each
    style: Style

    @property
    def lacks_field(self) -> bool:
        """Whether rows of lists lack a field that only one record's own address has, documented or not."""
        return self.rows != "full"

    @property
    def is_keyed(self) -> bool:
        return self.envelope in ("keyed", "named_keyed")

    @property
    def is_possible(self) -> bool:
        """A bare list has no room for the next cursor. A map has no pages, and its keys are strings. Flags are
        called as people call the states.
        """
        if self.paging in ("cursor", "link") and self.envelope == "bare":
            return False
        if self.states == "flags" and self.style == "pascal":
            return False
        return not self.is_keyed or (self.paging == "whole" and self.ids == "string")


class ShapeFamily(msgspec.Struct, frozen=True):
    """Shapes that are drawn alike: the share of each value, in percent, and the pairs that pools hold out."""

    shares: Mapping[str, Mapping[str, int]]
    held_out: Mapping[Pool, tuple[Pair, ...]]

    @property
    def axes(self) -> dict[str, tuple[str, ...]]:
        """The values of each axis that is drawn."""
        return {axis: tuple(shares) for axis, shares in self.shares.items()}

    def held_out_pairs(self, shape: ApiShape, pool: Pool) -> list[Pair]:
        """Those that a pool holds out and the shape has."""
        pairs = self.held_out.get(pool, ())
        return [pair for pair in pairs if all(getattr(shape, axis) == value for axis, value in pair.items())]

    def pool_of(self, shape: ApiShape) -> Pool:
        return next((pool for pool in self.held_out if self.held_out_pairs(shape, pool)), "train")

    def draw(
        self,
        pool: Pool,
        rng: Random,
        *,
        unmet: frozenset[str] = frozenset(),
        more: Mapping[str, Mapping[str, int]] = {},
    ) -> ApiShape:
        """A shape of the pool, with a held-out pair of which a program meets both values: none is `unmet`. `more`
        replaces shares.
        """
        shares = {**self.shares, **more}
        while True:
            drawn = {axis: rng.choices(list(each), list(each.values()))[0] for axis, each in shares.items()}
            shape = msgspec.convert(drawn, ApiShape)
            pairs = self.held_out_pairs(shape, pool)
            met = pool == "train" or any(unmet.isdisjoint(pair.values()) for pair in pairs)
            if shape.is_possible and self.pool_of(shape) == pool and met:
                return shape


GYM = ShapeFamily(
    shares={
        "auth": {"login": 25, "query_token": 10, "key": 25, "open": 40},
        "paging": {"page": 25, "offset": 25, "cursor": 12, "link": 8, "whole": 30},
        "envelope": {"bare": 30, "named": 30, "data": 25, "wrapped": 15},
        "nesting": {"flat": 76, "grouped": 12, "object": 12},
        "ids": {"number": 60, "string": 40},
        "errors": {"strict": 84, "soft": 8, "limited": 8},
        "write": {"path": 35, "body": 20, "patch": 30, "batch": 15},
        "rows": {"full": 85, "partial": 15},
        "filters": {"none": 65, "equal": 35},
        "style": {"snake": 45, "camel": 30, "kebab": 10, "pascal": 15},
    },
    held_out={
        "test": (
            {"paging": "page", "envelope": "wrapped"}, {"paging": "offset", "envelope": "data"},
            {"paging": "cursor", "envelope": "named"}, {"paging": "link", "envelope": "data"},
            {"auth": "key", "write": "batch"}, {"auth": "query_token", "write": "patch"},
            {"auth": "login", "write": "body"}, {"errors": "soft", "nesting": "object"},
        ),
        "validation": (
            {"paging": "page", "envelope": "data"}, {"paging": "link", "envelope": "wrapped"},
            {"auth": "open", "write": "batch"}, {"errors": "limited", "nesting": "grouped"},
        ),
    },
)  # fmt: skip
"""Most APIs are plain in most respects, and few in all."""

GYM_LESSONS = {"rows": {"full": 65, "partial": 35}}
"""What lessons meet more often, since it is hard."""

CRUD = ShapeFamily(
    shares={
        "auth": {"open": 75, "key": 25},
        "envelope": {"bare": 28, "named": 20, "data": 20, "keyed": 20, "named_keyed": 12},
        "paging": {"whole": 75, "page": 25},
        "nesting": {"flat": 85, "grouped": 15},
        "ids": {"number": 45, "string": 55},
        "update": {"PATCH": 45, "PUT": 40, "POST": 15},
        "body": {"flat": 82, "wrapped": 18},
        "write": {"path": 55, "patch": 45},
        "created": {"record": 50, "id": 30, "nothing": 20},
        "rows": {"full": 70, "partial": 20, "undocumented": 10},
        "states": {"word": 70, "flags": 30},
        "style": {"snake": 45, "camel": 30, "kebab": 10, "pascal": 15},
    },
    held_out={
        "test": (
            {"envelope": "keyed", "write": "patch"},
            {"envelope": "named", "paging": "page"},
            {"envelope": "named_keyed", "body": "wrapped"},
            {"auth": "key", "envelope": "data"},
        ),
        "validation": ({"envelope": "bare", "paging": "page"}, {"auth": "key", "nesting": "grouped"}),
    },
)


class Nouns(NamedTuple):
    """What records are called."""

    one: str
    many: str


class Collection(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """Records of one kind, which is their schema: what they and their fields are called, and what they lack."""

    domain: Domain
    style: Style
    words: dict[RecordField, str] = {}  # names of the fields that no domain has
    is_strict: bool = False  # an update sets a label that the domain lists, or a state, and nothing else
    has_flags: bool = False  # a boolean for each state, instead of one field
    has_link: bool = False  # an address on the web
    required: RecordField = "title"  # of a new one
    spare: tuple[str, ...] = ()  # fields that can be written, and that no task asks for
    hidden: RecordField  # that list rows lack, if they are partial
    described_by: str = ""  # before the noun in the description of the app, such as "page"
    called_by: str = ""  # before the noun in the names of operations

    @cached_property
    def fields(self) -> dict[RecordField, str]:
        """The wire names."""
        lacking = {"link": not self.has_link, "state": self.has_flags}
        return {field: spell(words, self.style) for field, words in self.prose.items() if not lacking.get(field)}

    @property
    def prose(self) -> dict[RecordField, str]:
        """The names of fields in words."""
        domain = self.domain
        own: dict[RecordField, str] = {
            "person": domain.person,
            "label": domain.label,
            "number": domain.number,
            "date": domain.date,
            "state": "flag" if self.has_flags else domain.state,
        }
        return {**self.words, **own}

    def renamed(self, field: RecordField, words: str) -> Self:
        """The kind, if a field had another name."""
        if field in self.words:
            return msgspec.structs.replace(self, words={**self.words, field: words})
        return msgspec.structs.replace(self, domain=msgspec.structs.replace(self.domain, **{field: words}))

    @property
    def writable(self) -> tuple[RecordField, ...]:
        return ("state", "label") if self.is_strict else tuple(self.prose)

    @property
    def is_wide(self) -> bool:
        return len(self.spare) > _FEW

    @property
    def distractors(self) -> list[str]:
        """The wire names of fields that rows show, and that no task asks for."""
        return [spell(words, self.style) for words in self.domain.distractors]

    @property
    def extras(self) -> list[str]:
        """The wire names of all fields that no task asks for."""
        return [*self.distractors, *(spell(words, self.style) for words in self.spare)]

    @property
    def writable_extras(self) -> list[str]:
        return [] if self.is_strict else self.extras

    @property
    def verbs(self) -> tuple[Verb, ...]:
        """Without those that mean what every collection can do."""
        return self.domain.verbs if self.is_strict else verbs_of(self.domain)

    @property
    def states(self) -> list[str]:
        return [self.domain.initial, *(verb.done for verb in self.verbs)]

    @property
    def flags(self) -> tuple[str, ...]:
        """The wire names of booleans, each a state."""
        return tuple(verb.done for verb in self.verbs) if self.has_flags else ()

    @property
    def asked_states(self) -> list[str]:
        """Those that a task may ask for: no flag says that nothing was done."""
        return [*self.flags] or self.states

    @property
    def described(self) -> Nouns:
        return self._qualified(self.described_by)

    @property
    def called(self) -> Nouns:
        return self._qualified(self.called_by)

    @property
    def resource(self) -> str:
        return spell(self.domain.nouns, self.style)

    @property
    def singular(self) -> str:
        return spell(self.domain.noun, self.style)

    def _qualified(self, qualifier: str) -> Nouns:
        return Nouns(*(f"{qualifier} {noun}".strip() for noun in (self.domain.noun, self.domain.nouns)))


def verbs_of(domain: Domain) -> tuple[Verb, ...]:
    return tuple(verb for verb in domain.verbs if verb.base not in TAKEN)


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """An operation: its name in the document, and its address."""

    role: Role
    id: str
    method: Method
    path: str
    collection: int = 0  # the place of what it is about
    verb: Verb | None = None

    @property
    def python(self) -> str:
        """Its name in the agent's code."""
        return operation_name(self.id, self.method, self.path)


class Api(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """Wire names are spelled in the style of the shape."""

    summaries: ClassVar[Mapping[Role, str]]  # of operations, with {noun}, {nouns} and {act}
    has_components: ClassVar[bool]  # its document has the schemas of records apart

    name: str
    shape: ApiShape
    words: dict[str, str]
    collections: tuple[Collection, ...]
    about: str
    version: str = "1"  # of the server
    status: tuple[str, ...] = ()  # what else it says of itself
    options: tuple[str, ...] = ()  # of lists
    first_page: Literal[0, 1] = 1

    def with_word(self, kind: str, words: str) -> Self:
        """The API, if its makers had chosen another name."""
        return msgspec.structs.replace(self, words={**self.words, kind: words})

    def in_shape(self, axis: str, value: str) -> Self:
        """The API, if its makers had chosen another value on one axis of its shape."""
        return msgspec.structs.replace(self, shape=msgspec.structs.replace(self.shape, **{axis: value}))

    def renamed(self, field: RecordField, words: str, *, at: int = 0) -> Self:
        """The API, if its makers had given a field another name."""
        every = list(self.collections)
        every[at] = every[at].renamed(field, words)
        return msgspec.structs.replace(self, collections=tuple(every))

    def wire(self, word: str) -> str:
        """The chosen word of a kind, spelled."""
        return spell(self.words[word], self.shape.style)

    @property
    def header(self) -> str:
        return self.words["header"]

    @property
    def id_name(self) -> str:
        return self.wire("id")

    @property
    def id_parameter(self) -> str:
        """What its addresses call the id."""
        return self.id_name

    @property
    def status_names(self) -> list[str]:
        return [spell(words, self.shape.style) for words in self.status]

    @cached_property
    def routes(self) -> tuple[Route, ...]:
        raise NotImplementedError

    def route(self, role: Role, collection: int = 0, verb: Verb | None = None) -> Route:
        return next(
            each
            for each in self.routes
            if each.role == role and each.verb == verb and (role == "info" or each.collection == collection)
        )

    def _route(
        self, role: Role, words: str, method: Method, path: str, at: int = 0, verb: Verb | None = None
    ) -> Route:
        name = spell(words, self.shape.style)
        return Route(role=role, id=name, method=method, path=path, collection=at, verb=verb)


class GymApi(Api, frozen=True, kw_only=True, dict=True):
    """One kind of records."""

    has_components = False
    summaries = {
        "login": "log in with your password",
        "list": "list {nouns}",
        "show": "show one {noun}",
        "update": "update one {noun}",
        "act": "{act} one {noun}",
        "settings": "settings of this app",
        "other": "export all {nouns} as a file",
    }

    @property
    def collection(self) -> Collection:
        return self.collections[0]

    @property
    def domain(self) -> Domain:
        return self.collection.domain

    @property
    def fields(self) -> dict[RecordField, str]:
        return self.collection.fields

    @property
    def hidden(self) -> RecordField:
        return self.collection.hidden

    @property
    def id_parameter(self) -> str:
        return "id"

    @cached_property
    def routes(self) -> tuple[Route, ...]:
        noun, nouns, at = self.domain.noun, self.domain.nouns, f"/{spell(self.domain.nouns, 'kebab')}"
        routes = [
            self._route("list", f"{self.words['list']} {nouns}", "GET", at),
            self._route("show", f"{self.words['show']} {noun}", "GET", f"{at}/{{id}}"),
            self._route("update", f"{self.words['update']} {noun}", "PATCH", f"{at}/{{id}}"),
            self._route("settings", f"get {self.words['list']} settings", "GET", "/settings"),
            self._route("other", f"export {nouns}", "POST", f"{at}/export"),
        ]
        if self.shape.auth in ("login", "query_token"):
            routes.insert(0, self._route("login", self.words["login"], "POST", "/sessions"))
        if self.shape.write != "patch":
            routes += [self._act(verb, at) for verb in self.domain.verbs]
        return tuple(routes)

    def _act(self, verb: Verb, at: str) -> Route:
        one, many = f"{verb.base} {self.domain.noun}", f"{verb.base} {self.domain.nouns}"
        slug = spell(verb.base, "kebab")
        if self.shape.write == "batch":
            return self._route("act", many, "POST", f"{at}/{slug}-many", verb=verb)
        path = f"{at}/{{id}}/{slug}" if self.shape.write == "path" else f"{at}/{slug}"
        return self._route("act", one, "POST", path, verb=verb)


class CrudApi(Api, frozen=True, kw_only=True, dict=True):
    """One or two kinds of records, and operations that no task needs."""

    has_components = True
    summaries = {
        "list": "list {nouns}",
        "search": "search {nouns}",
        "show": "one {noun}",
        "create": "create a {noun}",
        "update": "change a {noun}",
        "delete": "delete a {noun}",
        "act": "{act} a {noun}",
        "info": "status of the server",
        "other": "",
    }

    others: tuple[str, ...]
    has_search: bool
    order: int  # of operations in its document: 0, one kind of records after the other; 1, by address; else any

    @cached_property
    def routes(self) -> tuple[Route, ...]:
        info = self._route("info", self.words["info"], "GET", f"/{spell(self.words['info'], 'kebab')}")
        routes = [*(route for at in range(len(self.collections)) for route in self._routes(at)), info]
        if self.order == 1:
            routes.sort(key=lambda each: (each.path, each.method))
        elif self.order:
            Random(self.order).shuffle(routes)
        return tuple(routes)

    def _routes(self, at: int) -> list[Route]:
        collection = self.collections[at]
        noun, nouns = collection.called
        many = f"/{spell(nouns, 'kebab')}"
        one = f"{many}/{{{self.id_name}}}"
        places: list[tuple[Role, str, Method, str]] = [
            ("list", nouns, "GET", many),
            ("create", noun, "POST", many),
            ("show", noun, "GET", one),
            ("update", noun, self.shape.update, one),
            ("delete", noun, "DELETE", one),
        ]
        routes = [
            self._route(role, f"{self.words[role]} {words}", method, path, at)
            for role, words, method, path in places
        ]
        if self.shape.write == "path":
            for verb in collection.verbs:
                path = f"{one}/{spell(verb.base, 'kebab')}"
                routes.append(self._route("act", f"{verb.base} {noun}", "POST", path, at, verb))
        if self.has_search:
            routes.append(self._route("search", f"search {nouns}", "GET", f"{many}/search", at))
        return [*routes, *(self._other(words, at) for words in self.others)]

    def _other(self, words: str, at: int) -> Route:
        noun, nouns = self.collections[at].called
        method, _, name = words.partition(" ")
        many = f"/{spell(nouns, 'kebab')}"
        place = f"{many}/{{{self.id_name}}}" if "{noun}" in name else many
        said = name.format(noun=noun, nouns=nouns)
        slug = spell(name.format(noun="", nouns=""), "kebab")
        called = f"get {said}" if method == "GET" else said
        return self._route("other", called, msgspec.convert(method, Method), f"{place}/{slug}", at)


def draw_gym_api(name: str, domain: Domain, shape: ApiShape, rng: Random, pool: Pool) -> GymApi:
    """With `pool` "train", from more words."""
    more = MORE_GYM_WORDS if pool == "train" else {}
    words = {kind: rng.choice(words + more.get(kind, ())) for kind, words in GYM_WORDS.items()}
    first_page: Literal[0, 1] = rng.choice((0, 1))
    hidden: RecordField = rng.choice(("label", "number", "date"))
    return GymApi(
        name=name,
        shape=shape,
        words={"id": "id", **words},
        collections=(Collection(domain=domain, style=shape.style, is_strict=True, hidden=hidden),),
        about=f"{domain.nouns} with {domain.person}, {domain.label} and {domain.number}",
        first_page=first_page,
    )


def draw_crud_api(name: str, domains: tuple[Domain, ...], shape: ApiShape, rng: Random) -> CrudApi:
    taken = {
        words
        for each in domains
        for words in (each.person, each.label, each.number, each.date, each.state, *each.distractors)
    }
    words = {kind: rng.choice([each for each in known if each not in taken]) for kind, known in CRUD_WORDS.items()}
    # a flag's name is that of its state, in most styles only if that is one word
    has_flags = shape.states == "flags" and not any(
        " " in verb.done for each in domains for verb in verbs_of(each)
    )
    collections = tuple(_draw_collection(each, words, shape.style, rng, has_flags=has_flags) for each in domains)
    nouns = " and ".join(each.described.many for each in collections)
    about = rng.choice(
        (
            f"{nouns}",
            f"keeps {nouns}",
            f"API for {nouns}",
            f"# {name.title()}\n\nManage {nouns} over REST.",
            f"## {name.title()} API\n\nKeeps {nouns}.\n\nAll endpoints speak JSON.",
        )
    )
    return CrudApi(
        name=name,
        shape=shape,
        words=words,
        collections=collections,
        others=tuple(rng.sample(OTHERS, rng.choice((0, 1, 2, 5)))),
        options=tuple(rng.sample(OPTIONS, rng.choice((0, 0, 1, 2)))),
        version=f"{rng.randint(0, 9)}.{rng.randint(0, 30)}.{rng.randint(0, 40)}",
        status=tuple(rng.sample(STATUS, rng.choice((0, 0, 3, 7)))),
        has_search=words["list"] != "search" and rng.random() < 0.3,
        order=rng.choice((0, 1, 1, rng.randrange(2, 1000))),
        about=about,
    )


def _draw_collection(
    domain: Domain, words: Mapping[str, str], style: Style, rng: Random, *, has_flags: bool
) -> Collection:
    hidden: tuple[RecordField, ...] = ("person", "label", "number", "date", *(() if has_flags else ("state",)))
    return Collection(
        domain=domain,
        style=style,
        has_flags=has_flags,
        words={"title": words["title"], "link": words["link"]},
        has_link=(has_link := rng.random() < 0.6),
        required="link" if has_link and rng.random() < _BY_LINK_ALONE else "title",
        hidden=rng.choice(hidden),
        spare=tuple(rng.sample(SPARE_FIELDS, rng.choice((0, 1, 3, _FEW, 40)))),
        described_by=rng.choice(QUALIFIERS) if rng.random() < _DESCRIBED else "",
        called_by=rng.choice(QUALIFIERS) if rng.random() < _CALLED else "",
    )

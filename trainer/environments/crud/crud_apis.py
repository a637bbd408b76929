"""An app that keeps records: its collections, the shape of its API, and the names that its makers chose."""

from functools import cached_property
from random import Random
from typing import Literal, TypeAlias, get_args, get_type_hints

import msgspec

from app.apis.names import operation_name
from trainer.environments.gym.domains import Domain, Verb
from trainer.environments.gym.pools import Pool
from trainer.environments.gym.spelling import Style, spell

Role: TypeAlias = Literal["list", "show", "create", "update", "delete", "act", "info", "other"]
Method: TypeAlias = Literal["GET", "POST", "PUT", "PATCH", "DELETE"]
RecordField: TypeAlias = Literal["title", "link", "person", "label", "number", "date", "state"]

RECORD_FIELDS: tuple[RecordField, ...] = get_args(RecordField)
PAGE_SIZE = 4
_WORDS: dict[str, tuple[str, ...]] = {
    "list": ("list", "get all", "search", "fetch", "get", "browse", "find"),
    "show": ("get", "show", "read", "view", "fetch"),
    "create": ("create", "add", "new", "post", "register"),
    "update": ("update", "edit", "change", "modify", "set"),
    "delete": ("delete", "remove", "drop", "destroy"),
    "info": ("get system info", "show status", "server version", "get about", "read health"),
    "version": ("version", "release", "build", "server version"),
    "id": ("id", "uuid", "key", "id", "uid"),
    "title": ("title", "name", "title", "display name", "subject"),
    "link": ("url", "link", "url", "address", "web page"),
    "data": ("items", "results", "data", "entries"),
    "group": ("attributes", "details", "fields", "properties"),
    "page": ("page", "page number"),
    "header": ("X-Api-Key", "X-Token", "access_token", "X-Auth-Token"),
    "error": ("error", "message", "detail"),
}
_OTHERS = (
    "GET {noun} history", "POST import {nouns}", "POST export {nouns}", "GET {noun} comments",
    "POST {noun} share link", "GET {nouns} settings", "GET {nouns} report", "POST {nouns} sync",
    "GET {noun} permissions", "GET {nouns} feed",
)  # fmt: skip
_OPTIONS = ("sort by", "order", "verbose", "with archived", "locale", "expand")  # of lists
_SPARE_FIELDS = (
    "proxy", "time zone", "interval", "retries", "webhook", "http verb", "headers", "ignore text", "extract rule",
    "muted", "processor", "max length", "cc list", "external key", "icon", "folder path", "sort index",
    "owner group",
)  # fmt: skip
_TAKEN = frozenset(word for role in ("list", "show", "create", "update", "delete") for word in _WORDS[role])


class CrudShape(msgspec.Struct, frozen=True, kw_only=True):
    """One choice for each axis."""

    auth: Literal["open", "key"]
    listing: Literal["bare", "named", "data", "keyed", "named_keyed"]  # the last two map ids to records
    paging: Literal["whole", "page"]
    nesting: Literal["flat", "grouped"]
    ids: Literal["number", "string"]
    update: Literal["PATCH", "PUT", "POST"]
    body: Literal["flat", "wrapped"]
    act: Literal["path", "field"]  # an operation of its own, or an update of the state
    created: Literal["record", "id", "nothing"]  # what the answer to a creation has
    rows: Literal["full", "partial"]  # in lists: partial ones lack a field that only one record's own address has
    style: Style

    @property
    def is_keyed(self) -> bool:
        return self.listing in ("keyed", "named_keyed")


SHARES: dict[str, dict[str, int]] = {
    "auth": {"open": 75, "key": 25},
    "listing": {"bare": 28, "named": 20, "data": 20, "keyed": 20, "named_keyed": 12},
    "paging": {"whole": 75, "page": 25},
    "nesting": {"flat": 85, "grouped": 15},
    "ids": {"number": 45, "string": 55},
    "update": {"PATCH": 45, "PUT": 40, "POST": 15},
    "body": {"flat": 82, "wrapped": 18},
    "act": {"path": 55, "field": 45},
    "created": {"record": 50, "id": 30, "nothing": 20},
    "rows": {"full": 80, "partial": 20},
    "style": {"snake": 45, "camel": 30, "kebab": 10, "pascal": 15},
}
"""In percent."""

AXES: dict[str, tuple[str, ...]] = {
    name: get_args(kind) for name, kind in get_type_hints(CrudShape).items() if get_args(kind)
}
_HELD_OUT: dict[Pool, tuple[dict[str, str], ...]] = {
    "test": (
        {"listing": "keyed", "act": "field"},
        {"listing": "named", "paging": "page"},
        {"listing": "named_keyed", "body": "wrapped"},
        {"auth": "key", "listing": "data"},
    ),
    "validation": ({"listing": "bare", "paging": "page"}, {"auth": "key", "nesting": "grouped"}),
}
"""Pairs of values that never meet in training; each by itself does."""


def held_out_pairs(shape: CrudShape, pool: Pool) -> list[dict[str, str]]:
    """Those that a pool holds out and the shape has."""
    return [
        pair
        for pair in _HELD_OUT.get(pool, ())
        if all(getattr(shape, axis) == value for axis, value in pair.items())
    ]


def pool_of_shape(shape: CrudShape) -> Pool:
    return next((pool for pool in _HELD_OUT if held_out_pairs(shape, pool)), "train")


def draw_shape(pool: Pool, rng: Random) -> CrudShape:
    while True:
        drawn = {axis: rng.choices(list(SHARES[axis]), list(SHARES[axis].values()))[0] for axis in AXES}
        shape = msgspec.convert(drawn, CrudShape)
        if pool_of_shape(shape) == pool and is_possible(shape):
            return shape


def is_possible(shape: CrudShape) -> bool:
    """A map has no pages, and its keys are strings."""
    return not shape.is_keyed or (shape.paging == "whole" and shape.ids == "string")


class CrudRoute(msgspec.Struct, frozen=True, kw_only=True):
    """An operation: its name in the document, and its address."""

    role: Role
    id: str
    method: Method
    path: str
    collection: int = 0
    verb: Verb | None = None

    @property
    def python(self) -> str:
        """Its name in the agent's code."""
        return operation_name(self.id, self.method, self.path)


class Collection(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """Records of one kind. `has_link`: they have an address on the web."""

    domain: Domain
    style: Style
    words: dict[str, str]
    has_link: bool
    spare: tuple[str, ...]  # fields that can be written, and that no task asks for
    hidden: RecordField  # that list rows lack, if they are partial

    @cached_property
    def fields(self) -> dict[RecordField, str]:
        """The wire names."""
        known = {field: words for field, words in self.prose.items() if field != "link" or self.has_link}
        return {field: spell(words, self.style) for field, words in known.items()}

    @property
    def prose(self) -> dict[RecordField, str]:
        """The names of fields in words."""
        domain = self.domain
        return {
            "title": self.words["title"],
            "link": self.words["link"],
            "person": domain.person,
            "label": domain.label,
            "number": domain.number,
            "date": domain.date,
            "state": domain.progress,
        }

    @property
    def distractors(self) -> list[str]:
        """The wire names of fields that rows show, and that no task asks for."""
        return [spell(words, self.style) for words in self.domain.distractors]

    @property
    def writable_extras(self) -> list[str]:
        return [*self.distractors, *(spell(words, self.style) for words in self.spare)]

    @property
    def verbs(self) -> tuple[Verb, ...]:
        """Without those that mean what every collection can do."""
        return verbs_of(self.domain)

    @property
    def states(self) -> list[str]:
        return [self.domain.initial, *(verb.done for verb in self.verbs)]

    @property
    def resource(self) -> str:
        return spell(self.domain.nouns, self.style)

    @property
    def singular(self) -> str:
        return spell(self.domain.noun, self.style)


def verbs_of(domain: Domain) -> tuple[Verb, ...]:
    return tuple(verb for verb in domain.verbs if verb.base not in _TAKEN)


class CrudApi(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """Wire names are spelled in the style of the shape."""

    name: str
    shape: CrudShape
    words: dict[str, str]
    collections: tuple[Collection, ...]
    others: tuple[str, ...]  # operations that no task needs
    options: tuple[str, ...]  # of lists
    version: str  # of the server
    about: str

    def wire(self, word: str) -> str:
        return spell(self.words[word], self.shape.style)

    @property
    def id_name(self) -> str:
        return self.wire("id")

    @cached_property
    def routes(self) -> tuple[CrudRoute, ...]:
        info = CrudRoute(
            role="info", id=self._spelled("info"), method="GET", path=f"/{spell(self.words['info'], 'kebab')}"
        )
        return (*(route for at in range(len(self.collections)) for route in self._routes(at)), info)

    def route(self, role: Role, collection: int = 0, verb: Verb | None = None) -> CrudRoute:
        return next(
            each
            for each in self.routes
            if each.role == role and each.verb == verb and (role == "info" or each.collection == collection)
        )

    def _spelled(self, word: str, *rest: str) -> str:
        return spell(" ".join([self.words[word], *rest]), self.shape.style)

    def _routes(self, at: int) -> list[CrudRoute]:
        domain, verbs = self.collections[at].domain, self.collections[at].verbs
        many, one = f"/{spell(domain.nouns, 'kebab')}", f"/{spell(domain.nouns, 'kebab')}/{{{self.id_name}}}"
        places: list[tuple[Role, str, Method, str]] = [
            ("list", domain.nouns, "GET", many),
            ("create", domain.noun, "POST", many),
            ("show", domain.noun, "GET", one),
            ("update", domain.noun, self.shape.update, one),
            ("delete", domain.noun, "DELETE", one),
        ]
        routes = [
            CrudRoute(role=role, id=self._spelled(role, noun), method=method, path=path, collection=at)
            for role, noun, method, path in places
        ]
        if self.shape.act == "path":
            routes += [
                CrudRoute(
                    role="act",
                    id=spell(f"{verb.base} {domain.noun}", self.shape.style),
                    method="POST",
                    path=f"{one}/{spell(verb.base, 'kebab')}",
                    collection=at,
                    verb=verb,
                )
                for verb in verbs
            ]
        return [*routes, *(self._other(words, at) for words in self.others)]

    def _other(self, words: str, at: int) -> CrudRoute:
        domain = self.collections[at].domain
        method, _, name = words.partition(" ")
        many = f"/{spell(domain.nouns, 'kebab')}"
        place = f"{many}/{{{self.id_name}}}" if "{noun}" in name else many
        said = name.format(noun=domain.noun, nouns=domain.nouns)
        slug = spell(name.format(noun="", nouns=""), "kebab")
        return CrudRoute(
            role="other",
            id=spell(f"get {said}" if method == "GET" else said, self.shape.style),
            method=msgspec.convert(method, Method),
            path=f"{place}/{slug}",
            collection=at,
        )


def other_words(kind: str, chosen: str, rng: Random) -> str:
    """A name that the makers of the API could have chosen, and did not."""
    return rng.choice([words for words in _WORDS[kind] if words != chosen])


def words_of(kind: str, collection: Collection) -> list[str]:
    """The names that the makers of the API could have chosen for a field, and that none of its fields has."""
    taken = {*collection.prose.values(), *collection.domain.distractors}
    return [words for words in dict.fromkeys(_WORDS[kind]) if words not in taken]


def draw_api(name: str, domains: tuple[Domain, ...], shape: CrudShape, rng: Random) -> CrudApi:
    taken = {words for domain in domains for words in _words_of(domain)}
    words = {kind: rng.choice([each for each in known if each not in taken]) for kind, known in _WORDS.items()}
    hidden: tuple[RecordField, ...] = ("person", "label", "number", "date")
    collections = tuple(
        Collection(
            domain=domain,
            style=shape.style,
            words={kind: words[kind] for kind in ("title", "link")},
            has_link=rng.random() < 0.6,
            hidden=rng.choice(hidden),
            spare=tuple(rng.sample(_SPARE_FIELDS, rng.choice((0, 0, 1, 3, 8)))),
        )
        for domain in domains
    )
    nouns = " and ".join(domain.nouns for domain in domains)
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
        others=tuple(rng.sample(_OTHERS, rng.choice((0, 1, 2, 5)))),
        options=tuple(rng.sample(_OPTIONS, rng.choice((0, 0, 1, 2)))),
        version=f"{rng.randint(0, 9)}.{rng.randint(0, 30)}.{rng.randint(0, 40)}",
        about=about,
    )


def _words_of(domain: Domain) -> tuple[str, ...]:
    """The names of its fields."""
    return (domain.person, domain.label, domain.number, domain.date, domain.progress, *domain.distractors)

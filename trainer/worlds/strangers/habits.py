"""The habits of those who write OpenAPI documents, each drawn apart from the others. Pure."""

from collections.abc import Callable
from random import Random
from typing import Final, Literal, TypeAlias, TypeVar

import msgspec

from trainer.worlds.generated.words import Style, spell

Size: TypeAlias = Literal["tiny", "small", "medium", "large"]
Identifiers: TypeAlias = Literal[
    "camel", "snake", "pascal", "absent", "controller", "service", "dotted", "framework", "path"
]
Paging: TypeAlias = Literal["none", "page", "offset", "cursor", "token", "header", "address"]
Says: TypeAlias = Literal["full", "terse", "nothing"]
Schemas: TypeAlias = Literal["one", "split", "inline", "joined"]
Update: TypeAlias = Literal["patch", "put", "put part", "both", "post"]
T = TypeVar("T")
KeyType: TypeAlias = Literal["integer", "string", "uuid"]

_SIZES: Final[dict[Size, int]] = {"tiny": 20, "small": 38, "medium": 30, "large": 12}
_PREFIXES: Final = ("/api/v1", "/api", "/v1", "/v2", "/rest", "/rest/v1", "/api/rest", "", "", "/api/v3")
_STATUSES: Final = ("400", "401", "403", "404", "409", "422", "429", "500")
_VERBS: Final[dict[str, tuple[str, ...]]] = {
    "list": ("list", "get", "find", "search", "fetch", "index", "browse", "get all"),
    "get": ("get", "show", "read", "retrieve", "fetch", "find", "view"),
    "create": ("create", "add", "new", "post", "store", "register", "insert"),
    "update": ("update", "edit", "patch", "modify", "change", "save"),
    "replace": ("replace", "put", "update", "overwrite", "set"),
    "delete": ("delete", "remove", "destroy", "drop", "erase"),
}
_ENVELOPES: Final = (
    "items", "results", "data", "records", "entries", "rows", "list", "values", "content", "objects", "{nouns}",
    "{nouns}", "{nouns}",
)  # fmt: skip
_OUTER: Final = ("data", "result", "response", "payload")
_PAGINGS: Final[dict[Paging, int]] = {
    "none": 32, "page": 18, "offset": 17, "cursor": 11, "token": 7, "header": 7, "address": 8,
}  # fmt: skip
_PAGES: Final[dict[Paging, tuple[tuple[str, str], ...]]] = {
    "none": (("", ""),),
    "page": (
        ("page", "per page"), ("page", "page size"), ("page", "limit"), ("page number", "page size"),
        ("p", "size"),
    ),
    "offset": (("offset", "limit"), ("skip", "take"), ("start", "count"), ("start index", "max results")),
    "cursor": (("cursor", "limit"), ("after", "first"), ("marker", "limit")),
    "token": (("page token", "page size"), ("continuation token", "max results"), ("next token", "limit")),
    "header": (("page", "per page"), ("page", "limit"), ("cursor", "limit")),
    "address": (("page", "page size"), ("offset", "limit"), ("cursor", "limit")),
}  # fmt: skip
_KEYS: Final[dict[tuple[str, KeyType], int]] = {
    ("id", "integer"): 26, ("id", "string"): 12, ("id", "uuid"): 14, ("uuid", "uuid"): 12,
    ("{noun} id", "integer"): 8, ("{noun} id", "string"): 6, ("slug", "string"): 8, ("number", "integer"): 5,
    ("key", "string"): 5, ("name", "string"): 4,
}  # fmt: skip
_IDENTIFIERS: Final[dict[Identifiers, int]] = {
    "camel": 24, "snake": 18, "pascal": 4, "absent": 22, "controller": 8, "service": 4, "dotted": 6,
    "framework": 7, "path": 7,
}  # fmt: skip
_FIELDS: Final[dict[Style, int]] = {"snake": 50, "camel": 42, "kebab": 4, "pascal": 4}
_UPDATES: Final[dict[Update, int]] = {"patch": 40, "put": 22, "put part": 18, "both": 13, "post": 7}
_SCHEMAS: Final[dict[Schemas, int]] = {"one": 35, "split": 30, "inline": 20, "joined": 15}
_SAYS: Final[dict[Says, int]] = {"full": 50, "terse": 25, "nothing": 25}


class Habits(msgspec.Struct, frozen=True, kw_only=True):
    """How one document is written throughout. Names may have `{noun}` or `{nouns}` in them."""

    version: str
    prefix: str
    paths: Style
    is_plural: bool
    slash: str
    fields: Style
    parameters: Style
    identifiers: Identifiers
    verbs: dict[str, str]  # by role
    says: Says
    schemas: Schemas
    envelope: tuple[str, ...]  # empty: lists are bare
    is_map: bool
    paging: Paging
    page: tuple[str, str]  # parameters for the place and the size
    around: str  # one record: "" if it is bare
    body: str  # what is sent: "" if it is bare
    key: str
    key_type: KeyType
    key_parameter: Literal["own", "id", "noun"]
    update: Update
    nested: float  # of resources with an owner
    times: Literal["date", "date-time"]
    choices: Callable[[str], str]
    errors: tuple[str, ...]
    extras: int  # more fields and parameters of each resource

    def field(self, words: str) -> str:
        return spell(words, self.fields)

    def parameter(self, words: str) -> str:
        return spell(words, "snake" if self.parameters == "kebab" else self.parameters)


def draw_size(rng: Random) -> Size:
    return drawn(_SIZES, rng)


def draw_habits(rng: Random) -> Habits:
    def sometimes(share: float) -> bool:
        return rng.random() < share

    is_map = sometimes(0.17)
    paging: Paging = "none" if is_map else drawn(_PAGINGS, rng)
    needs_place = paging in ("cursor", "token", "address")  # for what tells of the next page
    envelope: tuple[str, ...] = () if not needs_place and sometimes(0.4) else (rng.choice(_ENVELOPES),)
    if envelope and sometimes(0.1):
        envelope = (rng.choice([each for each in _OUTER if each != envelope[0]]), *envelope)
    fields = drawn(_FIELDS, rng)
    key, key_type = drawn(_KEYS, rng)
    return Habits(
        version=rng.choice(("3.0.0", "3.0.3", "3.1.0")),
        prefix=rng.choice(_PREFIXES),
        paths=rng.choices(("kebab", "snake", "camel"), (60, 25, 15))[0],
        is_plural=sometimes(0.85),
        slash="/" if sometimes(0.07) else "",
        fields=fields,
        parameters=fields if sometimes(0.85) else rng.choice(("snake", "camel")),
        identifiers=drawn(_IDENTIFIERS, rng),
        verbs={role: each[0] if sometimes(0.5) else rng.choice(each) for role, each in _VERBS.items()},
        says=drawn(_SAYS, rng),
        schemas=drawn(_SCHEMAS, rng),
        envelope=envelope,
        is_map=is_map,
        paging=paging,
        page=rng.choice(_PAGES[paging]),
        around=rng.choice(("data", "{noun}")) if sometimes(0.2) else "",
        body=rng.choice(("data", "{noun}", "{noun}")) if sometimes(0.15) else "",
        key=key,
        key_type=key_type,
        key_parameter=rng.choice(("own", "own", "id", "noun")),
        update=drawn(_UPDATES, rng),
        nested=rng.choice((0.0, 0.0, 0.5, 1.0)),
        times=rng.choice(("date", "date-time")),
        choices=rng.choices((str, str.upper, str.capitalize), (80, 12, 8))[0],
        errors=tuple(sorted(rng.sample(_STATUSES, rng.choice((0, 2, 4))))),
        extras=rng.choices((0, rng.randint(2, 6), rng.randint(8, 18)), (60, 28, 12))[0],
    )


def drawn(weights: dict[T, int], rng: Random) -> T:
    return rng.choices(list(weights), list(weights.values()))[0]

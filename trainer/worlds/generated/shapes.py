"""The shape of an API: how one logs in, pages, reads rows and writes, apart from what it is about.

Held-out shapes combine values that never meet in training; each value by itself does occur there.
"""

from collections.abc import Mapping
from random import Random
from typing import Literal

import msgspec

from trainer.worlds.generated.words import Pool, Style


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


Pair = Mapping[str, str]  # two values by their axes


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

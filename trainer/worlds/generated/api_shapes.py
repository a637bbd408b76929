"""The shape of an API: how one logs in, pages, reads rows and writes, apart from what it is about.

Held-out shapes combine values that never meet in training; each value by itself does occur there.
"""

from random import Random
from typing import Literal, get_args, get_type_hints

import msgspec

from trainer.worlds.generated.pools import Pool
from trainer.worlds.generated.spelling import Style


class ApiShape(msgspec.Struct, frozen=True, kw_only=True):
    """One choice for each axis."""

    auth: Literal["login", "query_token", "key", "open"]
    paging: Literal["page", "offset", "cursor", "link", "whole"]
    envelope: Literal["bare", "named", "data", "wrapped"]  # around the rows of a list
    nesting: Literal[
        "flat", "grouped", "object"
    ]  # fields of a row: beside its id, in a group, the person an object
    ids: Literal["number", "string"]
    errors: Literal["strict", "soft", "limited"]  # 4xx; 200 with ok: false, also while busy; 429 now and then
    write: Literal["path", "body", "patch", "batch"]
    rows: Literal["full", "partial"]  # in lists: partial ones lack a field that only looking up one item returns
    filters: Literal["none", "equal"]  # of the list, by person and label
    style: Style


SHARES: dict[str, dict[str, int]] = {
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
}
"""In percent: most APIs are plain in most respects, and few in all."""

_LESSONS: dict[str, dict[str, int]] = {"rows": {"full": 65, "partial": 35}}
"""What lessons meet more often, since it is hard."""

AXES: dict[str, tuple[str, ...]] = {
    name: get_args(kind) for name, kind in get_type_hints(ApiShape).items() if get_args(kind)
}

_HELD_OUT: dict[Pool, frozenset[tuple[str, str]]] = {
    "test": frozenset(
        {
            ("page", "wrapped"), ("offset", "data"), ("cursor", "named"), ("link", "data"),
            ("key", "batch"), ("query_token", "patch"), ("login", "body"), ("soft", "object"),
        }
    ),
    "validation": frozenset({("page", "data"), ("link", "wrapped"), ("open", "batch"), ("limited", "grouped")}),
}  # fmt: skip


def pool_of_shape(shape: ApiShape) -> Pool:
    return next((pool for pool in _HELD_OUT if held_out_pairs(shape, pool)), "train")


def held_out_pairs(shape: ApiShape, pool: Pool) -> set[tuple[str, str]]:
    values = {str(getattr(shape, axis)) for axis in AXES}
    return {pair for pair in _HELD_OUT.get(pool, ()) if values.issuperset(pair)}


def draw_shape(pool: Pool, rng: Random, *, unmet: frozenset[str] = frozenset(), lesson: bool = False) -> ApiShape:
    """A shape of the pool, with a pair of held-out values of which a program meets both: none is `unmet`."""
    shares = SHARES | _LESSONS if lesson else SHARES
    while True:
        shape = msgspec.convert({axis: _draw(shares[axis], rng) for axis in AXES}, ApiShape)
        if (
            is_possible(shape)
            and pool_of_shape(shape) == pool
            and (pool == "train" or any(unmet.isdisjoint(pair) for pair in held_out_pairs(shape, pool)))
        ):
            return shape


def _draw(shares: dict[str, int], rng: Random) -> str:
    return rng.choices(list(shares), list(shares.values()))[0]


def is_possible(shape: ApiShape) -> bool:
    """A bare list has no room for the next cursor."""
    return not (shape.paging in ("cursor", "link") and shape.envelope == "bare")

"""The shape of an API that keeps records. Held-out shapes combine values that never meet in training."""

from random import Random
from typing import Literal, get_args, get_type_hints

import msgspec

from trainer.worlds.generated.pools import Pool
from trainer.worlds.generated.spelling import Style


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
    rows: Literal["full", "partial", "undocumented"]  # in lists, see `lacks_field`
    states: Literal["word", "flags"]  # one field that names the state, or a boolean for each
    style: Style

    @property
    def lacks_field(self) -> bool:
        """Whether rows of lists lack a field that only one record's own address has, documented or not."""
        return self.rows != "full"

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
    "rows": {"full": 70, "partial": 20, "undocumented": 10},
    "states": {"word": 70, "flags": 30},
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
    """A map has no pages, and its keys are strings. Flags are called as people call the states."""
    if shape.states == "flags" and shape.style == "pascal":
        return False
    return not shape.is_keyed or (shape.paging == "whole" and shape.ids == "string")

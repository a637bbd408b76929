"""What real answers teach a double: which fields really come, of which form and how often, and texts like theirs.
Pure.

Nothing personal is kept, and no secret: of a field with such a name only the form stays, and a text of its own
is kept only if several records share it, as they share a state or a label.
"""

from collections.abc import Mapping, Sequence
from random import Random
from typing import Final

import msgspec

from app.apis.double import texts
from app.apis.double.model import Collection, Model
from app.apis.double.record_types import place_of
from app.apis.double.seen import IsSecret, Seen, seen_of
from app.apis.double.shapes import Schema, fields_of, flat, kind_of, value_at
from app.base.values import Json

_ROWS: Final = 200  # of one answer that are looked at


class Sample(msgspec.Struct, frozen=True):
    """What the real server answered an operation with, by name, or of one place by `sample_key`."""

    operation: str
    value: Json


class Sampled(msgspec.Struct, frozen=True):
    """Of each collection that answers were read of: the fields in lists, and those of single records."""

    lists: Mapping[str, Mapping[str, Seen]] = {}
    items: Mapping[str, Mapping[str, Seen]] = {}

    def fields(self, collection: str) -> Mapping[str, Seen]:
        """What is known of the records of a collection; lists show more of them than single reads do."""
        return {**self.items.get(collection, {}), **self.lists.get(collection, {})}

    def left_out(self, collection: Collection, *, lists: bool) -> frozenset[str]:
        """The fields that lists, or single records, lack though the document promises them, as far as was read."""
        seen = (self.lists if lists else self.items).get(collection.name)
        promised = frozenset(fields_of(collection.item))
        return frozenset() if seen is None else promised - seen.keys()


def sampled(model: Model, samples: Sequence[Sample], is_secret: IsSecret = lambda _: False) -> Sampled:
    """What the samples of lists and single records show. Those of other operations are passed over."""
    lists: dict[str, list[dict[str, Json]]] = {}
    items: dict[str, list[dict[str, Json]]] = {}
    for each in samples:
        made = model.meant(*place_of(each.operation))
        if made is None or made.shape is None or made.role not in ("list", "get"):
            continue
        found = value_at(each.value, made.shape.keys)
        rows = found.values() if made.shape.holds == "map" and isinstance(found, dict) else found
        rows = (
            [found] if made.role == "get" else list(rows) if not isinstance(rows, str) and rows is not None else []
        )
        kept = [row for row in rows[:_ROWS] if isinstance(row, dict)]
        (items if made.role == "get" else lists).setdefault(made.collection, []).extend(kept)
    return Sampled(
        {name: _fields(rows, is_secret) for name, rows in lists.items() if rows},
        {name: _fields(rows, is_secret) for name, rows in items.items() if rows},
    )


def drawn(seen: Seen, schema: Schema, name: str, rng: Random) -> Json:
    """A value as the real ones are; a text of its form where none is shared."""
    if rng.random() < seen.null:
        return None
    if seen.values:
        return rng.choice(seen.values)
    if seen.low is not None and seen.high is not None:
        whole = kind_of(flat(schema)) == "integer" or (seen.low.is_integer() and seen.high.is_integer())
        return rng.randint(int(seen.low), int(seen.high)) if whole else round(rng.uniform(seen.low, seen.high), 2)
    if seen.form:
        return texts.text_of_format(seen.form, rng)
    return texts.alike(seen.code, rng) if seen.code else texts.text_of_name(name, rng)


def _fields(rows: Sequence[Mapping[str, Json]], is_secret: IsSecret) -> dict[str, Seen]:
    rows = list({msgspec.json.encode(row): row for row in rows}.values())  # one that is shown twice is one record
    names = dict.fromkeys(name for row in rows for name in row)
    return {
        name: seen_of(name, [row[name] for row in rows if name in row], len(rows), is_secret) for name in names
    }

"""The records of a double: as they are at the beginning, as one can be copied, and what changed between two of
them.

Samples of real answers teach which fields really come, of which form and how often, and texts like theirs.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Final

import msgspec

from app.apis.documents.schemas import short_repr
from app.apis.double import texts
from app.apis.double.meanings import Record
from app.apis.double.model import Collection, Counter, Link, Model
from app.apis.double.record_types import IsSecret, Seen, place_of, seen_of, text_like
from app.apis.double.shapes import Schema, fields_of, flat, is_nullable, kind_of, value_at
from app.apis.double.values import Drawer, key_like
from app.apis.naming import plain, split_words
from app.base.values import Json

_ROWS: Final = 200  # of one answer that are looked at
TOP: Final = (5, 8)  # records of a collection that is in no other
_NESTED: Final = (0, 4)  # of each record above
_MOST: Final = 40  # of a collection
_FREE: Final = 2  # values of a path parameter that names nothing that is modelled
_EPOCH: Final = datetime(2026, 11, 2, 9, 0, tzinfo=UTC)
_TRIES: Final = 20  # to find a free key
_SHOWN: Final = 120  # characters of a value in words


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


def sampled(model: Model, samples: Mapping[str, Json], is_secret: IsSecret = lambda _: False) -> Sampled:
    """What the real server answered, by operation, or of one place by `sample_key`, shows of lists and of single
    records.
    """
    lists: dict[str, list[dict[str, Json]]] = {}
    items: dict[str, list[dict[str, Json]]] = {}
    for name, value in samples.items():
        made = model.meant(*place_of(name))
        if made is None or made.shape is None or made.role not in ("list", "get"):
            continue
        rows = value_at(value, made.shape.keys)
        if made.role == "get":
            rows = [rows]
        elif made.shape.holds == "map" and isinstance(rows, dict):
            rows = list(rows.values())
        kept = [row for row in rows[:_ROWS] if isinstance(row, dict)] if isinstance(rows, list) else []
        (items if made.role == "get" else lists).setdefault(made.collection, []).extend(kept)
    return Sampled(
        {name: _fields(rows, is_secret) for name, rows in lists.items() if rows},
        {name: _fields(rows, is_secret) for name, rows in items.items() if rows},
    )


def _fields(rows: Sequence[Mapping[str, Json]], is_secret: IsSecret) -> dict[str, Seen]:
    rows = list({msgspec.json.encode(row): row for row in rows}.values())  # one that is shown twice is one record
    names = dict.fromkeys(name for row in rows for name in row)
    return {
        name: seen_of(name, [row[name] for row in rows if name in row], len(rows), is_secret) for name in names
    }


class Part(msgspec.Struct, frozen=True):
    """What is no record, such as settings, after it was written."""

    was: Json  # at the beginning
    value: Json


class State(msgspec.Struct):
    """All records, by collection, scope and key; the parts that were written, by path; and what time it is."""

    records: dict[str, dict[tuple[str, ...], Record]] = {}
    parts: dict[str, Part] = {}
    writes: int = 0

    def copy(self) -> "State":
        records = {
            name: {place: Record(each.key, each.scope, _copied(each.fields)) for place, each in keyed.items()}
            for name, keyed in self.records.items()
        }
        return msgspec.structs.replace(self, records=records, parts=dict(self.parts))

    def now(self) -> datetime:
        """A minute later after each write."""
        return _EPOCH + timedelta(minutes=self.writes)

    def of(self, collection: str, scope: tuple[str, ...]) -> list[Record]:
        """The records of a collection within a scope, the oldest first."""
        return [each for each in self.records.get(collection, {}).values() if each.scope == scope]


def changes(before: State, after: State) -> list[str]:
    """What differs, in words: `created notes 7: title 'x'`, `changed notes 3: state 'open' -> 'closed'`, ..."""
    found: list[str] = []
    for name in dict.fromkeys([*before.records, *after.records]):
        old, new = before.records.get(name, {}), after.records.get(name, {})
        for place in dict.fromkeys([*old, *new]):
            label = f"{name} {'/'.join(place)}"
            if place not in old:
                found.append(f"created {label}: {_state_fields({}, new[place].fields)}")
            elif place not in new:
                found.append(f"deleted {label}")
            elif old[place] != new[place]:
                found.append(f"changed {label}: {_state_fields(old[place].fields, new[place].fields)}")
    for name, part in after.parts.items():
        was = before.parts[name].value if name in before.parts else part.was
        if was != part.value:
            found.append(f"changed {name}: {_state_fields(_object(was), _object(part.value))}")
    return found


def _copied(value: Json) -> Json:
    """Much faster than `copy.deepcopy`, which has to expect more than JSON."""
    if isinstance(value, dict):
        return {name: _copied(each) for name, each in value.items()}
    return [_copied(each) for each in value] if isinstance(value, list) else value


def initial_state(
    model: Model,
    drawer: Drawer,
    seen: Sampled = Sampled(),  # noqa: B008 - frozen
    top: tuple[int, int] = TOP,
) -> State:
    """The records that a double begins with, linked with each other; the same for the same seed. They are as the
    real ones that were seen, `top` of each collection that is in no other.
    """
    state = State()
    homes = dict.fromkeys(home for each in model.collections.values() for home in each.homes)
    for collection in sorted(model.collections.values(), key=lambda each: len(each.path)):
        keyed = state.records.setdefault(collection.name, {})
        for place in [place for name, place in homes if name == collection.name]:
            keyed[place] = Record(place[-1], place[:-1], {})
        for scope in _scopes(collection, state, drawer) if not collection.has_types else ():
            rng = drawer.random(f"{collection.name} {scope}")
            count = rng.randint(*(_NESTED if collection.scopes else top)) - len(state.of(collection.name, scope))
            for _ in range(min(count, _MOST - len(keyed))):
                key = new_key(collection, state, drawer, rng)
                if key is None:
                    break
                keyed[*scope, key] = Record(key, scope, {})
    for collection in model.collections.values():
        for record in state.records[collection.name].values():
            salt = f"{collection.name} {record.scope} {record.key}"
            record.fields = drawer.fields(collection.item, salt, collection.examples)
            _as_seen(record.fields, collection, seen.fields(collection.name), drawer, salt)
            _agree(record.fields, fields_of(collection.item))
            set_key(collection, record)
    for collection in model.collections.values():
        for record in state.records[collection.name].values():
            rng = drawer.random(f"links {collection.name} {record.scope} {record.key}")
            for link in collection.links:
                _set_link(collection, record, link, model, state, rng)
            _make_unique(collection, record, state)
    return state


def new_key(collection: Collection, state: State, drawer: Drawer, rng: Random) -> str | None:
    """A key that no record of the collection has; None if there is none left, or none is found."""
    records = state.records.get(collection.name, {})
    used = {each.key for each in records.values()}
    numbers = [int(each) for each in used if each.isdecimal() and len(each) < 16]
    known = collection.examples.get(collection.key, ())
    schema = collection.key_schema
    for attempt in range(_TRIES):
        number = max(numbers, default=0) + 1 + attempt
        key = key_like(schema, collection.key or "id", number, rng, known[0] if known else None)
        key = texts.slug(rng) if collection.named else key
        if key not in used and "/" not in key and key.strip(".") and drawer.fits(schema, typed_key(schema, key)):
            return key
    return None


def typed_key(schema: Schema, key: str) -> Json:
    """The key as its field has it: a number, if that is its type."""
    kind = kind_of(flat(schema))
    return int(key) if kind in ("integer", "number") and key.lstrip("-").isdecimal() else key


def set_key(collection: Collection, record: Record) -> None:
    if collection.key:
        record.fields[collection.key] = typed_key(fields_of(collection.item).get(collection.key, {}), record.key)
    for name, schema in fields_of(collection.item).items():  # the keys of what is above, where they stand in it
        for scope, key in zip(collection.scopes, record.scope, strict=True):
            if name == scope.parameter and name != collection.key:
                record.fields[name] = typed_key(schema, key)


def target_of(link: Link, value: Json, model: Model, state: State) -> Record | None:
    """The record that the value of a link names."""
    target = model.collections[link.collection]
    key = value.get(target.key) if isinstance(value, Mapping) else value
    every = state.records.get(link.collection, {}).values()
    return next((each for each in every if each.key == str(key)), None)


def linked(link: Link, record: Record, schema: Schema, model: Model, known: Json) -> Json:
    """The value of a link to a record: its key, or, embedded, what of its fields the schema has."""
    target = model.collections[link.collection]
    if not link.embedded:
        return typed_key(schema, record.key)
    deeper = {each.field for each in target.links if each.embedded}  # these stay: they may lead back here
    fields = {name: each for name, each in fields_of(flat(schema)).items() if name not in deeper}
    shown = dict(known) if isinstance(known, Mapping) else {}
    shown |= {name: value for name, value in record.fields.items() if name in fields}
    if target.key in fields:
        shown[target.key] = typed_key(fields[target.key], record.key)
    return shown


def counted(counter: Counter, record: Record, model: Model, state: State) -> int:
    """How many records of the counter's collection are in a record, or name it."""
    if not counter.link:
        return len(state.of(counter.collection, (*record.scope, record.key)))
    [link] = [each for each in model.collections[counter.collection].links if each.field == counter.link]
    others = state.records.get(counter.collection, {}).values()
    return sum(target_of(link, each.fields.get(link.field), model, state) is record for each in others)


def _scopes(collection: Collection, state: State, drawer: Drawer) -> list[tuple[str, ...]]:
    """Where the collection has records: for each record above it, and each value of what is not modelled."""
    found: list[tuple[str, ...]] = [()]
    for scope in collection.scopes:
        longer: list[tuple[str, ...]] = []
        for above in found:
            if scope.parent:
                longer += [(*above, each.key) for each in state.of(scope.parent, above)]
            else:
                longer += [(*above, each) for each in free_values(scope.parameter, scope.schema, drawer)]
        found = longer[:_MOST]
    return found


def free_values(parameter: str, schema: Schema, drawer: Drawer) -> list[str]:
    """The values that there are of a path parameter that names nothing that is modelled."""
    choices = flat(schema).get("enum")
    if choices:
        return [str(each) for each in choices[:_FREE]]
    rng = drawer.random(f"parameter {parameter}")
    values = (key_like(schema, parameter, number, rng) for number in range(1, _TRIES))
    kept = dict.fromkeys(each.replace("/", "-").replace(" ", "-") for each in values)
    return [each for each in kept if drawer.fits(schema, typed_key(schema, each))][:_FREE]


def _set_link(collection: Collection, record: Record, link: Link, model: Model, state: State, rng: Random) -> None:
    """To a record above it, if it is of that kind; or else to any."""
    schema = flat(fields_of(collection.item).get(link.field, {}))
    above = [
        key for scope, key in zip(collection.scopes, record.scope, strict=True) if scope.parent == link.collection
    ]
    every = list(state.records.get(link.collection, {}).values())
    fit = [each for each in every if each.key in above] or [each for each in every if each is not record]
    if not fit:
        return
    if link.many:
        inner = flat(schema.get("items") or {})
        chosen = rng.sample(fit, min(len(fit), rng.randint(1, 2)))
        record.fields[link.field] = [linked(link, each, inner, model, None) for each in chosen]
    elif link.collection != collection.name or rng.random() < 0.5:
        record.fields[link.field] = linked(link, rng.choice(fit), schema, model, record.fields.get(link.field))
    else:
        record.fields.pop(link.field, None)  # some records have nothing above them


def _drawn(seen: Seen, schema: Schema, name: str, rng: Random) -> Json:
    """A value as the real ones are; a text of its form where none is shared."""
    if rng.random() < seen.null:
        return None
    if seen.values:
        return rng.choice(seen.values)
    if seen.low is not None and seen.high is not None:
        whole = kind_of(flat(schema)) == "integer" or (seen.low.is_integer() and seen.high.is_integer())
        return rng.randint(int(seen.low), int(seen.high)) if whole else round(rng.uniform(seen.low, seen.high), 2)
    return text_like(seen, name, rng)


def _as_seen(
    record: dict[str, Json], collection: Collection, seen: Mapping[str, Seen], drawer: Drawer, salt: str
) -> None:
    """Gives a record values as the real ones have them, where they fit, and takes what those never have."""
    for name, schema in fields_of(collection.item).items() if seen else ():
        if name not in seen:
            record.pop(name, None)
            continue
        rng = drawer.random(f"seen {salt} {name}")
        value = _drawn(seen[name], schema, name, rng)
        if rng.random() > seen[name].share:
            record.pop(name, None)
        elif kind_of(flat(schema)) not in ("array", "object") and drawer.fits(schema, value):
            record[name] = value


def _agree(record: dict[str, Json], fields: Mapping[str, Schema]) -> None:
    """Nothing has been closed at a time that is not closed: neither its state nor its flag says so."""
    for name in list(record):
        *words, last = split_words(name) or [""]
        if last not in ("at", "on", "date", "time") or not words:
            continue
        done = words[-1]
        choices = {each: flat(schema).get("enum", ()) for each, schema in fields.items()}
        states = [each for each, known in choices.items() if done in map(plain, map(str, known))]
        is_open = any(plain(str(record.get(each))) != done for each in states)
        if is_open or any(plain(each) in (done, f"is{done}") and record[each] is False for each in record):
            if is_nullable(fields[name]):
                record[name] = None
            else:
                del record[name]


def _make_unique(collection: Collection, record: Record, state: State) -> None:
    value = record.fields.get(collection.unique)
    if not isinstance(value, str) or collection.unique == collection.key:
        return
    others = {
        each.fields.get(collection.unique)
        for each in state.records[collection.name].values()
        if each is not record
    }
    number = 2
    while value in others:
        value, number = f"{record.fields[collection.unique]} {number}", number + 1
    record.fields[collection.unique] = value


def _state_fields(before: Mapping[str, Json], after: Mapping[str, Json]) -> str:
    told: list[str] = []
    for name in dict.fromkeys([*before, *after]):
        if before.get(name) != after.get(name):
            was = f"{short_repr(before[name], _SHOWN)} -> " if name in before else ""
            told.append(f"{name} {was}{short_repr(after.get(name), _SHOWN)}")
    return ", ".join(told)


def _object(value: Json) -> Mapping[str, Json]:
    return value if isinstance(value, Mapping) else {"value": value}

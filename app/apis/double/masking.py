"""Answers of a real server as others of the same form, so that they can be stored. Pure.

Fields, types, lengths of lists, the range of numbers and the forms of texts stay, and so do the short texts that
several records share, as they share a state or a label. All other values are made up: a text, a key of a map, or
anything under a personal or telling name.
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from math import ceil, floor, log10
from random import Random
from typing import Final, TypeAlias

import msgspec

from app.apis.double import texts
from app.apis.double.reads import Reading, Readings, RealAnswer
from app.apis.double.record_types import IsSecret, Seen, is_private, is_word, sample_key, seen_of, text_like
from app.apis.double.shapes import value_at, with_value_at
from app.apis.naming import split_words, word_set
from app.base.values import Json

_FIELD: Final = re.compile(r"[@A-Za-z_$][A-Za-z_$:.-]*\d{0,2}")  # what reads as a name of a field
_FIELD_CHARS: Final = 60
_ALIKE: Final = 0.6  # share of fields that the records of a map have in common, and of records that have a field
_MAP: Final = 3  # such values make it one
_OF_NONE: Final = b""  # not of a record, but of what is around them
_EXACT: Final = 100  # whole numbers below tell nothing of anybody
_SEVERAL: Final = 2
_IDS: Final = ("id", "_id", "uuid", "guid", "uid")
_COMMON: Final = word_set(
    "id ids uuid guid uid key name title text label description type kind state status value url uri href link "
    "links data item items record records result results row rows list entry entries content contents value "
    "values total count size length limit offset page pages per next previous prev first last current cursor "
    "continuation has is more meta metadata pagination paging self embedded start end at on date time created "
    "updated modified deleted version etag error errors message code detail details success ok number"
)
"""Words of which names of fields are made that no document declares."""

Place: TypeAlias = tuple[str, ...]
"""Names of fields from the answer on; `*` for any key of a map."""
Owner: TypeAlias = tuple[bytes, bytes]
"""The record that a value is of, and the object with a key of its own that it is in, which may be the record."""


def samples_of(readings: Readings, is_secret: IsSecret = lambda _: False) -> dict[str, Json]:
    """The answers, masked: nothing of them is of anybody. They are by the names of operations in the model, one
    each: the records of several answers are together in it. `read_model` and `practice_on` take them as they are.

    `is_secret` says whether a text is a secret of the project or holds one.
    """
    given: dict[tuple[str, str], list[Json]] = {}
    kinds = _kept_kinds(readings.good, is_secret)
    for each in readings.good:
        sample = sample_key(each.name, {name: kinds[name, key] for name, key in each.kind.items()})
        given.setdefault((each.name, sample), []).append(each.given.value)
    by_name = {each.name: each for each in readings.plan}
    fields: dict[str, set[str]] = {}  # by the collection: what its lists show, single records have
    masked: dict[str, Json] = {}
    looked_at = set[str]()
    of_one = {name for name, reading in by_name.items() if reading.holds == "one"}
    for (name, at), values in sorted(given.items(), key=lambda each: each[0][0] in of_one):
        reading = by_name.get(name)
        known = fields.setdefault(name if reading is None else reading.collection or name, set())
        if name not in looked_at:
            looked_at.add(name)
            every = _Masking(reading, is_secret, names_only=True, fields=known)  # of whatever kind
            every.answers([value for (other, _), of in given.items() if other == name for value in of])
        masking = _Masking(reading, is_secret, fields=known)
        masked[at] = _together(masking.answers(values), reading)
    return {at: masked[at] for _, at in given}


def _kept_kinds(answers: Sequence[RealAnswer], is_secret: IsSecret) -> dict[tuple[str, Json], Json]:
    """The keys that name kinds of records, by path parameter: words stay, since they say what records are, unless
    the parameter, or what it follows in a path, is somebody's.
    """
    every = dict.fromkeys(one for each in answers for one in each.kind.items())
    private = {
        one for each in answers for one in each.kind.items() if any(map(is_private, _called(each.place, one[0])))
    }
    return {
        (name, key): key
        if is_word(str(key)) and not is_secret(str(key)) and (name, key) not in private
        else texts.alike(str(key), Random(f"kind {number}"), words=True)
        for number, (name, key) in enumerate(every)
    }


def _called(place: str, parameter: str) -> tuple[str, str]:
    """A path parameter, and what is before it in the path.

    >>> _called("GET /v1/customers/{id}/documents", "id")
    ('id', 'customers')
    """
    before = place.partition(f"{{{parameter}}}")[0].split("/")
    return parameter, next((each for each in reversed(before) if each and "{" not in each), "")


def with_masked_names(values: Sequence[Json], reading: Reading) -> list[Json]:
    """Answers to the same operation, in which no name is a value, as those of a map are: for what tells of names
    alone. What may be either is left out.
    """
    return _Masking(reading, names_only=True).answers(values)


class _Masking:
    """`fields` are names of fields, as far as answers have shown them: what these show is added."""

    def __init__(
        self,
        reading: Reading | None,
        is_secret: IsSecret = lambda _: False,
        *,
        names_only: bool = False,
        fields: set[str] | None = None,
    ) -> None:
        self._fields = set[str]() if fields is None else fields
        self._maps = frozenset(() if reading is None else reading.maps)
        self._records = () if reading is None else reading.keys
        self._holds = "" if reading is None else reading.holds
        self._key = "" if reading is None else reading.key
        self._declared = frozenset(() if reading is None else reading.names)
        self._words = _COMMON.union(() if reading is None else split_words(reading.place))
        self._splits = False  # whether lists of objects are lists of records
        self._is_secret, self._names_only = is_secret, names_only
        self._other_keys: dict[str, str] = {}
        self._rng = Random("masking")

    def answers(self, values: Sequence[Json]) -> list[Json]:
        self._splits = self._holds in ("list", "map") or any(isinstance(each, list) for each in values)
        return self._column(values, (), [(_OF_NONE, self._identity(each)) for each in values])

    def _identity(self, value: Json) -> bytes:
        """Equal for the same record, wherever it is shown."""
        given = value if isinstance(value, dict) else {}
        own = next((name for name in (self._key, *_IDS) if name and given.get(name) is not None), None)
        return msgspec.json.encode(value if own is None else given[own])

    def _column(self, values: Sequence[Json], place: Place, owners: Sequence[Owner]) -> list[Json]:
        """The values at one place; `owners` are the records that they are of."""
        found: list[Json] = list(values)
        objects = [at for at, each in enumerate(values) if isinstance(each, dict)]
        of_objects = [owners[at] for at in objects]
        masked: Sequence[Json] = self._objects([values[at] for at in objects], place, of_objects)
        for at, each in zip(objects, masked, strict=True):
            found[at] = each
        lists = [at for at, each in enumerate(values) if isinstance(each, list)]
        inner = iter(self._inner([values[at] for at in lists], place, [owners[at] for at in lists]))
        for at in lists:
            found[at] = [next(inner) for _ in values[at]]
        leaves = [at for at, each in enumerate(values) if not isinstance(each, dict | list) and each is not None]
        masked = self._leaves([values[at] for at in leaves], place, [owners[at] for at in leaves])
        for at, leaf in zip(leaves, masked, strict=True):
            found[at] = leaf
        return found

    def _inner(self, parts: Sequence[Sequence[Json]], place: Place, owners: Sequence[Owner]) -> list[Json]:
        """What lists or maps hold, all in a row. Of a list of records each is one of its own."""
        values = [each for part in parts for each in part]
        inside = [owner for part, owner in zip(parts, owners, strict=True) for _ in part]
        of_none = all(record == _OF_NONE for record, _ in owners)
        if self._splits and of_none and all(isinstance(each, dict) for each in values):
            inside = [(each, each) for each in map(self._identity, values)]
        return self._column(values, place, inside) if values else []

    def _objects(
        self, values: Sequence[dict[str, Json]], place: Place, owners: Sequence[Owner]
    ) -> list[dict[str, Json]]:
        if place in self._maps or any(map(_is_map, values)):
            inner = iter(self._inner([list(each.values()) for each in values], (*place, "*"), owners))
            return [dict(zip(map(self._other_key, value), inner, strict=False)) for value in values]
        owners = [
            (record, self._identity(each)) if any(each.get(name) is not None for name in _IDS) else (record, inner)
            for each, (record, inner) in zip(values, owners, strict=True)
        ]
        found: list[dict[str, Json]] = [dict.fromkeys(each) for each in values]
        odd = set[str]()
        for field in dict.fromkeys(each for value in values for each in value):
            having = [at for at, each in enumerate(values) if field in each]
            of_field = [owners[at] for at in having]
            if not self._is_name(field, {inner for _, inner in of_field}, {inner for _, inner in owners}):
                odd.add(field)
            inside = (*place, "*" if field in odd else field)
            masked = self._column([values[at][field] for at in having], inside, of_field)
            for at, each in zip(having, masked, strict=True):
                found[at][field] = each
        return [self._with_names(each, odd) for each in found]

    def _is_name(self, field: str, having: Collection[bytes], every: Collection[bytes]) -> bool:
        """Whether it is the name of a field, and no value, such as the name of somebody in a map.

        The document says so, its words do, or most of several records have it.
        """
        if len(field) > _FIELD_CHARS or not _FIELD.fullmatch(field) or self._is_secret(field):
            return False
        if len(having) >= _SEVERAL and len(having) >= _ALIKE * len(every):
            self._fields.add(field)
        return field in self._fields or field in self._declared or self._words.issuperset(split_words(field))

    def _with_names(self, value: dict[str, Json], odd: Collection[str]) -> dict[str, Json]:
        """Other names for what may be values."""
        if self._names_only:
            return {name: each for name, each in value.items() if name not in odd}
        return {self._other_key(name) if name in odd else name: each for name, each in value.items()}

    def _other_key(self, key: str) -> str:
        """The same for the same key, and for no other one."""
        if key not in self._other_keys:
            other = texts.alike(key, Random(f"key {len(self._other_keys)}"), words=True)
            taken = other in self._other_keys.values()
            self._other_keys[key] = f"{other}{len(self._other_keys)}" if taken else other
        return self._other_keys[key]

    def _leaves(self, values: Sequence[Json], place: Place, owners: Sequence[Owner]) -> list[Json]:
        if not values or self._names_only:
            return list(values)
        around = len(self._records) if place[: len(self._records)] == self._records else 0
        private = any(map(is_private, place[around:]))  # `customers` around records says nothing of their fields
        name = "_".join(place) if private else next((each for each in reversed(place) if each != "*"), "")
        shown_by: dict[tuple[type, Json], list[Owner]] = {}
        for owner, each in zip(owners, values, strict=True):
            shown_by.setdefault((type(each), each), []).append(owner)
        known: list[Json] = []
        for (_, value), of in shown_by.items():
            known += [value] * min(len({record for record, _ in of}), len({inner for _, inner in of}))
        seen = seen_of(name, known, len(values), self._is_secret)  # shared by records, not in one
        return [self._leaf(each, seen, name) for each in values]

    def _leaf(self, value: Json, seen: Seen, name: str) -> Json:
        rng = self._rng
        if isinstance(value, bool):
            return rng.random() < 0.5
        if isinstance(value, int | float):
            return self._number(value, seen)
        if value == "":
            return ""
        shared = [each for each in seen.values if isinstance(each, str)]
        return rng.choice(shared) if shared else text_like(seen, name, rng)

    def _number(self, value: float, seen: Seen) -> Json:
        """One between roughly the least and the largest; of a private field one with as many digits."""
        if seen.low is None or seen.high is None:
            low, high = 0.0, 10.0 ** len(str(abs(int(value)))) - 1
        else:
            low, high = _rough(seen.low, floor), _rough(seen.high, ceil)
        if isinstance(value, int):
            return self._rng.randint(int(low), int(high))
        return round(self._rng.uniform(low, high), 2)


def _rough(value: float, to: Callable[[float], int]) -> float:
    """Of two digits.

    >>> _rough(1034.2, floor), _rough(1034.2, ceil), _rough(7, ceil)
    (1000.0, 1100.0, 7.0)
    """
    unit = 10.0 ** (floor(log10(abs(value))) - 1) if abs(value) >= _EXACT else 1.0
    return to(value / unit) * unit


def _together(values: Sequence[Json], reading: Reading | None) -> Json:
    """The first answer, with the records of all of them; one record has the fields of all."""
    first = values[0]
    if len(values) == 1 or reading is None or not reading.holds:
        return first
    parts = [value_at(each, reading.keys) for each in values]
    whole: Json
    if all(isinstance(each, list) for each in parts):
        whole = [row for part in parts for row in part]
    elif all(isinstance(each, dict) for each in parts):
        whole = {name: each for part in reversed(parts) for name, each in part.items()}
    else:
        return first
    return with_value_at(first, reading.keys, whole)


def _is_map(value: Mapping[str, Json]) -> bool:
    """Whether its names are keys: of records that are alike, or such as no field has."""
    inner = [each for each in value.values() if isinstance(each, dict)]
    if not inner or len(inner) < len(value):
        return False
    if not any(_FIELD.fullmatch(each) and not re.search(r"\d", each) for each in value):
        return True
    names = set.union(*(set(each) for each in inner))
    return len(inner) >= _MAP and sum(map(len, inner)) >= _ALIKE * len(names) * len(inner)

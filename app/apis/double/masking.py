"""Answers of a real server as others of the same form, so that they can be stored. Pure.

Fields, types, lengths of lists, the range of numbers and the forms of texts stay, and so do the short texts that
several records share, as they share a state or a label. All other values are made up: a text, a key of a map, or
anything under a personal or telling name.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import ceil, floor, log10
from random import Random
from typing import Final, TypeAlias

import msgspec

from app.apis.double import texts
from app.apis.double.reads import Reading, Readings
from app.apis.double.record_types import is_word, sample_key
from app.apis.double.seen import IsSecret, Seen, is_private, seen_of
from app.apis.double.shapes import value_at
from app.records import Json

_FIELD: Final = re.compile(r"[@A-Za-z_$][A-Za-z_$:.-]*\d{0,2}")  # what reads as a name of a field
_FIELD_CHARS: Final = 60
_ALIKE: Final = 0.6  # share of fields that the records of a map have in common
_MAP: Final = 3  # such values make it one
_NONE: Final = 0  # of the records: what is around them
_EXACT: Final = 100  # whole numbers below tell nothing of anybody

Place: TypeAlias = tuple[str, ...]
"""Names of fields from the answer on; `*` for any key of a map."""


class Samples(msgspec.Struct, frozen=True, kw_only=True):
    """What was read of a real API, masked: nothing of it is of anybody. `answers` are by the names of operations
    in its model, one each: the records of several answers are together in it.

    `read_model` and `practice_on` take `answers` as they are.
    """

    answers: dict[str, Json] = {}
    skipped: tuple[str, ...] = ()  # what was not read, and why
    calls: int = 0

    def encode(self) -> bytes:
        return msgspec.msgpack.encode(self)

    @classmethod
    def decode(cls, content: bytes) -> "Samples":
        """Raises msgspec.ValidationError and msgspec.DecodeError."""
        return msgspec.msgpack.decode(content, type=cls)


def samples_of(readings: Readings, is_secret: IsSecret = lambda _: False) -> Samples:
    """The answers, masked. `is_secret` says whether a text is a secret of the project or holds one."""
    given: dict[tuple[str, str], list[Json]] = {}
    kinds = _kept_kinds([each.kind for each in readings.good], is_secret)
    for each in readings.good:
        sample = sample_key(each.name, {name: kinds[name, key] for name, key in each.kind.items()})
        given.setdefault((each.name, sample), []).append(each.given.value)
    by_name = {each.name: each for each in readings.plan}
    masked = {at: masked_answer(values, by_name.get(name), is_secret) for (name, at), values in given.items()}
    return Samples(answers=masked, skipped=tuple(readings.skipped), calls=readings.calls)


def _kept_kinds(given: Iterable[Mapping[str, Json]], is_secret: IsSecret) -> dict[tuple[str, Json], Json]:
    """The keys that name kinds of records, by path parameter: words stay, since they say what records are."""
    every = dict.fromkeys(each for kind in given for each in kind.items())
    return {
        (name, key): key
        if is_word(str(key)) and not is_secret(str(key)) and not is_private(name)
        else texts.alike(str(key), Random(f"kind {number}"), words=True)
        for number, (name, key) in enumerate(every)
    }


def masked_answer(
    values: Sequence[Json], reading: Reading | None = None, is_secret: IsSecret = lambda _: False
) -> Json:
    """One answer of the form of several to the same operation."""
    return _Masking(reading, is_secret).answer(_together(values, reading))


def with_masked_names(value: Json, reading: Reading) -> Json:
    """An answer in which no name is a value, as those of a map are: for what tells of names alone."""
    return _Masking(reading, names_only=True).answer(value)


class _Masking:
    def __init__(
        self, reading: Reading | None, is_secret: IsSecret = lambda _: False, *, names_only: bool = False
    ) -> None:
        self._maps = frozenset(() if reading is None else reading.maps)
        self._records = () if reading is None else reading.keys
        self._holds = "" if reading is None else reading.holds
        self._splits = False  # whether lists of objects are lists of records
        self._is_secret, self._names_only = is_secret, names_only
        self._rng = Random("masking")

    def answer(self, value: Json) -> Json:
        self._splits = self._holds in ("list", "map") or isinstance(value, list)
        return self._column([value], (), [_NONE])[0]

    def _column(self, values: Sequence[Json], place: Place, owners: Sequence[int]) -> list[Json]:
        """The values at one place; `owners` are the records that they are of."""
        found: list[Json] = list(values)
        objects = [at for at, each in enumerate(values) if isinstance(each, dict)]
        of_objects = [owners[at] for at in objects]
        for at, each in zip(
            objects, self._objects([values[at] for at in objects], place, of_objects), strict=True
        ):
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

    def _inner(self, parts: Sequence[Sequence[Json]], place: Place, owners: Sequence[int]) -> list[Json]:
        """What lists or maps hold, all in a row. Of a list of records each is one of its own."""
        values = [each for part in parts for each in part]
        inside = [owner for part, owner in zip(parts, owners, strict=True) for _ in part]
        if self._splits and set(owners) == {_NONE} and all(isinstance(each, dict) for each in values):
            inside = list(range(_NONE + 1, _NONE + 1 + len(values)))
        return self._column(values, place, inside) if values else []

    def _objects(
        self, values: Sequence[dict[str, Json]], place: Place, owners: Sequence[int]
    ) -> list[dict[str, Json]]:
        if place in self._maps or any(map(_is_map, values)):
            inner = iter(self._inner([list(each.values()) for each in values], (*place, "*"), owners))
            return [dict(zip(self._keys(value), inner, strict=False)) for value in values]
        found: list[dict[str, Json]] = [dict.fromkeys(each) for each in values]
        for field in dict.fromkeys(each for value in values for each in value):
            having = [at for at, each in enumerate(values) if field in each]
            of_field = [owners[at] for at in having]
            masked = self._column([values[at][field] for at in having], (*place, field), of_field)
            for at, each in zip(having, masked, strict=True):
                found[at][field] = each
        return [self._with_names(each) for each in found]

    def _with_names(self, value: dict[str, Json]) -> dict[str, Json]:
        """Other names for what may be values."""
        odd = [name for name in value if not _is_field(name) or self._is_secret(name)]
        other = dict(zip(odd, self._keys(odd), strict=True))
        return {other.get(name, name): each for name, each in value.items()}

    def _keys(self, given: Iterable[str]) -> list[str]:
        found = list[str]()
        for at, each in enumerate(given):
            key = texts.alike(each, Random(f"key {at}"), words=True)
            found.append(f"{key}{at}" if key in found else key)
        return found

    def _leaves(self, values: Sequence[Json], place: Place, owners: Sequence[int]) -> list[Json]:
        if not values or self._names_only:
            return list(values)
        around = len(self._records) if place[: len(self._records)] == self._records else 0
        private = any(map(is_private, place[around:]))  # `customers` around records says nothing of their fields
        name = "_".join(place) if private else next((each for each in reversed(place) if each != "*"), "")
        known = {(owner, type(each), each): each for owner, each in zip(owners, values, strict=True)}
        seen = seen_of(name, list(known.values()), len(values), self._is_secret)  # shared by records, not in one
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
        if shared:
            return rng.choice(shared)
        if seen.form:
            return texts.text_of_format(seen.form, rng)
        return texts.alike(seen.code, rng) if seen.code else texts.text_of_name(name, rng)

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


def _is_field(name: str) -> bool:
    return len(name) <= _FIELD_CHARS and _FIELD.fullmatch(name) is not None


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
    return _placed(first, reading.keys, whole)


def _placed(value: Json, keys: Sequence[str], whole: Json) -> Json:
    if not keys:
        return whole
    return {name: _placed(each, keys[1:], whole) if name == keys[0] else each for name, each in value.items()}


def _is_map(value: Mapping[str, Json]) -> bool:
    """Whether its names are keys: of records that are alike, or such as no field has."""
    inner = [each for each in value.values() if isinstance(each, dict)]
    if not inner or len(inner) < len(value):
        return False
    if not any(_FIELD.fullmatch(each) and not re.search(r"\d", each) for each in value):
        return True
    names = set.union(*(set(each) for each in inner))
    return len(inner) >= _MAP and sum(map(len, inner)) >= _ALIKE * len(names) * len(inner)

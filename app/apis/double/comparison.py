"""How the form of a double's answers differs from that of the real server's, in words. Pure.

Values differ, and are not compared: what is compared is the status, the envelope, which fields the records
have, of which types, and whether there is another page. Each answer is compared with one to the same call.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec

from app.apis.double.model import Model, Modelled
from app.apis.double.shapes import type_name, value_at
from app.apis.pagination import items_of, next_page
from app.base.values import Json

_ROWS: Final = 50  # of a list that are looked at
_DEPTH: Final = 4
_MOST: Final = 200  # differences


class Given(msgspec.Struct, frozen=True):
    """An answer to compare: `value` is its JSON."""

    status: int
    value: Json = None
    headers: Mapping[str, str] = {}


class Pair(msgspec.Struct, frozen=True):
    """The same call to both: an operation by name, and its arguments."""

    operation: str
    double: Given
    real: Given
    arguments: Mapping[str, Json] = {}


def differences(model: Model, pairs: Sequence[Pair]) -> list[str]:
    """What is not alike, each as `GET /notes: ...`; empty if all forms are the same."""
    found: list[str] = []
    for pair in pairs:
        made = model.operations.get(pair.operation)
        if made is None:
            found.append(f"{pair.operation}: the double does not answer it")
            continue
        place = f"{made.operation.method} {made.operation.path}"
        found += [f"{place}: {each}" for each in _of_pair(made, pair)]
    return list(dict.fromkeys(found))[:_MOST]


def _of_pair(made: Modelled, pair: Pair) -> Iterator[str]:
    if pair.double.status != pair.real.status:
        yield f"the real server answers with status {pair.real.status}, the double with {pair.double.status}"
        return
    if made.role != "list":
        yield from _values("", pair.double.value, pair.real.value, 0)
        return
    yield from _lists(made, pair)
    ours, theirs = (_goes_on(made, pair.arguments, each) for each in (pair.double, pair.real))
    if made.query.paging is None and theirs:
        yield "the real server has pages, which the double does not know"
    elif ours and _tells_nothing(made, pair.arguments, pair.real):
        yield "the real server does not tell of the next page as the double does"


def _lists(made: Modelled, pair: Pair) -> Iterator[str]:
    """The envelope, then the records of both, as if each list had one record with all of their fields."""
    keys = made.shape.keys if made.shape is not None else ()
    ours, theirs = value_at(pair.double.value, keys), value_at(pair.real.value, keys)
    if type(ours) is not type(theirs):
        where = f"under {'.'.join(keys)}" if keys else "as a whole"
        said = f"the list, {where}, is {_a(theirs)} at the real server, {_a(ours)} at the double"
        other = _place_of_list(pair.real.value)
        yield f"{said}; the real one is under {'.'.join(other)}" if other else said
        return
    yield from _values("", _emptied(pair.double.value, keys), _emptied(pair.real.value, keys), 0)
    first, second = _rows(ours), _rows(theirs)
    if not first or not second:
        return
    yield from _values("", _whole(first), _whole(second), 0, "records of the list")


def _values(place: str, ours: Json, theirs: Json, depth: int, what: str = "") -> Iterator[str]:
    """Differences of fields and types, at a dotted place."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        at = f"{what} {place}".strip()
        named = f" of {at}" if at else ""
        if lacking := [each for each in ours if each not in theirs]:
            yield f"the real server leaves out {', '.join(lacking)}{named}"
        if more := [each for each in theirs if each not in ours]:
            yield f"the real server also has {', '.join(more)}{named}"
        for name in ours if depth < _DEPTH else ():
            if name in theirs:
                yield from _values(f"{place}.{name}".strip("."), ours[name], theirs[name], depth + 1, what)
        return
    if isinstance(ours, list) and isinstance(theirs, list):
        if ours and theirs:
            yield from _values(f"{place}[]", _whole(ours), _whole(theirs), depth + 1, what)
        return
    if ours is None or theirs is None or _kind(ours) == _kind(theirs):
        return
    at = f"{what} {place}".strip() or "the answer"
    yield f"{at} is {_a(theirs)} at the real server, {_a(ours)} at the double"


def _whole(rows: Sequence[Json]) -> Json:
    """One value with the fields of all of them."""
    objects = [each for each in rows[:_ROWS] if isinstance(each, dict)]
    if not objects:
        return rows[0]
    whole: dict[str, Json] = {}
    for each in objects:
        whole |= {name: value for name, value in each.items() if value is not None or name not in whole}
    return whole


def _rows(value: Json) -> list[Json]:
    return list(value.values()) if isinstance(value, Mapping) else list(value) if isinstance(value, list) else []


def _emptied(value: Json, keys: Sequence[str]) -> Json:
    """An answer without its records."""
    if not keys:
        return None
    if not isinstance(value, Mapping):
        return value
    return {name: _emptied(each, keys[1:]) if name == keys[0] else each for name, each in value.items()}


def _place_of_list(value: Json) -> tuple[str, ...]:
    if not isinstance(value, Mapping):
        return ()
    rows = items_of(value)
    return next(((name,) for name, each in value.items() if each is rows), ())


def _goes_on(made: Modelled, arguments: Mapping[str, Json], given: Given) -> bool:
    headers = {name.lower(): value for name, value in given.headers.items()}
    return isinstance(next_page(made.operation, arguments, given.value, headers, "http://server/"), dict)


def _tells_nothing(made: Modelled, arguments: Mapping[str, Json], given: Given) -> bool:
    """Whether a full page of the real server has no sign of another."""
    size = None if made.query.size is None else arguments.get(made.query.size.name)
    keys = made.shape.keys if made.shape is not None else ()
    return (
        isinstance(size, int)
        and len(_rows(value_at(given.value, keys))) >= size
        and not _goes_on(made, arguments, given)
    )


def _kind(value: Json) -> str:
    kind = type_name(value)
    return "number" if kind == "integer" else kind


def _a(value: Json) -> str:
    names = {"null": "nothing", "array": "a list", "object": "an object", "string": "a text", "boolean": "a flag"}
    return names.get(type_name(value), "a number")

"""The calls that show what a real API answers, and how the form of a double's answers differs from it, in words.

GETs alone: the first page of each list, then records of them; what is called next follows from what was
answered. Values differ, and are not compared: what is compared is the status, the envelope, which fields the
records have, of which types, and whether there is another page. Each answer is compared with one to the same
call.
"""

import re
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from itertools import islice, zip_longest
from math import isfinite
from typing import Final, Literal, TypeAlias

import msgspec

from app.apis.catalog import App, Operation
from app.apis.double.documents import segments
from app.apis.double.model import NO_RECORDS, NO_SCHEMA, Collection, Model, Modelled
from app.apis.double.record_types import Path, is_generic, sample_key
from app.apis.double.shapes import Schema, fields_of, flat, kind_of, noun_of, type_name, value_at, with_value_at
from app.apis.naming import split_words
from app.apis.pagination import first_page, items_of, next_page, size_of
from app.base.errors import HostError
from app.base.values import Json

_ROWS: Final = 50  # of a list that are looked at, or kept of an answer
_DEPTH: Final = 4
_MOST: Final = 200  # differences
MOST_CALLS: Final = 100
_SIZE: Final = 20  # records of a page, where a call can say so
_EACH: Final = 3  # records whose lists are read, or that are read by themselves
_KINDS: Final = 8  # kinds of records that users define, and of what these are in
_ROUNDS: Final = 5  # of a new plan, after answers that the document does not describe
_FAILURES: Final = 5  # one after the other, after which no other call is made
_PAUSES: Final = (429, 503)
_LEFT: Final = re.compile(r"(x-)?rate-?limit-remaining(-\w+)?")
_NAMES: Final = 200  # of an object, which may be a map
_NODES: Final = 20_000
_CHARS: Final = 1_000  # of a text
_INTEGERS: Final = 2**62
_ANSWER_DEPTH: Final = 8  # of an answer, and of what a schema says of its names
_SCHEMAS: Final = 2_000  # that are looked at for one answer
_BYTES: Final = 256 << 10  # of an answer


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
    one, other = (with_value_at(each.value, keys, None) for each in (pair.double, pair.real))
    yield from _values("", one, other, 0)
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


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """An operation that is read. `name` is that of the model, `operation` the one that is called.

    `above` are the arguments that name records, each with the collection that has them; `keys`, `holds` and `key`
    say where the records of the answer and their keys are, as far as that is known. `names` are the fields that
    the document declares of the answer, `maps` the places of objects whose names are no fields but keys: `*`
    stands for any of them. `kinds` are the arguments, each with the path parameter that it is for, that name of
    which kind the records are.
    """

    name: str
    operation: str
    place: str  # method and path
    arguments: dict[str, Json] = {}
    above: tuple[tuple[str, str], ...] = ()
    collection: str = ""
    scoped: bool = True  # whether its records are in those above
    keys: tuple[str, ...] = ()
    holds: Literal["", "one", "list", "map"] = ""
    key: str = ""
    maps: tuple[tuple[str, ...], ...] = ()
    names: tuple[str, ...] = ()
    kinds: tuple[tuple[str, str], ...] = ()
    most: int = _EACH  # places that it is read at

    @property
    def tells_more(self) -> bool:
        """Whether a new plan follows from its answer."""
        return self.is_blind or (bool(self.collection) and not self.key)

    @property
    def is_blind(self) -> bool:
        """Whether only an answer tells what it is."""
        return not self.holds


class RealAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What a call was answered. The values of `arguments` are by the names that code has for them; `kind` are
    those that name of which kind its records are, by path parameter.
    """

    name: str
    operation: str
    place: str
    arguments: dict[str, Json]
    given: Given
    kind: dict[str, Json] = {}

    @property
    def sample(self) -> str:
        """Its name as a sample."""
        return sample_key(self.name, self.kind)

    @property
    def is_good(self) -> bool:
        return 200 <= self.given.status < 300


class Readings(msgspec.Struct, frozen=True, kw_only=True):
    """All answers, those that are errors among them, and what was not read, and why."""

    answers: list[RealAnswer] = []
    skipped: list[str] = []
    calls: int = 0
    plan: list[Reading] = []  # the last one

    @property
    def good(self) -> list[RealAnswer]:
        return [each for each in self.answers if each.is_good]


Ask: TypeAlias = Callable[[str, dict[str, Json]], Awaitable[Given]]
"""Calls an operation. An error of the API is an answer; raises HostError where there is none."""
MakePlan: TypeAlias = Callable[[Mapping[str, Json]], Awaitable[list[Reading]]]
"""What can be read, given answers by the operation's name in the model, or by `sample_key`."""


def reading_plan(model: Model, app: App) -> list[Reading]:
    """What can be read of `app`, the API of the model as tasks call it, the shortest paths first."""
    served = {each.path: each for each in app.operations.values() if each.method == "GET" and each.safe}
    reasons = {each.operation: each.reason for each in model.left_out}
    found: list[Reading] = []
    for each in model.app.operations.values():
        unseen = reasons.get(f"{each.method} {each.path}") in (NO_SCHEMA, NO_RECORDS)
        if each.method == "GET" and each.path in served and (each.name in model.operations or unseen):
            found += _reading(model, each, served[each.path])
    above = {collection for each in found if each.kinds for _, collection in each.above}
    found = [
        msgspec.structs.replace(
            each,
            most=_KINDS if each.kinds or each.collection in above else _EACH,
            maps=tuple(at for at in each.maps if not each.collection or each.holds == "map" or at != each.keys),
        )
        for each in found
    ]
    return sorted(found, key=lambda each: (len(each.above), each.place.count("/"), len(each.place)))


async def read_answers(make_plan: MakePlan, ask: Ask, is_time_up: Callable[[], bool] = lambda: False) -> Readings:
    """The answers to all calls of the plan, of which there are at most `MOST_CALLS`. One after the other: none
    follows a server that asks for a pause.
    """
    done = _Doing(ask, is_time_up)
    for _ in range(_ROUNDS):
        plan, before = await make_plan(_largest(done.good())), done.calls
        await done.work(plan)
        known = {each.name for each in done.good()}
        more = done.calls > before and any(each.tells_more and each.name in known for each in plan)
        if done.is_over or not more:
            break
    return Readings(answers=done.answers, skipped=done.skipped, calls=done.calls, plan=plan)


def _largest(answers: Sequence[RealAnswer]) -> dict[str, Json]:
    """Of each sample the answer that shows most."""
    ordered = sorted(answers, key=lambda each: len(msgspec.json.encode(each.given.value)))
    return {each.sample: each.given.value for each in ordered}


class _Doing:
    def __init__(self, ask: Ask, is_time_up: Callable[[], bool]) -> None:
        self._ask, self._is_time_up = ask, is_time_up
        self.answers: list[RealAnswer] = []
        self.skipped: list[str] = []
        self.calls, self.is_over = 0, False
        self._made = set[bytes]()
        self._failures = 0

    def good(self) -> list[RealAnswer]:
        return [each for each in self.answers if each.is_good]

    async def work(self, plan: Sequence[Reading]) -> None:
        while not self.is_over:
            following = next((each for each in self._pending(plan) if _identity(*each) not in self._made), None)
            if following is None:
                return
            if self.calls >= MOST_CALLS or self._is_time_up():
                why = f"{MOST_CALLS} calls were made" if self.calls >= MOST_CALLS else "the time for it was over"
                return self._end(f"{following[0].place} and what comes after it were not read: {why}")
            self._made.add(_identity(*following))
            await self._call(*following)

    async def _call(self, reading: Reading, arguments: dict[str, Json]) -> None:
        self.calls += 1
        try:
            given = await self._ask(reading.operation, arguments)
        except HostError as error:
            self._failed(reading, error.message)
            return
        if given.status in _PAUSES:
            reason = f"the server asks for a pause (status {given.status}), so that no further call was made"
            self._end(f"{reading.place} was not read: {reason}")
            return
        if given.status >= 400:
            self._failed(reading, f"the server answers with status {given.status}")
        else:
            self._failures = 0
        if any(_LEFT.fullmatch(name.lower()) and value.strip() == "0" for name, value in given.headers.items()):
            self._end(f"the server takes no further call for now, so that none was made after {reading.place}")
        kept = cut(given.value)
        if len(msgspec.json.encode(kept)) > _BYTES:
            if given.status < 400:
                self.skipped.append(f"{reading.place} was not read: its answer has more than {_BYTES >> 10} KB")
            return
        self.answers.append(
            RealAnswer(
                name=reading.name,
                operation=reading.operation,
                place=reading.place,
                arguments=arguments,
                kind={name: arguments[each] for each, name in reading.kinds},
                given=msgspec.structs.replace(given, value=kept),
            )
        )

    def _failed(self, reading: Reading, reason: str) -> None:
        self.skipped.append(f"{reading.place} was not read: {reason[:300]}")
        self._failures += 1
        if self._failures >= _FAILURES:
            self._end(f"no further call was made after {_FAILURES} that failed one after the other")

    def _end(self, why: str) -> None:
        self.skipped.append(why)
        self.is_over = True

    def _pending(self, plan: Sequence[Reading]) -> Iterator[tuple[Reading, dict[str, Json]]]:
        """The calls of which the arguments are known: for one record each, before another is read."""
        records = _records(plan, self.good())
        for turn in range(_KINDS):
            for each in plan:
                places = [()] if not each.above else _places(each, records)
                if turn < min(len(places), each.most):
                    names = (name for name, _ in each.above)
                    yield each, {**each.arguments, **dict(zip(names, places[turn], strict=True))}


def cut(value: Json) -> Json:
    """The first items of its lists and the beginnings of its texts, as far as it can be stored."""
    left = iter(range(_NODES))

    def shortened(value: Json, depth: int) -> Json:
        if next(left, None) is None or depth > _ANSWER_DEPTH:
            return None
        if isinstance(value, dict):
            inner = islice(value.items(), _NAMES)
            return {_text(str(name)): shortened(each, depth + 1) for name, each in inner}
        if isinstance(value, list):
            return [shortened(each, depth + 1) for each in value[:_ROWS]]
        if isinstance(value, str):
            return _text(value)
        if isinstance(value, float):
            return value if isfinite(value) else None
        return value if isinstance(value, int) and -_INTEGERS <= value < _INTEGERS else None

    return shortened(value, 0)


def _text(value: str) -> str:
    return value[:_CHARS].encode(errors="replace").decode()


def _reading(model: Model, operation: Operation, served: Operation) -> Iterator[Reading]:
    """Nothing for one that takes what no list shows."""
    made = model.operations.get(operation.name)
    path, wire_names = segments(operation.path)
    names = {each.wire_name: each.name for each in served.parameters if each.place == "path"}
    ends = [at for at, each in enumerate(path) if each == "{}"]
    if len(ends) != len(wire_names):
        return
    above: list[tuple[str, str]] = []
    for wire_name, at in zip(wire_names, ends, strict=True):
        if wire_name not in names:  # the server fills it in
            continue
        collection = _keys_of(model, path[:at], wire_name)
        if collection is None:
            return
        above.append((names[wire_name], collection.name))
    others = [each for each in served.parameters if each.place != "path"]
    if made is not None and made.role == "get" and made.key not in wire_names:
        above += [(each.name, made.collection) for each in others if each.wire_name == made.key]
        others = [each for each in others if each.wire_name != made.key]
    first = first_page(msgspec.structs.replace(served, parameters=tuple(others)))
    if first is None:
        return
    shape = None if made is None else made.shape
    kinds = _kinds(model, path, [each for each in wire_names if each in names])
    yield Reading(
        name=operation.name,
        operation=served.name,
        place=f"{operation.method} {operation.path}",
        arguments={**_page_size(served), **first},
        above=tuple(above),
        collection="" if made is None else made.collection,
        scoped=made is None or not made.fixed,
        keys=() if shape is None else shape.keys,
        holds="" if made is None else "one" if shape is None or made.role != "list" else shape.holds,
        key=_key_of(model, made.collection) if made is not None and made.collection else "",
        kinds=tuple((names[each], each) for each in kinds),
        maps=() if made is None else tuple(_maps(made.reply.schema or {})),
        names=() if made is None else tuple(_names(made.reply.schema or {})),
    )


def _keys_of(model: Model, path: Path, parameter: str) -> Collection | None:
    """The collection whose keys a path parameter takes: that of the path before it, or what it is called by."""
    words = [each for each in split_words(parameter) if each not in ("id", "name", "key")]
    every = model.collections.values()
    named = (each for each in every if not each.scopes and not each.home and words and each.noun == noun_of(words))
    return next((each for each in every if each.path == path), None) or next(named, None)


def _key_of(model: Model, collection: str) -> str:
    """The field with the key, of records of any kind if these are of many."""
    own = model.collections[collection]
    typed = (each.collection for each in model.typed if segments(each.operation.path)[0] == own.path)
    return own.key or model.collections[next(typed, own.name)].key


def _kinds(model: Model, path: Path, parameters: Sequence[str]) -> Sequence[str]:
    """The path parameters that name of which kind the records of a list, or one of them, are."""
    paths = {segments(each.path)[0] for each in model.app.operations.values()}
    is_list = path[-1:] != ("{}",) or (*path, "{}") in paths
    whole = path if is_list else path[:-1]
    return parameters[: whole.count("{}")] if is_generic(whole) else ()


def _maps(schema: Schema) -> Iterator[tuple[str, ...]]:
    """Where the names of objects are no fields: what is said to be an object alone may have any."""
    return (place for place, given in _inside(schema) if kind_of(given) == "object" and not fields_of(given))


def _names(schema: Schema) -> dict[str, None]:
    return dict.fromkeys(name for _, given in _inside(schema) for name in fields_of(given))


def _inside(schema: Schema) -> Iterator[tuple[tuple[str, ...], Schema]]:
    """The schemas in a schema, itself included, each with its place."""
    waiting = deque[tuple[Schema, tuple[str, ...]]]([(schema, ())])
    for _ in range(_SCHEMAS):
        if not waiting:
            return
        given, place = waiting.popleft()
        schema, fields = flat(given), fields_of(flat(given))
        yield place, schema
        inner: list[tuple[Schema, tuple[str, ...]]] = [(each, (*place, name)) for name, each in fields.items()]
        inner += [(schema["items"], place)] if isinstance(schema.get("items"), dict) else []
        if kind_of(schema) == "object" and not fields:
            values = [schema.get("additionalProperties"), *(schema.get("patternProperties") or {}).values()]
            inner += [(each, (*place, "*")) for each in values if isinstance(each, dict)]
        waiting.extend(inner if len(place) < _ANSWER_DEPTH else [])


def _page_size(operation: Operation) -> dict[str, Json]:
    size = size_of(operation)
    if size is None or size.schema.get("type") != "integer" or "enum" in size.schema:
        return {}
    least, most = size.schema.get("minimum"), size.schema.get("maximum")
    wanted = min(_SIZE, most) if isinstance(most, int) else _SIZE
    return {size.name: max(wanted, least) if isinstance(least, int) else wanted}


def _records(plan: Sequence[Reading], answers: Sequence[RealAnswer]) -> dict[str, list[tuple[Json, ...]]]:
    """The keys of the records that lists showed, each after the keys of what it is in, by collection."""
    by_name = {each.name: each for each in plan}
    found: dict[str, list[tuple[Json, ...]]] = {}
    for answer in answers:
        reading = by_name.get(answer.name)
        if reading is None or reading.holds not in ("list", "map"):
            continue
        scope = tuple(answer.arguments.get(name) for name, _ in reading.above) if reading.scoped else ()
        listed = value_at(answer.given.value, reading.keys)
        if isinstance(listed, dict):
            keys = list(listed)
        else:
            keys = [each.get(reading.key) for each in listed or () if isinstance(each, dict)]
        known = found.setdefault(reading.collection, [])
        known += [
            (*scope, key) for key in keys if isinstance(key, str | int) and key != "" and not isinstance(key, bool)
        ]
    return found


def _places(reading: Reading, records: Mapping[str, Sequence[tuple[Json, ...]]]) -> list[tuple[Json, ...]]:
    """The values of its arguments that name records."""
    count, (_, last) = len(reading.above), reading.above[-1]
    places = list(dict.fromkeys(each[-count:] for each in records.get(last, ()) if len(each) >= count))
    if not reading.kinds:
        return places
    turns: dict[tuple[Json, ...], list[tuple[Json, ...]]] = {}  # by what is above: one of each, then the next
    for each in places:
        turns.setdefault(each[:-1], []).append(each)
    if count > len(reading.kinds):  # one record of each kind
        return [each[0] for each in turns.values()]
    return [one for each in zip_longest(*turns.values()) for one in each if one is not None]


def _identity(reading: Reading, arguments: Mapping[str, Json]) -> bytes:
    return msgspec.json.encode([reading.name, arguments])

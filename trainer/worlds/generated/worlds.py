"""The records of a world, the check of a task by them and its answer, and the services of its apps.

Services are doubles that answer from an API and records alone; all worlds answer over HTTP. The ASGI
application is plain: the addresses differ from world to world, and a rollout makes thousands of calls.
"""

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from hashlib import blake2b
from random import Random
from typing import Any, Generic, TypeAlias, TypeVar
from urllib.parse import parse_qsl, quote

import msgspec

from app.apis.double.receiver import RefusedError
from app.base.errors import NotFoundError
from app.base.values import Json
from trainer.environment import Verdict
from trainer.worlds.generated.apis import PAGE_SIZE, Api, Collection, RecordField, Route
from trainer.worlds.generated.documents import FILTERED, SUPERVISOR, rows_at

RecordId: TypeAlias = int | str
Values: TypeAlias = dict[str, str | int]  # the details of one task, by parameter

State = TypeVar("State", bound="AppServices")
DATES = tuple(f"2026-{month:02}-{day:02}" for month in range(1, 13) for day in range(1, 29))


class Record(msgspec.Struct, kw_only=True):
    """Without the fields that its kind does not have."""

    id: RecordId
    title: str = ""
    link: str = ""
    person: str = ""
    label: str = ""
    number: int = 0
    date: str = ""
    state: str = ""
    extra: dict[str, Json] = {}  # by wire name, what no task asks for

    @property
    def facts(self) -> tuple[object, ...]:
        """All but the id, which the server gives."""
        return msgspec.structs.astuple(self)[1:]


Records: TypeAlias = dict[tuple[str, int], list[Record]]  # by app and place of the collection
FACTS = Record.__struct_fields__[1:]


def blank_record(collection: Collection, identity: RecordId) -> Record:
    """A new record, before anything is known of it."""
    return Record(
        id=identity,
        label=collection.domain.values[0],
        state=collection.domain.initial,
        extra=dict.fromkeys(collection.distractors, ""),
    )


def new_id(api: Api, taken: Container[RecordId], rng: Random) -> RecordId:
    while True:
        drawn = rng.randint(100, 99_999) if api.shape.ids == "number" else f"{rng.getrandbits(40):010x}"
        if drawn not in taken:
            return drawn


def verify_records(
    start: Records,
    wanted: Records,
    found: Records,
    *,
    expected: str | int | None,
    answer: Json,
    completed: bool,
    facts: Sequence[str] = FACTS,
) -> Verdict:
    """One check for each record that the task changes, one that nothing else changed, one of the answer.

    `expected` is None where no answer is asked for; `facts` are what is compared of a record.
    """
    before, goal, ended = (_by_place(records, facts) for records in (start, wanted, found))
    changing = [place for place in before if before[place] != goal.get(place)]
    new = [place for place in goal if place not in before]
    added = [place for place in ended if place not in before]
    failures = [
        f"{_name(place)}: expected {goal.get(place)}, found {ended.get(place)}"
        for place in changing
        if ended.get(place) != goal.get(place)
    ]
    if new and sorted(str(ended[place]) for place in added) != sorted(str(goal[place]) for place in new):
        failures.append(f"expected a new record {goal[new[0]]}, found {[ended[place] for place in added]}")
    others = [place for place in before if place not in changing and ended.get(place) != before[place]]
    others += [] if new else added
    if others:
        failures.append(f"changed without being asked: {', '.join(map(_name, others))}")
    if wrong := _wrong_answer(expected, answer, completed=completed):
        failures.append(wrong)
    total = len(changing) + len(new) + 2
    return Verdict(total - len(failures), total, tuple(failures))


_Place = tuple[str, int, RecordId]


def _by_place(records: Records, facts: Sequence[str]) -> dict[_Place, tuple[object, ...]]:
    return {
        (*place, record.id): tuple(getattr(record, fact) for fact in facts)
        for place, listed in records.items()
        for record in listed
    }


def _name(place: _Place) -> str:
    return f"{place[0]} {place[2]}"


def _wrong_answer(expected: str | int | None, answer: Json, *, completed: bool) -> str | None:
    """What is wrong with an answer, if anything."""
    if not completed:
        return "the task was not completed"
    if expected is None:
        return None if answer in (None, "") else "an answer was given where none was expected"
    right = not isinstance(answer, bool) and str(answer).strip() == str(expected)
    return None if right else f"expected the answer {expected}, got {str(answer)[:60]}"


def fields_of(body: bytes) -> dict[str, Json]:
    """Raises RefusedError."""
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise RefusedError(422, "the body is not a json object") from error


class WorldRequest(msgspec.Struct, frozen=True, kw_only=True):
    method: str
    path: tuple[str, ...]  # in the app
    query: Mapping[str, str]
    headers: Mapping[str, str]  # lower-case names
    body: bytes

    def fields(self) -> dict[str, Json]:
        """Of the body. Raises RefusedError."""
        return fields_of(self.body) if self.body else {}


class WorldResponse(msgspec.Struct, frozen=True):
    status: int
    content: Json
    headers: tuple[tuple[str, str], ...] = ()


class AppServices:
    """The services of some apps with state, made of their APIs and records alone.

    The supervisor tells a password for each app, which follows from `secret`; `ids` are those of new records.
    """

    def __init__(self, apis: Iterable[Api], records: Records, *, secret: str, ids: Random) -> None:
        self.records = records
        self._apis = {api.name: api for api in apis}
        self._secret, self._ids = secret, ids
        self._reads: dict[str, int] = {}
        self._writes: dict[str, int] = {}

    def respond(self, app: str, request: WorldRequest) -> WorldResponse:
        """The answer of an app."""
        if app == SUPERVISOR:
            return WorldResponse(200, {name: self.password(name) for name in self._apis})
        if app not in self._apis:
            return WorldResponse(404, {"message": f"no app {app}"})
        api = self._apis[app]
        try:
            return self._operate(api, request)
        except RefusedError as refusal:
            error = {api.wire("error"): refusal.message}
            if refusal.status == 429:
                return WorldResponse(429, error, (("retry-after", "1"),))
            if api.shape.errors == "soft":
                return WorldResponse(200, {api.wire("ok"): False, **error})
            return WorldResponse(refusal.status, error)

    def password(self, app: str) -> str:
        return self._digest(app, "password")

    def token(self, app: str) -> str:
        return self._digest(app, "token")

    def _digest(self, app: str, purpose: str) -> str:
        return blake2b(f"{self._secret} {app} {purpose}".encode(), digest_size=5).hexdigest()

    def _operate(self, api: Api, request: WorldRequest) -> WorldResponse:
        route, identity = _match_route(api.routes, request)
        if route.role == "login":
            if request.fields().get("password") != self.password(api.name):
                raise RefusedError(401, "wrong password")
            return WorldResponse(200, {api.wire("token"): self.token(api.name)})
        self._authorize(api, request)
        collection, records = api.collections[route.collection], self.records[api.name, route.collection]
        match route.role:
            case "settings":
                return WorldResponse(200, {"locale": "en", "version": 3})
            case "info":
                status: dict[str, Json] = {name: f"{name[:2]}-{len(name)}" for name in api.status_names}
                return WorldResponse(200, {**status, api.wire("version"): api.version, "uptime": 4711})
            case "other":
                return WorldResponse(200, {"job": len(records)})
            case "list":
                self._limit_rate(api)
                return _list(api, collection, _filtered(api, collection, records, request.query), request)
            case "search":
                words = request.query.get("q", "").lower()
                found = [each for each in records if words in each.title.lower()]
                return _list(api, collection, found, request)
            case "show":
                self._limit_rate(api)
                return WorldResponse(
                    200, _row(api, collection, _record(collection, records, identity), whole=True)
                )
            case "create":
                return self._create(api, route, records, request.fields())
            case "delete":
                records.remove(_record(collection, records, identity))
                return WorldResponse(204, None)
        return self._change(api, route, records, identity, request.fields())

    def _authorize(self, api: Api, request: WorldRequest) -> None:
        wanted = self.password(api.name) if api.shape.auth == "key" else self.token(api.name)
        match api.shape.auth:
            case "open":
                return
            case "query_token":
                name = api.wire("token")
                given = request.query.get(name)
            case _:
                name = api.header
                given = request.headers.get(name.lower())
        if given != wanted:
            raise RefusedError(401, f"wrong {name}")

    def _limit_rate(self, api: Api) -> None:
        """Counts a read, if reads are limited; every fourth is refused, from the second on."""
        if api.shape.errors == "limited":
            count = self._reads[api.name] = self._reads.get(api.name, 0) + 1
            if count % 4 == 2:
                raise RefusedError(429, "too many requests, retry after 1 second")

    def _be_busy(self, api: Api) -> None:
        """Counts a change, if services are busy at times; every third is refused, from the first on."""
        if api.shape.errors == "soft":
            count = self._writes[api.name] = self._writes.get(api.name, 0) + 1
            if count % 3 == 1:
                raise RefusedError(503, "busy")

    def _create(self, api: Api, route: Route, records: list[Record], given: dict[str, Json]) -> WorldResponse:
        collection = api.collections[route.collection]
        changes = _changes(api, route, given, "")
        if not changes.fields.get(collection.required):
            raise RefusedError(422, f"{collection.fields[collection.required]} is required")
        record = blank_record(collection, new_id(api, {each.id for each in records}, self._ids))
        changes.apply(record)
        records.append(record)
        if api.shape.created == "nothing":
            return WorldResponse(204, None)
        whole = _row(api, collection, record, whole=True)
        return WorldResponse(200, whole if api.shape.created == "record" else {api.id_name: record.id})

    def _change(
        self, api: Api, route: Route, records: list[Record], identity: str, given: dict[str, Json]
    ) -> WorldResponse:
        collection = api.collections[route.collection]
        batch = api.shape.write == "batch" and "ids" in given
        listed = given["ids"] if batch else [identity or given.get(api.id_name)]
        if not isinstance(listed, list):
            raise RefusedError(422, "ids is not a list")
        changed = [_record(collection, records, each) for each in listed]
        changes = [_changes(api, route, given, record.state) for record in changed]
        if not all(each.fields or each.extra for each in changes):
            raise RefusedError(422, "nothing to change")
        self._be_busy(api)
        for record, each in zip(changed, changes, strict=True):
            each.apply(record)
        if api.shape.errors == "soft":
            return WorldResponse(200, {api.wire("ok"): True, api.wire("error"): ""})
        if collection.is_strict:
            return WorldResponse(200, {"changed": len(changed)})
        return WorldResponse(200, _row(api, collection, changed[0], whole=True))


class LiveWorlds(Generic[State]):
    """Live worlds by id: created when they are first asked for, isolated, and alive until they are forgotten.

    It is the ASGI application that serves them: `/{world}/{app}/...`.
    """

    def __init__(self, create: Callable[[str], State]) -> None:
        self._create = create
        self._alive: dict[str, State] = {}

    def get(self, world: str) -> State:
        """Raises NotFoundError for an id that names no world."""
        if world not in self._alive:
            self._alive[world] = self._create(world)
        return self._alive[world]

    def forget(self, world: str) -> None:
        self._alive.pop(world, None)

    async def __call__(self, scope: Mapping[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        body = b""
        while (message := await receive())["type"] == "http.request":
            body += message.get("body", b"")
            if not message.get("more_body", False):
                break
        response = self._response(scope, body)
        headers = [(b"content-type", b"application/json")]
        headers += [(name.encode(), value.encode()) for name, value in response.headers]
        content = b"" if response.status == 204 else msgspec.json.encode(response.content)
        await send({"type": "http.response.start", "status": response.status, "headers": headers})
        await send({"type": "http.response.body", "body": content})

    def _response(self, scope: Mapping[str, Any], body: bytes) -> WorldResponse:
        parts = [part for part in scope["path"].split("/") if part]
        if len(parts) < 2:
            return WorldResponse(404, {"message": "no such address"})
        request = WorldRequest(
            method=scope["method"],
            path=tuple(parts[2:]),
            query=dict(parse_qsl(scope["query_string"].decode("latin-1"))),
            headers={name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]},
            body=body,
        )
        try:
            return self.get(parts[0]).respond(parts[1], request)
        except NotFoundError as error:
            return WorldResponse(404, {"message": str(error)})


def _match_route(routes: Iterable[Route], request: WorldRequest) -> tuple[Route, str]:
    """The route of a request, and the id in its address, if there is one. Raises RefusedError."""
    for route in sorted(routes, key=lambda each: "{" in each.path):  # `/tickets/feed` is no ticket
        parts = route.path.strip("/").split("/")
        if route.method != request.method or len(parts) != len(request.path):
            continue
        pairs = list(zip(parts, request.path, strict=True))
        if all(part.startswith("{") or part == given for part, given in pairs):
            return route, next((given for part, given in pairs if part.startswith("{")), "")
    raise RefusedError(404, "no such address")


def _record(collection: Collection, records: list[Record], identity: Json) -> Record:
    for record in records:
        if str(record.id) == str(identity):
            return record
    raise RefusedError(404, f"no {collection.domain.noun} {str(identity)[:40]}")


def _filtered(api: Api, collection: Collection, records: list[Record], query: Mapping[str, str]) -> list[Record]:
    for field in FILTERED if api.shape.filters == "equal" else ():
        wanted = query.get(collection.fields[field])
        records = [each for each in records if wanted in (None, getattr(each, field))]
    return records


def _list(api: Api, collection: Collection, records: list[Record], request: WorldRequest) -> WorldResponse:
    """The page that the query asks for."""
    at, size = _start(api, request.query), _size(api, request.query, len(records))
    listed = [(str(each.id), _row(api, collection, each, whole=False)) for each in records[at : at + size]]
    content: Json = dict(listed) if api.shape.is_keyed else [row for _, row in listed]
    for key in reversed(rows_at(api, collection)):
        content = {key: content}
    after = f"c{at + size}" if at + size < len(records) else None
    if api.shape.paging == "cursor":
        content[api.wire("next")] = after
    if api.shape.paging != "link":
        return WorldResponse(200, content)
    link = f"/{'/'.join(request.path)}?{api.wire('cursor')}={quote(after)}" if after else None
    content[api.wire("links")] = {"next": link}
    return WorldResponse(200, content, (("link", f'<{link}>; rel="next"'),) if link else ())


def _start(api: Api, query: Mapping[str, str]) -> int:
    """The position of the first record."""
    match api.shape.paging:
        case "page":
            page = _number(query.get(api.wire("page"), str(api.first_page)))
            if page is None or page < api.first_page:
                raise RefusedError(422, f"{api.wire('page')} must be at least {api.first_page}")
            return (page - api.first_page) * PAGE_SIZE
        case "offset":
            offset = _number(query.get(api.wire("offset"), "0"))
            if offset is None or offset < 0:
                raise RefusedError(422, f"{api.wire('offset')} must be at least 0")
            return offset
        case "cursor" | "link":
            text = query.get(api.wire("cursor"), "c0")
            cursor = _number(text[1:]) if text.startswith("c") else None
            if cursor is None:
                raise RefusedError(422, f"unknown {api.wire('cursor')}")
            return cursor
    return 0


def _size(api: Api, query: Mapping[str, str], total: int) -> int:
    if api.shape.paging == "whole":
        return total
    wanted = _number(query.get(api.wire("limit"), "")) if api.shape.paging == "offset" else None
    return PAGE_SIZE if wanted is None else max(1, min(wanted, PAGE_SIZE))


def _number(text: str) -> int | None:
    return int(text) if text.removeprefix("-").isdecimal() and len(text) < 10 else None


def _row(api: Api, collection: Collection, record: Record, *, whole: bool) -> dict[str, Json]:
    """A record as the API shows it."""
    rest: dict[str, Json] = {
        name: getattr(record, field)
        for field, name in collection.fields.items()
        if whole or not api.shape.lacks_field or field != collection.hidden
    }
    if api.shape.nesting == "object":
        rest[collection.fields["person"]] = {api.wire("inner"): record.person}
    rest |= {flag: record.state == flag for flag in collection.flags} | record.extra
    first: dict[str, Json] = {api.id_name: record.id}
    return {**first, api.wire("group"): rest} if api.shape.nesting == "grouped" else {**first, **rest}


class _Changes(msgspec.Struct, frozen=True):
    """What a request sets."""

    fields: dict[RecordField, Json]
    extra: dict[str, Json] = {}

    def apply(self, record: Record) -> None:
        for field, value in self.fields.items():
            setattr(record, field, value)
        record.extra |= self.extra


def _changes(api: Api, route: Route, given: dict[str, Json], state: str) -> _Changes:
    """`state` is that of the record, if there is one."""
    if route.verb is not None:
        return _Changes({"state": route.verb.done})
    collection = api.collections[route.collection]
    if api.shape.body == "wrapped":
        inner = given.get(collection.singular)
        if not isinstance(inner, dict):
            raise RefusedError(422, f"{collection.singular} is required")
        given = inner
    sets_state = route.role == "update" and api.shape.write == "patch"  # or only its own operation does
    fields: dict[RecordField, Json] = {
        field: given[collection.fields[field]]
        for field in collection.writable
        if given.get(collection.fields.get(field, "")) is not None and (field != "state" or sets_state)
    }
    for field in collection.fields:
        if field in fields:
            _check(collection, field, fields[field])
    fields |= _flagged(collection, given, state) if sets_state else {}
    extra = {name: given[name] for name in collection.writable_extras if given.get(name) is not None}
    return _Changes(fields, extra)


def _check(collection: Collection, field: RecordField, value: Json) -> None:
    """Raises RefusedError for a value that the field does not take."""
    name, is_strict = collection.fields[field], collection.is_strict
    if not is_strict and not isinstance(value, int if field == "number" else str):
        raise RefusedError(422, f"{name} has the wrong type")
    if is_strict and field == "state" and value not in collection.states[1:]:
        raise RefusedError(422, f"{name} cannot be {str(value)[:40]}")
    known = {"label": collection.domain.values if is_strict else None, "state": collection.states}.get(field)
    if known is not None and value not in known:
        raise RefusedError(422, f"{name} must be one of {', '.join(known)}")


def _flagged(collection: Collection, given: Mapping[str, Json], state: str) -> dict[RecordField, Json]:
    """The state of a record after its flags are set: one that it did not have, if any is, or none."""
    flags = {flag: given[flag] for flag in collection.flags if given.get(flag) is not None}
    if wrong := [flag for flag, value in flags.items() if not isinstance(value, bool)]:
        raise RefusedError(422, f"{wrong[0]} has the wrong type")
    if not flags:
        return {}
    new = [flag for flag, value in flags.items() if value and flag != state]
    kept = state if flags.get(state, True) else collection.domain.initial
    return {"state": new[0] if new else kept}

"""The services of apps that keep records: the worlds, and what each operation does."""

from collections.abc import Mapping
from hashlib import blake2b
from random import Random

import msgspec

from app.records import Json
from trainer.worlds.generated.crud_apis import PAGE_SIZE, CrudApi, CrudRoute
from trainer.worlds.generated.crud_collections import Collection, RecordField
from trainer.worlds.generated.crud_plans import place_in, plan_of
from trainer.worlds.generated.crud_records import CrudRecord, Records, blank_record, initial_records, new_id
from trainer.worlds.generated.gym_documents import SUPERVISOR
from trainer.worlds.generated.world_services import ServiceRefusal, WorldRequest, WorldResponse, match_route


class CrudState:
    """The mutable state of one world."""

    def __init__(self, world: str) -> None:
        key, self.index = place_in(world)
        self.plan = plan_of(key)
        self.records: Records = initial_records(self.plan, self.index)
        self.ids = self.plan.key.random(f"new ids {self.index}")

    def password(self, app: str) -> str:
        secret = f"{self.plan.key.text}-{self.index} {app} password"  # without the nonce: the same in all rollouts
        return blake2b(secret.encode(), digest_size=5).hexdigest()


def respond(state: CrudState, app: str, request: WorldRequest) -> WorldResponse:
    """The answer of an app of a world."""
    if app == SUPERVISOR:
        return WorldResponse(200, {api.name: state.password(api.name) for api in state.plan.apis})
    api = next((api for api in state.plan.apis if api.name == app), None)
    if api is None:
        return WorldResponse(404, {"message": f"no app {app}"})
    try:
        return _operate(state, api, request)
    except ServiceRefusal as refusal:
        return WorldResponse(refusal.status, {api.wire("error"): refusal.message})


def _operate(state: CrudState, api: CrudApi, request: WorldRequest) -> WorldResponse:
    route, identity = match_route(api.routes, request)
    if api.shape.auth == "key" and request.headers.get(api.words["header"].lower()) != state.password(api.name):
        raise ServiceRefusal(401, f"wrong {api.words['header']}")
    if route.role == "info":
        status: dict[str, Json] = {name: f"{name[:2]}-{len(name)}" for name in api.status_names}
        return WorldResponse(200, {**status, api.wire("version"): api.version, "uptime": 4711})
    collection, records = api.collections[route.collection], state.records[api.name, route.collection]
    if route.role == "other":
        return WorldResponse(200, {"job": len(records)})
    if route.role == "search":
        words = request.query.get("q", "").lower()
        records = [each for each in records if words in each.title.lower()]
    if route.role in ("list", "search"):
        return WorldResponse(200, _listed(api, collection, records, request))
    if route.role == "create":
        return _create(api, collection, records, _changes(api, route, request, ""), state.ids)
    return _operate_on_one(api, route, records, identity, request)


def _operate_on_one(
    api: CrudApi, route: CrudRoute, records: list[CrudRecord], identity: str, request: WorldRequest
) -> WorldResponse:
    collection = api.collections[route.collection]
    record = next((each for each in records if str(each.id) == identity), None)
    if record is None:
        raise ServiceRefusal(404, f"no {collection.domain.noun} {identity[:40]}")
    if route.role == "delete":
        records.remove(record)
        return WorldResponse(204, None)
    if route.role in ("act", "update"):
        done = _Changes({"state": route.verb.done}) if route.verb else None
        _change(record, done or _changes(api, route, request, record.state))
    return WorldResponse(200, _row(api, collection, record, whole=True))


def _change(record: CrudRecord, changes: "_Changes") -> None:
    if not changes.fields and not changes.extra:
        raise ServiceRefusal(422, "nothing to change")
    for field, value in changes.fields.items():
        setattr(record, field, value)
    record.extra |= changes.extra


def _listed(api: CrudApi, collection: Collection, records: list[CrudRecord], request: WorldRequest) -> Json:
    if api.shape.is_keyed:
        by_id: Json = {str(each.id): _row(api, collection, each, whole=False) for each in records}
        return by_id if api.shape.listing == "keyed" else {collection.resource: by_id}
    if api.shape.paging == "page":
        page = request.query.get(api.wire("page"), "1")
        if not page.isdecimal() or not 0 < int(page) < 10_000:
            raise ServiceRefusal(422, f"{api.wire('page')} must be at least 1")
        records = records[(int(page) - 1) * PAGE_SIZE : int(page) * PAGE_SIZE]
    rows: list[Json] = [_row(api, collection, each, whole=False) for each in records]
    if api.shape.listing == "bare":
        return rows
    return {collection.resource if api.shape.listing == "named" else api.wire("data"): rows}


def _row(api: CrudApi, collection: Collection, record: CrudRecord, *, whole: bool) -> dict[str, Json]:
    """A record as the API shows it."""
    shown = [
        field for field in collection.fields if whole or not api.shape.lacks_field or field != collection.hidden
    ]
    rest: dict[str, Json] = {collection.fields[field]: getattr(record, field) for field in shown}
    rest |= {flag: record.state == flag for flag in collection.flags}
    rest |= record.extra
    first: dict[str, Json] = {api.id_name: record.id}
    return {**first, api.wire("group"): rest} if api.shape.nesting == "grouped" else {**first, **rest}


def _create(
    api: CrudApi, collection: Collection, records: list[CrudRecord], given: "_Changes", ids: Random
) -> WorldResponse:
    if not given.fields.get(collection.required):
        raise ServiceRefusal(422, f"{collection.fields[collection.required]} is required")
    record = blank_record(collection, new_id(api, {each.id for each in records}, ids))
    _change(record, given)
    records.append(record)
    if api.shape.created == "nothing":
        return WorldResponse(204, None)
    whole = _row(api, collection, record, whole=True)
    return WorldResponse(200, whole if api.shape.created == "record" else {api.id_name: record.id})


def _flagged(collection: Collection, given: Mapping[str, Json], state: str) -> dict[RecordField, Json]:
    """The state of a record after its flags are set: one that it did not have, if any is, or none."""
    flags = {flag: given[flag] for flag in collection.flags if given.get(flag) is not None}
    if wrong := [flag for flag, value in flags.items() if not isinstance(value, bool)]:
        raise ServiceRefusal(422, f"{wrong[0]} has the wrong type")
    if not flags:
        return {}
    new = [flag for flag, value in flags.items() if value and flag != state]
    kept = state if flags.get(state, True) else collection.domain.initial
    return {"state": new[0] if new else kept}


class _Changes(msgspec.Struct, frozen=True):
    """What a body sets."""

    fields: dict[RecordField, Json]
    extra: dict[str, Json] = {}


def _changes(api: CrudApi, route: CrudRoute, request: WorldRequest, state: str) -> _Changes:
    """`state` is that of the record, if there is one."""
    collection, given = api.collections[route.collection], request.fields()
    if api.shape.body == "wrapped":
        inner = given.get(collection.singular)
        if not isinstance(inner, dict):
            raise ServiceRefusal(422, f"{collection.singular} is required")
        given = inner
    fields = {field: given[name] for field, name in collection.fields.items() if given.get(name) is not None}
    for field, value in fields.items():
        if not isinstance(value, int if field == "number" else str):
            raise ServiceRefusal(422, f"{collection.fields[field]} has the wrong type")
    fields |= _flagged(collection, given, state)
    if "state" in fields:
        if route.role == "create" or api.shape.act == "path":
            del fields["state"]  # only its own operation sets it
        elif fields["state"] not in collection.states:
            raise ServiceRefusal(
                422, f"{collection.fields['state']} must be one of {', '.join(collection.states)}"
            )
    extra = {name: given[name] for name in collection.writable_extras if given.get(name) is not None}
    return _Changes(fields, extra)

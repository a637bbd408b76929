"""The records of a world: at its start, as a task wants them at its end, and what its answer is."""

from collections.abc import Container
from random import Random

import msgspec

from app.records import Json
from trainer.environment import Verdict
from trainer.worlds.generated.crud_apis import CrudApi
from trainer.worlds.generated.crud_collections import Collection
from trainer.worlds.generated.crud_plans import CrudPlan, Values, draw_field
from trainer.worlds.generated.final_state import wrong_answer

RecordId = int | str
_COUNTS = range(5, 11)  # of the collection that the task is about
_FEWER = range(3, 6)


class CrudRecord(msgspec.Struct):
    """Without an address if its kind has none."""

    id: RecordId
    title: str
    link: str
    person: str
    label: str
    number: int
    date: str
    state: str
    extra: dict[str, Json]  # by wire name, what no task asks for

    @property
    def facts(self) -> tuple[object, ...]:
        """All but the id, which the server gives."""
        return msgspec.structs.astuple(self)[1:]


Records = dict[tuple[str, int], list[CrudRecord]]  # by app and place of the collection


def initial_records(plan: CrudPlan, index: int) -> Records:
    records: Records = {}
    for api in plan.apis:
        for at, collection in enumerate(api.collections):
            rng = plan.key.random(f"records {index} {api.name} {at}")
            is_target = api is plan.main and at == plan.collection
            count = rng.choice(_COUNTS if is_target else _FEWER)
            records[api.name, at] = _any_records(api, collection, plan, count, rng)
            if is_target:
                _set_task(records[api.name, at], plan, plan.values[index], rng)
    return records


def _any_records(
    api: CrudApi, collection: Collection, plan: CrudPlan, count: int, rng: Random
) -> list[CrudRecord]:
    pool = plan.key.pool("domains")
    drawn = {field: draw_field(field, count, collection, pool, rng) for field in collection.fields}
    ids: set[RecordId] = set()
    while len(ids) < count:
        ids.add(new_id(api, ids, rng))
    return [
        CrudRecord(
            id=identity,
            title=str(drawn["title"][at]),
            link=str(drawn["link"][at]) if collection.has_link else "",
            person=str(drawn["person"][at]),
            label=str(drawn["label"][at]),
            number=int(drawn["number"][at]),
            date=str(drawn["date"][at]),
            state=rng.choice(collection.states),
            extra={name: f"{name[:2]}-{rng.randrange(7)}" for name in collection.distractors},
        )
        for at, identity in enumerate(sorted(ids, key=str))
    ]


def new_id(api: CrudApi, taken: Container[RecordId], rng: Random) -> RecordId:
    while True:
        drawn = rng.randint(100, 99_999) if api.shape.ids == "number" else f"{rng.getrandbits(40):010x}"
        if drawn not in taken:
            return drawn


def _set_task(records: list[CrudRecord], plan: CrudPlan, values: Values, rng: Random) -> None:
    """What the task wants does not hold yet."""
    match plan.form.goal:
        case "count_state" | "delete_state":
            for record in rng.sample(records, 2):
                record.state = str(values["state"])
        case "act_all":
            for record in records:
                record.state = _other_state(plan, rng)
        case "read" | "change" | "delete" | "act":
            _set_meant(records, plan, values, rng)


def _set_meant(records: list[CrudRecord], plan: CrudPlan, values: Values, rng: Random) -> None:
    """One record, and no other, is the one that the task names."""
    form = plan.form
    for record in records:
        if getattr(record, form.by) == values[form.by]:
            setattr(record, form.by, f"{values[form.by]}-2")
    meant = rng.choice(records)
    setattr(meant, form.by, values[form.by])
    if form.goal == "act":
        meant.state = _other_state(plan, rng)
    if form.goal == "change" and getattr(meant, form.field) == values["new"]:
        every = (getattr(each, form.field) for each in records)
        setattr(meant, form.field, next(each for each in every if each != values["new"]))


def _other_state(plan: CrudPlan, rng: Random) -> str:
    """One that the task's verb does not lead to."""
    return rng.choice([state for state in plan.target.states if state != plan.verb.done])


def _meant(records: list[CrudRecord], plan: CrudPlan, values: Values) -> CrudRecord:
    return next(record for record in records if getattr(record, plan.form.by) == values[plan.form.by])


def expected_answer(plan: CrudPlan, index: int) -> str | int | None:
    """What the task asks for; None if it asks for nothing."""
    values = plan.values[index]
    records = initial_records(plan, index)[plan.main.name, plan.collection]
    match plan.form.goal:
        case "count":
            return len(records)
        case "count_state":
            return sum(record.state == values["state"] for record in records)
        case "info":
            return plan.main.version
        case "read":
            found: str | int = getattr(_meant(records, plan, values), plan.form.field)
            return found
    return None


def wanted_records(plan: CrudPlan, index: int) -> Records:
    """Those at the end. A new one has the id 0."""
    wanted, values, form = initial_records(plan, index), plan.values[index], plan.form
    records = wanted[plan.main.name, plan.collection]
    match form.goal:
        case "create":
            records.append(blank_record(plan.target, 0))
            for field, value in values.items():
                setattr(records[-1], field, value)
        case "change":
            setattr(_meant(records, plan, values), form.field, values["new"])
        case "delete":
            records.remove(_meant(records, plan, values))
        case "act":
            _meant(records, plan, values).state = plan.verb.done
        case "act_all":
            for record in records:
                record.state = plan.verb.done
        case "delete_state":
            records[:] = [record for record in records if record.state != values["state"]]
    return wanted


def blank_record(collection: Collection, identity: RecordId) -> CrudRecord:
    """A new record, before anything is known of it."""
    extra: dict[str, Json] = dict.fromkeys(collection.distractors, "")
    return CrudRecord(identity, "", "", "", collection.domain.values[0], 0, "", collection.domain.initial, extra)


def verify_records(plan: CrudPlan, index: int, found: Records, answer: Json, *, completed: bool) -> Verdict:
    """One check for each record that the task changes, one that nothing else changed, one of the answer."""
    start, wanted = _by_place(initial_records(plan, index)), _by_place(wanted_records(plan, index))
    ended = _by_place(found)
    changing = {place for place in start | wanted if start.get(place) != wanted.get(place)}
    new = [place for place in changing if place not in start]
    added = [place for place in ended if place not in start]
    failures = [
        f"{_name(place)}: expected {wanted.get(place)}, found {ended.get(place)}"
        for place in sorted(changing - set(new), key=_name)
        if ended.get(place) != wanted.get(place)
    ]
    if new and sorted(map(str, map(ended.get, added))) != sorted(map(str, map(wanted.get, new))):
        failures.append(f"expected a new record {wanted[new[0]]}, found {[ended[place] for place in added]}")
    others = [place for place in start if place not in changing and ended.get(place) != start[place]]
    others += [] if new else added
    if others:
        failures.append(f"changed without being asked: {', '.join(map(_name, others))}")
    if wrong := wrong_answer(expected_answer(plan, index), answer, completed=completed):
        failures.append(wrong)
    total = len(changing) + 2
    return Verdict(total - len(failures), total, tuple(failures))


Place = tuple[str, int, RecordId]


def _by_place(records: Records) -> dict[Place, tuple[object, ...]]:
    return {(*place, record.id): record.facts for place, listed in records.items() for record in listed}


def _name(place: Place) -> str:
    return f"{place[0]} {place[2]}"

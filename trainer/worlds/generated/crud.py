"""The tasks of `crud`: to count, read, create, change and delete records, each made from the schema of a kind.

A form says what is asked. Its values are drawn from the schema, records are made to fit them, and what a task
wants of records follows.
"""

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from random import Random
from typing import Literal, TypeAlias, get_args

import msgspec

from trainer.lessons.phrases import BY_LINK, CRUD_FRAMES, GIVEN, LINKED, ONE, TITLED, Wordings
from trainer.worlds.generated.apis import (
    CRUD,
    RECORD_FIELDS,
    Api,
    ApiShape,
    Collection,
    RecordField,
    Role,
    draw_crud_api,
    verbs_of,
)
from trainer.worlds.generated.environment import TASKS, Ask, GeneratedEnvironment, Key, Plan
from trainer.worlds.generated.words import Domain, Pool, Verb, draw_domain, draw_names, people, projects
from trainer.worlds.generated.worlds import DATES, Record, RecordId, Records, Values, blank_record, new_id

HeldOut: TypeAlias = Literal["all", "domains", "shapes", "phrasings"]
CrudGoal: TypeAlias = Literal[
    "count", "count_state", "read", "create", "change", "delete", "act", "act_all", "delete_state", "info"
]
By: TypeAlias = Literal["title", "link"]

CRUD_GOALS: tuple[CrudGoal, ...] = get_args(CrudGoal)
ANSWERING: frozenset[CrudGoal] = frozenset({"count", "count_state", "read", "info"})
SINGLE: frozenset[CrudGoal] = frozenset({"read", "change", "delete", "act"})  # of one record
_WEIGHTS: dict[CrudGoal, int] = {
    "count": 1, "count_state": 1, "read": 3, "create": 4, "change": 4, "delete": 2, "act": 3, "act_all": 1,
    "delete_state": 1, "info": 1,
}  # fmt: skip
_LESSON_WEIGHTS = {goal: max(weight, 2) for goal, weight in _WEIGHTS.items()}
_BY_LINK = 0.3
_TITLED = 0.4  # of new records that need no title
_COUNTS = range(5, 11)  # of the records that the task is about
_FEWER = range(3, 6)
_IN_FULL = 0.3  # of tasks call the records what the description of the app does
_FRAMES_OF: dict[RecordField, dict[Pool, Wordings]] = {"title": TITLED, "link": LINKED}
_PATHS = (
    "prices", "news", "a", "index.html", "list?page=2", "notices", "hours", "feed.xml", "offers", "line4",
    "docs/1",
)  # fmt: skip
_SECOND = ("plan", "report", "2", "draft", "overview", "archive", "notes", "B")


def load_environment(*, held_out: HeldOut = "all") -> "CrudEnvironment":
    """The plug-in `crud`. Options as in `CrudEnvironment`."""
    return CrudEnvironment(held_out)


class CrudForm(msgspec.Struct, frozen=True, kw_only=True):
    """All tasks of a scenario have the same form; their values differ.

    `by` names the one record of a task, `field` is read or changed, `given` are written, and a title as well.
    """

    goal: CrudGoal
    by: By = "title"
    field: RecordField = "title"
    is_titled: bool = True
    given: tuple[RecordField, ...] = ()

    @property
    def written(self) -> tuple[RecordField, ...]:
        """The fields of a new record."""
        return ("title", *self.given) if self.is_titled else self.given

    @property
    def name(self) -> str:
        detail = {
            "read": self.field,
            "change": self.field,
            "create": "_".join(self.given if self.is_titled else ("untitled", *self.given)),
        }.get(self.goal, "")
        by = self.by if self.goal in SINGLE else ""
        return ".".join(filter(None, (self.goal, detail, by)))

    @property
    def is_answered(self) -> bool:
        return self.goal in ANSWERING

    @property
    def parameters(self) -> tuple[str, ...]:
        """The details in which tasks differ: fields, `new`, or `state`."""
        match self.goal:
            case "count_state" | "delete_state":
                return ("state",)
            case "create":
                return self.written
            case "change":
                return (self.by, "new")
            case "read" | "delete" | "act":
                return (self.by,)
        return ()


class CrudAsk(Ask, frozen=True, kw_only=True):
    form: CrudForm
    at: int  # the place of the collection
    verb: Verb

    @property
    def collection(self) -> Collection:
        return self.main.collections[self.at]

    @property
    def reads_rows(self) -> bool:
        return self.form.goal not in ("create", "info")

    @property
    def read(self) -> RecordField | None:
        """The field of rows that the task is about, besides the one that names a record."""
        if self.form.goal in ("count_state", "delete_state"):
            return "state"
        return self.form.field if self.form.goal == "read" else None

    @property
    def is_hidden(self) -> bool:
        """Whether rows of lists lack what the task is about."""
        return self.main.shape.lacks_field and self.read == self.collection.hidden

    @property
    def acts_by_update(self) -> bool:
        return self.main.shape.write == "patch"

    @property
    def writes(self) -> Role | None:
        """The operation that changes something."""
        match self.form.goal:
            case "create":
                return "create"
            case "change":
                return "update"
            case "delete" | "delete_state":
                return "delete"
            case "act" | "act_all":
                return "update" if self.acts_by_update else "act"
        return None

    def answer(self, records: Records, values: Values) -> str | int | None:
        asked = records[self.main.name, self.at]
        match self.form.goal:
            case "count":
                return len(asked)
            case "count_state":
                return sum(record.state == values["state"] for record in asked)
            case "info":
                return self.main.version
            case "read":
                found: str | int = getattr(self._meant(asked, values), self.form.field)
                return found
        return None

    def carry_out(self, records: Records, values: Values) -> None:
        form, asked = self.form, records[self.main.name, self.at]
        match form.goal:
            case "create":
                asked.append(blank_record(self.collection, 0))
                for field, value in values.items():
                    setattr(asked[-1], field, value)
            case "change":
                setattr(self._meant(asked, values), form.field, values["new"])
            case "delete":
                asked.remove(self._meant(asked, values))
            case "act":
                self._meant(asked, values).state = self.verb.done
            case "act_all":
                for record in asked:
                    record.state = self.verb.done
            case "delete_state":
                asked[:] = [record for record in asked if record.state != values["state"]]

    def make_fit(self, records: list[Record], values: Values, rng: Random) -> None:
        """Change records so that the task makes sense, and what it wants does not hold yet."""
        match self.form.goal:
            case "count_state" | "delete_state":
                for record in rng.sample(records, 2):
                    record.state = str(values["state"])
            case "act_all":
                for record in records:
                    record.state = self._other_state(rng)
            case "read" | "change" | "delete" | "act":
                self._make_one_fit(records, values, rng)

    def word(self, values: Values, pool: Pool, rng: Random) -> str:
        form, collection = self.form, self.collection
        prose, one = collection.prose, ""
        noun, nouns = collection.domain.noun, collection.domain.nouns
        if rng.random() < _IN_FULL:
            noun, nouns = collection.described
        if form.by in values:
            frames = BY_LINK[pool] if form.by == "link" else ONE[pool]
            one = rng.choice(frames).format(noun=noun, nouns=nouns, by=prose[form.by], value=values[form.by])
        parts = [
            rng.choice(_FRAMES_OF.get(field, GIVEN)[pool]).format(field=prose[field], value=values[field])
            for field in (form.written if form.goal == "create" else ())
        ]
        return rng.choice(CRUD_FRAMES[pool][form.goal]).format(
            noun=noun,
            nouns=nouns,
            app=self.main.name,
            one=one,
            One=f"{one[:1].upper()}{one[1:]}",
            field=prose[form.field],
            given=" and ".join(parts),
            new=values.get("new", ""),
            state=values.get("state", ""),
            version=self.main.words.get("version", ""),
            act=self.verb.base,
            Act=self.verb.base.capitalize(),
            acted=self.verb.done,
        )

    def _make_one_fit(self, records: list[Record], values: Values, rng: Random) -> None:
        """One record, and no other, is the one that the task names."""
        form = self.form
        for record in records:
            if getattr(record, form.by) == values[form.by]:
                setattr(record, form.by, f"{values[form.by]}-2")
        meant = rng.choice(records)
        setattr(meant, form.by, values[form.by])
        if form.goal == "act":
            meant.state = self._other_state(rng)
        if form.goal == "change" and getattr(meant, form.field) == values["new"]:
            every = (getattr(each, form.field) for each in records)
            setattr(meant, form.field, next(each for each in every if each != values["new"]))

    def _other_state(self, rng: Random) -> str:
        """One that the task's verb does not lead to."""
        return rng.choice([state for state in self.collection.states if state != self.verb.done])

    def _meant(self, records: Sequence[Record], values: Values) -> Record:
        return next(record for record in records if getattr(record, self.form.by) == values[self.form.by])


class CrudKey(Key, frozen=True):
    axes = ("domains", "shapes", "phrasings")
    world_prefix = "crud-"


class CrudPlan(Plan, frozen=True, kw_only=True):
    key: CrudKey
    ask: CrudAsk

    @property
    def has_passwords(self) -> bool:
        return any(api.shape.auth == "key" for api in self.apis)

    def initial_records(self, index: int) -> Records:
        records: Records = {}
        for api in self.apis:
            for at, collection in enumerate(api.collections):
                rng = self.key.random(f"records {index} {api.name} {at}")
                is_target = api is self.main and at == self.ask.at
                count = rng.choice(_COUNTS if is_target else _FEWER)
                records[api.name, at] = draw_records(api, collection, self.key.pool("domains"), count, rng)
                if is_target:
                    self.ask.make_fit(records[api.name, at], self.values[index], rng)
        return records


class CrudEnvironment(GeneratedEnvironment[CrudPlan]):
    """Tasks to create, read, change and delete records. Scenarios of validation and test hold one thing out of
    training: the words (`domains`), how the APIs work (`shapes`), or how tasks are worded (`phrasings`); `all` are
    these by turns.
    """

    def __init__(self, held_out: HeldOut = "all") -> None:
        super().__init__("crud", CrudKey, plan_of, held_out)


@lru_cache(maxsize=1024)
def plan_of(key: CrudKey) -> CrudPlan:
    rng = key.random("plan")
    words, shapes = key.pool("domains"), key.pool("shapes")
    names = draw_names(words, 3, rng)
    first, second, *spare = _domains(words, 4, rng)
    domains = (first, second)[: rng.randint(1, 2)]
    main = draw_crud_api(names[0], domains, CRUD.draw(shapes, rng), rng)
    others = tuple(
        draw_crud_api(name, (domain,), CRUD.draw("train", rng), rng)
        for name, domain in zip(names[1 : 1 + rng.randint(0, 2)], spare, strict=False)
    )
    at = rng.randrange(len(domains))
    target = main.collections[at]
    form = draw_form(target, rng, _LESSON_WEIGHTS if key.is_lesson else _WEIGHTS)
    while shapes != "train" and not _meets(form, main.shape, shapes):
        form = draw_form(target, rng)
    ask = CrudAsk(form=form, main=main, at=at, verb=rng.choice(target.verbs))
    return CrudPlan(key=key, ask=ask, others=others, values=draw_values(ask, words, key.random("values")))


def _domains(pool: Pool, count: int, rng: Random) -> list[Domain]:
    """Different kinds of records, each with something that can be done to it. No label is a state, too."""
    found: dict[str, Domain] = {}
    while len(found) < count:
        domain = draw_domain(pool, rng)
        verbs = verbs_of(domain)
        states = {domain.initial, *(verb.done for verb in verbs)}
        if verbs and states.isdisjoint(domain.values):
            found.setdefault(domain.noun, domain)
    return list(found.values())


def _meets(form: CrudForm, shape: ApiShape, pool: Pool) -> bool:
    """Whether a program for tasks of this form meets both values of a pair that the pool holds out."""
    used = {"auth"}
    if form.goal not in ("create", "info"):
        used |= {"envelope", "paging"}
    if form.goal in SINGLE or form.goal in ("count_state", "delete_state"):
        used.add("nesting")
    if form.goal in ("act", "act_all"):
        used.add("write")
    if form.goal in ("create", "change") or ("write" in used and shape.write == "patch"):
        used.add("body")
    return any(used >= pair.keys() for pair in CRUD.held_out_pairs(shape, pool))


def draw_form(target: Collection, rng: Random, weights: Mapping[CrudGoal, int] = _WEIGHTS) -> CrudForm:
    goal = rng.choices(CRUD_GOALS, [weights[each] for each in CRUD_GOALS])[0]
    by: By = "link" if target.has_link and rng.random() < _BY_LINK else "title"
    readable = [each for each in RECORD_FIELDS if each in target.fields and each != by]
    writable = [each for each in readable if each != "state"]
    match goal:
        case "read":
            return CrudForm(goal=goal, by=by, field=rng.choice(readable))
        case "change":
            return CrudForm(goal=goal, by=by, field=rng.choice(writable))
        case "create":
            more = rng.sample(
                [each for each in writable if each not in ("title", "link")], rng.choice((0, 1, 1, 2))
            )
            given = [*(["link"] if target.has_link else []), *more]
            return CrudForm(
                goal=goal,
                is_titled=target.required == "title" or rng.random() < _TITLED,
                given=tuple(each for each in RECORD_FIELDS if each in given),
            )
    return CrudForm(goal=goal, by=by)


def draw_values(ask: CrudAsk, pool: Pool, rng: Random) -> tuple[Values, ...]:
    """The values of each task. No two tasks share a value, as far as there are enough."""
    form, target = ask.form, ask.collection
    drawn = {field: draw_field(field, 2 * TASKS, target, pool, rng) for field in RECORD_FIELDS}
    states = rng.sample(target.asked_states, min(TASKS, len(target.asked_states)))
    tasks: list[Values] = []
    for index in range(TASKS):
        known: Values = {field: drawn[field][index] for field in RECORD_FIELDS}
        known["state"] = states[index % len(states)]
        known["new"] = drawn[form.field][TASKS + index]
        tasks.append({name: known[name] for name in form.parameters})
    return tuple(tasks)


def draw_records(api: Api, collection: Collection, pool: Pool, count: int, rng: Random) -> list[Record]:
    """Any records of a kind, in the order of their ids."""
    drawn = {field: draw_field(field, count, collection, pool, rng) for field in collection.fields}
    ids: set[RecordId] = set()
    while len(ids) < count:
        ids.add(new_id(api, ids, rng))
    return [
        Record(
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


def draw_field(field: RecordField, count: int, target: Collection, pool: Pool, rng: Random) -> list[str | int]:
    """Values of a field, all different but for labels and states."""
    match field:
        case "title":
            return [*titles(pool, count, rng)]
        case "link":
            return [f"https://{_host(name)}.example/{rng.choice(_PATHS)}" for name in titles(pool, count, rng)]
        case "person":
            return [*people(pool, count, rng)]
        case "label":
            labels = list(target.domain.values)
            rng.shuffle(labels)
            return [labels[at % len(labels)] for at in range(count)]
        case "number":
            return [*rng.sample(range(1, 500), count)]
        case "date":
            return [*rng.sample(DATES, count)]
    return [target.domain.initial] * count


def titles(pool: Pool, count: int, rng: Random) -> list[str]:
    """Different ones; some of several words."""
    names = projects(pool, count, rng)
    return [f"{name} {rng.choice(_SECOND)}" if rng.random() < 0.3 else name for name in names]


def _host(title: str) -> str:
    return "-".join(re.findall(r"[a-z0-9]+", title.lower()))

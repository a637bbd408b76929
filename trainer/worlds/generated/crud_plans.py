"""A scenario of the crud environment in full, derived from its key: apps, what the tasks ask, and their values."""

import re
from collections.abc import Mapping
from functools import lru_cache
from random import Random
from typing import Literal, TypeAlias, get_args
from uuid import NAMESPACE_URL, UUID, uuid5

import msgspec

from app.errors import NotFoundError
from trainer.environment import Split
from trainer.worlds.generated.app_names import draw_names
from trainer.worlds.generated.crud_apis import CrudApi, draw_api
from trainer.worlds.generated.crud_collections import RECORD_FIELDS, Collection, RecordField, verbs_of
from trainer.worlds.generated.crud_shapes import CrudShape, draw_shape, held_out_pairs
from trainer.worlds.generated.domains import Domain, Verb, draw_domain
from trainer.worlds.generated.generated_environment import TASKS
from trainer.worlds.generated.person_names import people, projects
from trainer.worlds.generated.pools import Pool

Axis: TypeAlias = Literal["domains", "shapes", "phrasings"]
CrudGoal: TypeAlias = Literal[
    "count", "count_state", "read", "create", "change", "delete", "act", "act_all", "delete_state", "info"
]
By: TypeAlias = Literal["title", "link"]
Values: TypeAlias = dict[str, str | int]

CRUD_AXES: tuple[Axis, ...] = get_args(Axis)
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
_WORLD = re.compile(
    r"crud-(train|validation|test)-(domains|shapes|phrasings)-(\d{1,12})-([0-2])(?:-x[0-9a-z]{1,16})?"
)


class CrudKey(msgspec.Struct, frozen=True):
    """`axis` is what the scenario holds out if its split is not train; everything else is as in training."""

    split: Split
    axis: Axis
    seed: int

    @property
    def text(self) -> str:
        return f"crud-{self.split}-{self.axis}-{self.seed}"

    def pool(self, axis: Axis) -> Pool:
        return self.split if axis == self.axis else "train"

    def random(self, purpose: str) -> Random:
        return Random(f"{self.text} {purpose}")


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


class CrudPlan(msgspec.Struct, frozen=True, kw_only=True):
    key: CrudKey
    form: CrudForm
    main: CrudApi
    collection: int  # of the main app, that the tasks are about
    others: tuple[CrudApi, ...]  # that no task needs
    verb: Verb
    values: tuple[Values, ...]  # by task

    @property
    def apis(self) -> tuple[CrudApi, ...]:
        """In the order of their names, which tells nothing."""
        return tuple(sorted((self.main, *self.others), key=lambda api: api.name))

    @property
    def target(self) -> Collection:
        return self.main.collections[self.collection]

    def task_id(self, index: int) -> UUID:
        return uuid5(NAMESPACE_URL, f"{self.key.text}-{index}")

    def world(self, index: int, nonce: str = "") -> str:
        return f"{self.key.text}-{index}" + (f"-x{nonce}" if nonce else "")


def place_in(world: str) -> tuple[CrudKey, int]:
    """The scenario and the position of the task whose world has this id. Raises NotFoundError."""
    match = _WORLD.fullmatch(world)
    if match is None:
        raise NotFoundError(f"no world {world[:60]}")
    split, axis, seed, index = match.groups()
    return msgspec.convert({"split": split, "axis": axis, "seed": int(seed)}, CrudKey), int(index)


@lru_cache(maxsize=1024)
def plan_of(key: CrudKey) -> CrudPlan:
    rng = key.random("plan")
    words, shapes = key.pool("domains"), key.pool("shapes")
    names = draw_names(words, 3, rng)
    first, second, *spare = _domains(words, 4, rng)
    domains = (first, second)[: rng.randint(1, 2)]
    main = draw_api(names[0], domains, draw_shape(shapes, rng), rng)
    others = tuple(
        draw_api(name, (domain,), draw_shape("train", rng), rng)
        for name, domain in zip(names[1 : 1 + rng.randint(0, 2)], spare, strict=False)
    )
    at = rng.randrange(len(domains))
    target = main.collections[at]
    form = draw_form(target, rng, _LESSON_WEIGHTS if key.split == "train" else _WEIGHTS)
    while shapes != "train" and not _meets(form, main.shape, shapes):
        form = draw_form(target, rng)
    return CrudPlan(
        key=key,
        form=form,
        main=main,
        collection=at,
        others=others,
        verb=rng.choice(target.verbs),
        values=draw_values(key, form, target),
    )


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


def _meets(form: CrudForm, shape: CrudShape, pool: Pool) -> bool:
    """Whether a program for tasks of this form meets both values of a pair that the pool holds out."""
    used = {"auth"}
    if form.goal not in ("create", "info"):
        used |= {"listing", "paging"}
    if form.goal in SINGLE or form.goal in ("count_state", "delete_state"):
        used.add("nesting")
    if form.goal in ("act", "act_all"):
        used.add("act")
    if form.goal in ("create", "change") or ("act" in used and shape.act == "field"):
        used.add("body")
    return any(used >= pair.keys() for pair in held_out_pairs(shape, pool))


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


def draw_values(key: CrudKey, form: CrudForm, target: Collection) -> tuple[Values, ...]:
    """The values of each task. No two tasks share a value, as far as there are enough."""
    rng, pool = key.random("values"), key.pool("domains")
    drawn = {field: draw_field(field, 2 * TASKS, target, pool, rng) for field in RECORD_FIELDS}
    states = rng.sample(target.asked_states, min(TASKS, len(target.asked_states)))
    tasks: list[Values] = []
    for index in range(TASKS):
        known: Values = {field: drawn[field][index] for field in RECORD_FIELDS}
        known["state"] = states[index % len(states)]
        known["new"] = drawn[form.field][TASKS + index]
        tasks.append({name: known[name] for name in form.parameters})
    return tuple(tasks)


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
            return [*rng.sample(_DATES, count)]
    return [target.domain.initial] * count


_PATHS = (
    "prices",
    "news",
    "a",
    "index.html",
    "list?page=2",
    "notices",
    "hours",
    "feed.xml",
    "offers",
    "line4",
    "docs/1",
)
_DATES = tuple(f"2026-{month:02}-{day:02}" for month in range(1, 13) for day in range(1, 29))


def titles(pool: Pool, count: int, rng: Random) -> list[str]:
    """Different ones; some of several words."""
    names = projects(pool, count, rng)
    return [f"{name} {rng.choice(_SECOND)}" if rng.random() < 0.3 else name for name in names]


_SECOND = ("plan", "report", "2", "draft", "overview", "archive", "notes", "B")


def _host(title: str) -> str:
    return "-".join(re.findall(r"[a-z0-9]+", title.lower()))

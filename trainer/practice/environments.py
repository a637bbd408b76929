"""A plug-in: tasks on the double of a user's API, each with records of its own.

A scenario is three tasks of one form; every second scenario is a contrast of the one before. What a split asks,
how it words it and what records it has belong to no other split. Asked more often is what people ask for, and
what is neither always solved nor never.
"""

import re
import secrets
from bisect import bisect
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from copy import copy
from datetime import UTC, datetime
from functools import cached_property, lru_cache
from hashlib import sha256
from itertools import accumulate
from pathlib import Path
from random import Random
from typing import Any, Final, get_args
from uuid import NAMESPACE_URL, uuid5

import httpx
import msgspec

from app.apis.calls.arguments import bind_parameters
from app.apis.calls.gateway import Gateway
from app.apis.catalog import App, Catalog, Operation
from app.apis.credentials.credential import Unrenewed
from app.apis.documents.protocols import parse_document, read_document
from app.apis.double.meanings import Record
from app.apis.double.model import Model, Modelled, read_model
from app.apis.double.service import Double, Options, served_document
from app.apis.double.shapes import field_in, flat, root_of, value_at
from app.apis.double.state import TOP, Sampled, State, sampled
from app.apis.presentation import AS_WRITTEN, Presentation, present
from app.base.errors import InvalidError, NotFoundError
from app.base.values import Call, Json, Stop, Task, Trajectory
from trainer.environment import Scenario, Split, Verdict
from trainer.practice.checks import verdict
from trainer.practice.forms import By, Form, Goal, Reach, all_forms, contrasts, likelihood, reaches
from trainer.practice.programs import Shown, Writing, write_program
from trainer.practice.tasks import (
    Drawn,
    UnfitError,
    Values,
    alone,
    belongs,
    call,
    draw_task,
    owner_of,
    rows_of,
    scope_of,
    value_of,
)
from trainer.practice.words import word

_ASKED: Final = 8.0  # times as often as otherwise: what people ask for alone
_FAILED: Final = 2  # times as much a real task counts that failed
_FADING: Final = 0.7  # of what rollouts showed, with each round of others
_FLOOR: Final = 0.1  # what is always solved, or never, is still asked so often
_AIMS: Final[Mapping[Goal, str]] = {
    "create": "create", "ensure": "create", "change": "change", "check": "change", "link": "change",
    "unlink": "change", "act": "change", "delete": "delete",
}  # fmt: skip
_ROLES: Final = {
    "list": "read", "get": "read", "create": "create", "replace": "change", "update": "change", "act": "change",
    "delete": "delete", "clear": "delete",
}  # fmt: skip
TASKS: Final = 3  # of a scenario
_NOW: Final = datetime(2026, 6, 1, 9, tzinfo=UTC)
_MANY: Final = (23, 32)  # records, so that a list has several pages
_OFTEN: Final = 0.25  # of scenarios have so many
_THIN: Final = 0.5  # of scenarios have lists that show less than the items do
_RECORDS: Final = 40  # sets of records of a split, of which each scenario changes some
_SHOWN: Final = 200  # operations of an API
_ITEMS: Final = 12  # that are read by themselves before a task is made of them
_CHOICES: Final = 6  # scenarios, of which the mix chooses one
_TRIES: Final = 6  # of other details for a form, and of other forms
_GOALS: Final[Mapping[Goal, float]] = {
    "count": 2, "list": 1.5, "sum": 0.5, "most": 0.7, "least": 0.7, "read": 3, "create": 4, "ensure": 0.7,
    "change": 4, "act": 2, "delete": 2, "check": 0.7, "link": 1.5, "unlink": 0.5, "add": 1, "drop": 0.5,
}  # fmt: skip
_BY: Final[Mapping[By, float]] = {"text": 3, "where": 1.5, "all": 1, "id": 0.7, "only": 1}
_HARDER: Final = 0.25  # as often as else: two conditions, and all but one
_OF_OTHERS: Final = 0.6  # as often as else: those that link to a record
_WORLD: Final = re.compile(
    rf"practice-({'|'.join(get_args(Split))})-(\d{{1,12}})-([01])-([0-{TASKS - 1}])(-x\w+)?"
)


class RealTask(msgspec.Struct, frozen=True):
    """A task of people: the calls of one API that it made, by operation, and whether it was done well if known."""

    calls: tuple[Call, ...]
    failed: bool = False


class Mix(msgspec.Struct):
    """Weights of forms. A new one has none. It can be stored, so that a run goes on with it.

    `asked` are shares of real tasks, by aim (`notes.change`) and by field (`notes.change.state`); `rates` are the
    tasks that rollouts of a kind solved and tried.
    """

    asked: dict[str, float] = {}
    rates: dict[str, tuple[float, float]] = {}

    @classmethod
    def of(cls, model: Model, tasks: Iterable[RealTask], presentation: Presentation = AS_WRITTEN) -> "Mix":
        """What people asked for, by what their tasks did. Their calls have the names of the presentation."""
        counted, total, known = Counter[str](), 0, _known(model, presentation)
        for task in tasks:
            weight = _FAILED if task.failed else 1
            aims = set(_aims_of(model, known, task.calls))
            total += weight if aims else 0
            for aim in aims:
                counted[aim] += weight
        return cls({aim: count / total for aim, count in counted.items()})

    def weight(self, form: Form) -> float:
        aim = f"{form.collection}.{_AIMS.get(form.goal, 'read')}"
        wanted = [aim, *(f"{aim}.{root_of(each)}" for each in (form.field, *form.fields) if each)]
        asked = max((self.asked.get(each, 0.0) for each in wanted), default=0.0)
        return (1 + (_ASKED - 1) * asked) * self._band(form)

    def _band(self, form: Form) -> float:
        """Most for what is solved in half of the tries; a kind that was never tried counts as such."""
        solved, tried = self.rates.get(kind_of_form(form), (0.0, 0.0))
        rate = (solved + 1) / (tried + 2)
        return _FLOOR + (1 - _FLOOR) * 4 * rate * (1 - rate)

    def note(self, found: Mapping[str, tuple[int, int]]) -> None:
        """What a round of rollouts solved and tried, by `kind_of_form`. Earlier rounds count less and less."""
        for kind, (solved, tried) in found.items():
            before = self.rates.get(kind, (0.0, 0.0))
            self.rates[kind] = (_FADING * before[0] + solved, _FADING * before[1] + tried)


def kind_of_form(form: Form) -> str:
    """Forms that are about as difficult as one another."""
    return f"{form.collection}.{form.goal}.{form.by}{'.of' if form.through is not None else ''}"


def _known(model: Model, presentation: Presentation) -> dict[str, Operation]:
    """The operations of the document, by the names that tasks know them by now, and knew them by before."""
    written = {(each.method, each.path): each for each in model.app.operations.values()}
    shown = [
        (each, written[each.method, each.path]) for each in present(model.app, presentation).operations.values()
    ]
    former = {name: own for each, own in shown for name in each.former_names}
    return former | {each.name: own for each, own in shown}


def _meant(model: Model, known: Mapping[str, Operation], call: Call) -> Modelled | None:
    operation = known.get(call.api.partition(".")[2])
    if operation is None:
        return None
    path = [each for each in operation.parameters if each.place == "path"]
    return model.meant(operation.name, {each.wire_name: str(call.arguments.get(each.name)) for each in path})


def _aims_of(model: Model, operations: Mapping[str, Operation], calls: Iterable[Call]) -> Iterator[str]:
    """Those of a task: it wanted to read only if it changed nothing."""
    made = [(_meant(model, operations, each), each) for each in calls if each.error is None]
    known = [(each, call) for each, call in made if each is not None and each.role in _ROLES]
    changes = [(each, call) for each, call in known if _ROLES[each.role] != "read"]
    for each, made_call in changes or known:
        aim = f"{each.collection}.{_ROLES[each.role]}"
        yield aim
        for field in each.operation.parameters:
            if field.place == "body" and made_call.arguments.get(field.name) is not None:
                yield f"{aim}.{field.wire_name}"


class NothingToPractiseError(InvalidError):
    """No task can be made from a document. The message says why, and what to do."""


class Key(msgspec.Struct, frozen=True):
    """What a scenario is derived from. `twin` is 1 for a contrast of the scenario of the same seed."""

    split: Split
    seed: int
    twin: int

    @property
    def text(self) -> str:
        return f"practice-{self.split}-{self.seed}-{self.twin}"

    def random(self, purpose: str) -> Random:
        return Random(f"{self.text} {purpose}")


class Plan(msgspec.Struct, frozen=True, kw_only=True, eq=False, dict=True):
    """The tasks of a scenario on one API."""

    key: Key
    form: Form
    practice: "Practice"
    tasks: tuple[Drawn, ...]

    @property
    def values(self) -> tuple[Values, ...]:
        return tuple(each.values for each in self.tasks)

    def instruction(self, index: int) -> str:
        rng = self.key.random(f"wording {index}")
        return word(self.form, self.practice.every, self.values[index], self.key.split, rng)

    def world(self, index: int, nonce: str = "") -> str:
        return f"{self.key.text}-{index}" + (f"-x{nonce}" if nonce else "")

    def double(self, index: int) -> Double:
        """The API at the beginning of a task."""
        double = copy(self.practice.world(self.key))
        double.state = self.tasks[index].goal.before.copy()
        return double

    @cached_property
    def app(self) -> App:
        """The API as its document describes it to the agent, in an order of its own."""
        return self.practice.app(self.key, self.form)

    @cached_property
    def shown(self) -> dict[str, Shown]:
        return _Showing(self).shown()

    @cached_property
    def writing(self) -> Writing:
        """What the program of the tasks is written from."""
        return self.writing_of(self.app)

    def writing_of(self, app: App) -> Writing:
        filters = self.key.random("filters").random() < 0.5
        return Writing(self.form, self.practice.every, app, self.shown, self.values, filters)

    def verify(self, index: int, found: State, answer: Json, *, completed: bool) -> Verdict:
        goal = self.tasks[index].goal
        return verdict(self.practice.model, goal, found, answer, completed=completed)


class Practice:
    """What can be practised on one API."""

    def __init__(
        self,
        model: Model,
        seen: Sampled = Sampled(),  # noqa: B008
        source: str | None = None,
        *,
        presentation: Presentation = AS_WRITTEN,
        bind: Mapping[str, Json] = {},
    ) -> None:
        """The agent is shown the API by the presentation, without the parameters that are bound, and no task is
        about what these decide.
        """
        self.model, self.seen, self._source = model, seen, source
        self.presentation, self._bind = presentation, bind
        self.every = reaches(self._with_bound() if bind else model, seen)
        self._forms, self.reasons = all_forms(self.every)
        self.plan_of = lru_cache(maxsize=512)(self._plan)
        self._worlds = lru_cache(maxsize=_RECORDS)(self._world)
        self.unfit: dict[str, str] = {}  # why forms were left out, by name

    @cached_property
    def forms(self) -> dict[Split, list[Form]]:
        """Parted by their names: of ten, two are for tests, one for validation, and others for training."""
        ordered = sorted(self._forms, key=lambda each: sha256(each.name.encode()).hexdigest())
        test, rest = _first(ordered, 5)
        validation, train = _first(rest, 8)
        return {"train": train, "validation": validation or test, "test": test}

    def app(self, key: Key, form: Form) -> App:
        """The API as a scenario shows it: in an order of its own, and a large one in part."""
        every = list(self.model.app.operations.values())
        if len(every) > _SHOWN:
            about = {form.collection, form.through.collection if form.through is not None else ""}
            about |= {each.collection for each in self.every[form.collection].collection.home}
            own = {each.operation.name for each in self.model.every if each.collection in about}
            needed = [each for each in every if each.name in own]
            every = needed + key.random("shown").sample(every, max(0, _SHOWN - len(needed)))
        document = served_document(self.model, key.text, every)
        app = parse_document(self.model.app.name, document, source=self._source, server=self.model.app.server)
        return self._presented(app)

    def _presented(self, app: App) -> App:
        return bind_parameters(present(app, self.presentation), self._bind)

    def _with_bound(self) -> Model:
        """The model with what is bound for operations, by the names that they are shown under."""
        shown = self._presented(self.model.app).operations.values()
        bound = {(each.method, each.path): each.bound for each in shown}

        def known(made: Modelled) -> Modelled:
            own = bound.get((made.operation.method, made.operation.path), ())
            return msgspec.structs.replace(made, operation=msgspec.structs.replace(made.operation, bound=own))

        operations = {name: known(each) for name, each in self.model.operations.items()}
        return msgspec.structs.replace(
            self.model, operations=operations, typed=tuple(map(known, self.model.typed))
        )

    def _plan(self, key: Key) -> Plan:
        """Raises NothingToPractiseError."""
        rng, left = key.random("form"), self.forms[key.split]
        if key.twin:
            own = self.plan_of(Key(key.split, key.seed, 0)).form
            near = contrasts(own, left)
            near.sort(
                key=lambda each: rng.random() ** (1 / likelihood(each, self.every[each.collection])), reverse=True
            )
            left = [each for each in left if each is not own] or left
            for form in near[:_TRIES]:
                if (plan := self.fitted(key, form)) is not None:
                    return plan
        while left and len(self.forms[key.split]) - len(left) < _TRIES**2:
            form = self._draw_form(left, rng)
            if (plan := self.fitted(key, form)) is not None:
                return plan
            left = [each for each in left if each is not form]
        raise NothingToPractiseError(self.nothing())

    def first_form(self, key: Key) -> Form:
        """What a scenario is of, unless that does not fit its records. It costs a fraction of the scenario."""
        return self._draw_form(self.forms[key.split], key.random("form"))

    def _draw_form(self, forms: Sequence[Form], rng: Random) -> Form:
        """By goal, by collection, by how records are named and then by likelihood, so that none drowns in the many
        ways to say another.
        """
        own = _chosen(forms, lambda each: each.goal, lambda goal: _GOALS[goal], rng)
        own = _chosen(own, lambda each: each.collection, self._central, rng)
        own = _chosen(own, _naming, lambda naming: naming[-1], rng)
        return rng.choices(own, [likelihood(each, self.every[each.collection]) for each in own])[0]

    def _central(self, collection: str) -> float:
        """How much of an API is about the records of a collection, by what they are linked with."""
        every = self.model.collections.values()
        inside = sum(scope.parent == collection for each in every for scope in each.scopes)
        return 1.0 + min(2, len(self.every[collection].collection.links) + inside)

    def nothing(self) -> str:
        """Why there is nothing to practise, and what to do."""
        left = [f"{each.operation}: {each.reason}" for each in self.model.left_out]
        why = "; ".join([*self.reasons, *dict.fromkeys(self.unfit.values()), *left][:4])
        return (
            f"nothing can be practised on {self.model.app.name}: {why or 'its document has no records'}. Give a"
            " document whose schemas say what lists and records have, or answers of the API as samples"
        )

    def fitted(self, key: Key, form: Form) -> Plan | None:
        reason = ""
        for attempt in range(_TRIES):
            rng = Random(f"{key.text} {form.name} {attempt}")
            try:
                tasks = tuple(self._drawn(key, form, rng, index) for index in range(TASKS))
                plan = Plan(key=key, form=form, practice=self, tasks=tasks)
                _check(plan)
            except UnfitError as error:
                reason = str(error)
            else:
                return plan
        self.unfit.setdefault(form.name, f"{form.name}: {reason}")
        return None

    def _drawn(self, key: Key, form: Form, rng: Random, index: int) -> Drawn:
        double = copy(self.world(key))
        return draw_task(form, self.every, double, Random(f"{rng.random()} {index}"), index)

    def world(self, key: Key) -> Double:
        """The API with the records that the worlds of a scenario are made of: not to be called, but copied."""
        return self._worlds(f"practice {key.split} {key.seed % _RECORDS}")

    def _world(self, seed: str) -> Double:
        rng = Random(seed)
        options = Options(thin_lists=rng.random() < _THIN, records=_MANY if rng.random() < _OFTEN else TOP)
        return Double(self.model, seed, options, self.seen)


def _chosen(
    forms: Sequence[Form], part: Callable[[Form], Any], weight: Callable[[Any], float], rng: Random
) -> list[Form]:
    """Those of one part, by the weights of the parts."""
    parts: dict[Any, list[Form]] = {}
    for each in forms:
        parts.setdefault(part(each), []).append(each)
    names = sorted(parts)
    return parts[rng.choices(names, [weight(each) for each in names])[0]]


def _naming(form: Form) -> tuple[str, bool, bool, float]:
    """How the records are named, and how often."""
    harder = form.also is not None or bool(form.but)
    weight = _BY[form.by] * (_HARDER if harder else 1) * (_OF_OTHERS if form.is_of_owner else 1)
    return form.by, harder, form.is_of_owner, weight


def _first(forms: Sequence[Form], of: int) -> tuple[list[Form], list[Form]]:
    """One of so many, at least one, and the others."""
    count = max(1, len(forms) // of) if len(forms) > 2 else 0
    return list(forms[:count]), list(forms[count:])


def _check(plan: Plan) -> None:
    """Raises UnfitError where the API does not show what the tasks are about."""
    form, reach = plan.form, plan.practice.every[plan.form.collection]
    writing = plan.writing_of(plan.practice.model.app)
    needs, shown = writing.needs(form), writing.shown[form.collection]
    lacking = needs - shown.rows
    if form.by not in ("id", "only") and lacking and (reach.one("get") is None or form.goal == "ensure"):
        raise UnfitError(f"lists do not show {', '.join(sorted(lacking))}")
    if untrue := needs & shown.untrue:
        raise UnfitError(f"{', '.join(sorted(untrue))} of its records is not what is shown")
    write_program(writing)


class _Showing:
    """What the worlds of a scenario show. Raises UnfitError for a list that cannot be read to its end."""

    def __init__(self, plan: Plan) -> None:
        self._plan, self._doubles = plan, [plan.double(index) for index in range(TASKS)]

    def shown(self) -> dict[str, Shown]:
        form, every = self._plan.form, self._plan.practice.every
        if every[form.collection].is_alone:
            shown = [alone(every[form.collection], double) for double in self._doubles]
            names = list(_names_in(shown[0]))
            sure = {each for each in names if all(field_in(one, each) is not None for one in shown)}
            return {form.collection: Shown(frozenset(names), frozenset(sure))}
        found = {form.collection: self._of(every[form.collection], own=True)}
        if form.through is not None and form.through.name and form.through.collection not in found:
            found[form.through.collection] = self._of(every[form.through.collection], own=False)
        return found

    def _of(self, reach: Reach, *, own: bool) -> Shown:
        name, fields = reach.collection.name, [*reach.kinds, *(each.field for each in reach.collection.links)]
        records = [each for double in self._doubles for each in double.state.records[name].values()]
        fields = list(dict.fromkeys(name for each in fields for name in (root_of(each), each)))
        sure = {each for each in fields if all(value_of(record, each) is not None for record in records)}
        read = self._plan.form.through if own else None
        made = (reach.view(read.link) if read is not None and read.link is not None else None) or reach.listing
        if made is None or made.shape is None or (own and self._plan.form.goal == "create"):
            return Shown(frozenset([*fields, reach.collection.key]), frozenset(sure))
        needed = flat(made.shape.item).get("required", ())
        untrue = {
            each for each in fields if each in needed and any(each not in record.fields for record in records)
        }
        names: set[str] = set()
        for index, double in enumerate(self._doubles):
            known, keyed = self._place(reach, made, index, own=own)
            rows = rows_of(double, made, known)
            if len(rows) != len(keyed):
                raise UnfitError(f"the pages of {made.operation.name} cannot be followed to their end")
            names |= {each for _, row in rows for each in _names_in(row)}
            for key, row in rows:
                record = keyed.get(str(row.get(reach.collection.key, key)))
                untrue |= _differing(reach, row, record) if record else set()
        form = self._plan.form
        asked = {form.field, *(each.field for each in form.conditions.values())} & reach.kinds.keys()
        if own and asked and (self._plan.form.by == "id" or asked - names):
            untrue |= self._untrue_items(reach)
        return Shown(frozenset(names), frozenset(sure), frozenset(untrue))

    def _untrue_items(self, reach: Reach) -> set[str]:
        """The fields that records, read by themselves, show otherwise than they have them."""
        made, found = reach.one("get"), set[str]()
        if made is None or made.shape is None:
            return found
        for double in self._doubles:
            for record in list(double.state.records[reach.collection.name].values())[:_ITEMS]:
                known = {**dict(zip(made.scopes, record.scope, strict=True)), made.key: record.key}
                item = value_at(call(double, made, known, {}).value, made.shape.keys) or {}
                found |= _differing(reach, item, record)
        return found

    def _place(
        self, reach: Reach, made: Modelled, index: int, *, own: bool
    ) -> tuple[dict[str, Json], dict[str, Record]]:
        """What a list is called with, and the records that it is to have."""
        form, values, state = self._plan.form, self._plan.values[index], self._doubles[index].state
        count = len(reach.collection.scopes)
        scope = tuple(str(values[f"above{at}"]) for at in range(count)) if not own else ()
        if own and count:
            scope = scope_of(form, reach, state, values)
        keyed = {each.key: each for each in state.of(reach.collection.name, scope)}
        if made.fixed and form.through is not None:
            owner = owner_of(form, state, values)
            through = form.through.field
            keyed = {key: each for key, each in keyed.items() if belongs(each.fields.get(through), owner, reach)}
            return {made.fixed[through]: owner}, keyed
        return dict(zip(made.scopes, scope, strict=True)), keyed


def _names_in(row: Mapping[str, Json]) -> Iterator[str]:
    """Of its fields, and of those of objects among them."""
    for name, each in row.items():
        yield name
        if isinstance(each, dict):
            yield from (f"{name}/{inner}" for inner in each)


def _differing(reach: Reach, shown: Mapping[str, Json], record: Record) -> set[str]:
    """The fields that are shown otherwise than the record has them."""
    return {
        each
        for each in reach.kinds.keys() & set(_names_in(shown))
        if field_in(shown, each) != value_of(record, each)
    }


class PracticeWorld:
    """One task with an API of its own. Implements `World`, and opens gateways that know its credential."""

    def __init__(self, task: Task, plan: Plan, index: int) -> None:
        self.task, self.plan, self.now = task, plan, _NOW
        self._index = index
        self.double = plan.double(index)
        self.client = httpx.AsyncClient(transport=self.double.transport())

    @property
    def catalog(self) -> Catalog:
        return Catalog({self.plan.app.name: self.plan.app})

    def open_gateway(self, max_calls: int) -> Gateway:
        task = self.task
        return Gateway(
            self.catalog,
            self.client,
            instruction=task.instruction,
            variables=task.variables,
            credentials=_Credentials(self.double),
            store=_Secrets(),
            max_calls=max_calls,
        )

    async def verify(self, trajectory: Trajectory) -> Verdict:
        completed = trajectory.stop is Stop.COMPLETED
        return self.plan.verify(self._index, self.double.state, trajectory.answer, completed=completed)


class PracticeEnvironment:
    """Implements `Environment`."""

    def __init__(self, practice: Practice) -> None:
        self.practice, self.mix = practice, Mix()

    def place(self, world: str) -> tuple[Plan, int]:
        """The scenario and the position of the task whose world has this id. Raises NotFoundError."""
        match = _WORLD.fullmatch(world)
        if match is None:
            raise NotFoundError(f"no world {world[:60]}")
        split, seed, twin, index, _ = match.groups()
        return self.practice.plan_of(Key(msgspec.convert(split, Split), int(seed), int(twin))), int(index)

    def catalog(self, plan: Plan) -> Catalog:
        return Catalog({plan.app.name: plan.app})

    def scenarios(self, split: Split, count: int, seed: int) -> Sequence[Scenario]:
        """A larger count only appends, as long as training has the same mix. Raises NothingToPractiseError."""
        rng = Random(f"practice {split} {seed}")
        seeds = [self._seed(split, rng) for _ in range((count + 1) // 2)]
        keys = [Key(split, seeds[at // 2], at % 2) for at in range(count)]
        return [_scenario(self.practice.plan_of(key)) for key in keys]

    def _seed(self, split: Split, rng: Random) -> int:
        """Of several scenarios, one by the weights of the mix. Exams ask for all alike."""
        drawn = [rng.randrange(10**9) for _ in range(_CHOICES)]
        at = rng.random()
        if split != "train" or self.mix == Mix():
            return drawn[0]
        weights = [self.mix.weight(self.practice.first_form(Key(split, each, 0))) for each in drawn]
        return drawn[bisect([*accumulate(weights)], at * sum(weights), hi=_CHOICES - 1)]

    @asynccontextmanager
    async def open(self, scenario: Scenario, task: Task) -> AsyncIterator[PracticeWorld]:
        del scenario  # the task's world determines everything
        plan, index = self.place(task.variables["world"])
        world = plan.world(index, secrets.token_hex(4))
        opened = PracticeWorld(msgspec.structs.replace(task, variables={"world": world}), plan, index)
        async with opened.client:
            yield opened


def _scenario(plan: Plan) -> Scenario:
    key, tasks = plan.key, []
    for at in range(TASKS):
        identity = uuid5(NAMESPACE_URL, f"{plan.practice.model.app.digest} {key.text}-{at}")
        tasks.append(Task(identity, plan.instruction(at), scenario=key.text, variables={"world": plan.world(at)}))
    return Scenario(key.text, plan.form.name, key.seed, tuple(tasks))


class _Credentials(Unrenewed):
    """Fulfils `Credentials` with what a double takes."""

    def __init__(self, double: Double) -> None:
        self._double = double

    async def of(self, app: App, operation: Any) -> Any:
        del app
        own = (operation.method, operation.path)
        made = self._double.model.operations.values()
        known = next(
            (each.operation for each in made if (each.operation.method, each.operation.path) == own), None
        )
        return self._double.authentication("" if known is None else known.name)


class _Secrets:
    """Fulfils `SecretStore` with what a bound parameter of any type takes."""

    async def value(self, name: str) -> str:
        del name
        return "7205759403792793"


def load_environment(*, document: str, name: str = "api", samples: str = "") -> PracticeEnvironment:
    """`document` is the file of an OpenAPI document, `name` what the agent calls the API,
    `samples` a file with real answers, a JSON object by the names of operations.

    Raises InvalidError for a file that cannot be read, ApiDocumentError for a document that is none.
    """
    try:
        content = Path(document).read_bytes()
        known = msgspec.json.decode(Path(samples).read_bytes(), type=dict[str, Any]) if samples else {}
    except (OSError, msgspec.DecodeError, msgspec.ValidationError) as error:
        raise InvalidError(f"the files of the API cannot be read: {error}") from error
    return PracticeEnvironment(practice_on(name, read_document(content), known))


def practice_on(
    name: str,
    document: Mapping[str, Json],
    samples: Mapping[str, Json] = {},
    *,
    presentation: Presentation = AS_WRITTEN,
    bind: Mapping[str, Json] = {},
) -> Practice:
    """What can be practised on the API of a document. Raises ApiDocumentError."""
    model = read_model(name, document, samples=samples, server=f"http://{name}.practice")
    return Practice(model, sampled(model, samples), presentation=presentation, bind=bind)

"""The tasks of the gym: what they ask of sets of records, in worlds where a usual mistake gives a wrong result.

A form is a goal, for the records that a selection selects. Held-out forms recombine trained ones. Of the records
that a task means, one is on the first page and one is the last of all. The others miss one condition at least,
often just one: the limit itself, the same label for another person.
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache, partial
from random import Random
from typing import Literal, TypeAlias, get_args

import msgspec

from trainer.lessons.phrases import CONDITIONS, GYM_FRAMES
from trainer.worlds.generated.apis import GYM, GYM_LESSONS, PAGE_SIZE, GymApi, RecordField, draw_gym_api
from trainer.worlds.generated.environment import TASKS, Ask, GeneratedEnvironment, Key, Plan
from trainer.worlds.generated.words import (
    Pool,
    Verb,
    directory_name,
    draw_directory,
    draw_domain,
    draw_names,
    people,
    pools_of,
)
from trainer.worlds.generated.worlds import DATES, Record, Records, Values

HeldOut: TypeAlias = Literal["all", "domains", "shapes", "compositions", "phrasings"]
Goal: TypeAlias = Literal[
    "count", "total", "peak", "who", "act", "act_top", "act_count", "move", "act_check", "branch"
]
Condition: TypeAlias = Literal["person", "label", "over", "under", "before", "member", "other"]
Parameter: TypeAlias = Literal["person", "label", "over", "under", "before", "group", "target", "threshold"]

GOALS: tuple[Goal, ...] = get_args(Goal)
WRITING: frozenset[Goal] = frozenset({"act", "act_top", "act_count", "move", "act_check", "branch"})
ACTING: frozenset[Goal] = WRITING - {"move"}
"""Goals whose programs change states, in the way of the API's shape."""
ANSWERED: frozenset[Goal] = frozenset({"count", "total", "peak", "who", "act_count", "act_check"})
JOINED: frozenset[Condition] = frozenset({"member", "other"})
SELECTIONS: tuple[tuple[Condition, ...], ...] = (
    ("person",), ("label",), ("over",), ("under",), ("before",), ("member",), ("other",),
    ("person", "label"), ("label", "over"), ("person", "over"), ("label", "before"), ("member", "label"),
    ("person", "before"), ("label", "under"),
)  # fmt: skip

PARAMETERS: dict[Condition, Parameter] = {
    "person": "person", "label": "label", "over": "over", "under": "under", "before": "before",
    "member": "group", "other": "group",
}  # fmt: skip

FIELDS: dict[Condition, RecordField] = {
    "person": "person", "label": "label", "over": "number", "under": "number", "before": "date",
    "member": "person", "other": "person",
}  # fmt: skip
NUMERIC: frozenset[Goal] = frozenset({"total", "peak", "who", "act_top"})
RANKED = NUMERIC - {"total"}  # about the one with the highest number
PEOPLE = 7  # of a task
_WRITES = frozenset(GYM.axes["write"])
_HOLDS = 0.8  # the share of the other conditions that a record fulfils which fails one
_HELD_OUT: dict[Pool, int] = {"test": 28, "validation": 12}
_SIMPLE_WEIGHT = 3
_JOINED_WEIGHT = 2  # in lessons, since two apps are hard
_TAUGHT_AT_LEAST = 4  # forms of training with each goal, and with each selection


def load_environment(*, held_out: HeldOut = "all") -> "GymEnvironment":
    """The plug-in `gym`. Options as in `GymEnvironment`."""
    return GymEnvironment(held_out)


class TaskForm(msgspec.Struct, frozen=True):
    """All tasks of a scenario have the same form; their values differ."""

    goal: Goal
    selection: tuple[Condition, ...]

    @property
    def name(self) -> str:
        return f"{self.goal}.{'_'.join(self.selection)}"

    @property
    def is_simple(self) -> bool:
        """One condition, which a row decides by itself."""
        return len(self.selection) == 1 and self.joined is None

    @property
    def joined(self) -> Condition | None:
        """The condition that another app decides, if any."""
        return next((each for each in self.selection if each in JOINED), None)

    @property
    def is_answered(self) -> bool:
        return self.goal in ANSWERED

    @property
    def needs(self) -> set[RecordField]:
        """The fields that a program for tasks of this form reads."""
        needs: set[RecordField] = {FIELDS[each] for each in self.selection}
        if self.goal in NUMERIC:
            needs.add("number")
        return needs | ({"person"} if self.goal == "who" else set())

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """The details in which the tasks of a scenario differ."""
        own: list[Parameter] = [PARAMETERS[each] for each in self.selection]
        own += ["target"] if self.goal == "move" else ["threshold"] if self.goal == "branch" else []
        return tuple(own)


def _is_meaningful(form: TaskForm) -> bool:
    """The highest number of those over a limit needs no limit; whose it is, is no question about one person."""
    if form.goal in RANKED and ("over" in form.selection or "under" in form.selection):
        return False
    return not (form.goal == "who" and "person" in form.selection)


FORMS: tuple[TaskForm, ...] = tuple(
    form for goal in GOALS for selection in SELECTIONS if _is_meaningful(form := TaskForm(goal, selection))
)
_POOLS = pools_of(FORMS, lambda form: (form.goal, form.selection), _HELD_OUT, _TAUGHT_AT_LEAST, "gym forms")


def forms_of(pool: Pool) -> tuple[TaskForm, ...]:
    return _POOLS[pool]


def draw_form(pool: Pool, rng: Random, *, lesson: bool = False) -> TaskForm:
    """Simple forms are drawn more often than their number, as people ask."""
    forms, joined = forms_of(pool), _JOINED_WEIGHT if lesson else 1
    weights = [_SIMPLE_WEIGHT if form.is_simple else joined if form.joined else 1 for form in forms]
    return rng.choices(forms, weights)[0]


class GymKey(Key, frozen=True):
    axes = ("domains", "shapes", "compositions", "phrasings")
    random_prefix = "gym "
    task_prefix = "gym:"


class GymAsk(Ask, frozen=True, kw_only=True):
    form: TaskForm
    main: GymApi
    joined: GymApi | None  # that decides which people are meant
    verbs: tuple[Verb, Verb]  # of the goal; the second one otherwise

    @property
    def apis(self) -> tuple[GymApi, ...]:
        return (self.main,) if self.joined is None else (self.joined, self.main)

    def answer(self, records: Records, values: Values) -> str | int | None:
        chosen = self._selected(records, values)
        match self.form.goal:
            case "count" | "act_count":
                return len(chosen)
            case "total":
                return sum(record.number for record in chosen)
            case "peak":
                return _highest(chosen).number
            case "who":
                return _highest(chosen).person
            case "act_check":
                return len(records[self.main.name, 0]) - len(chosen)
        return None

    def carry_out(self, records: Records, values: Values) -> None:
        chosen, goal = self._selected(records, values), self.form.goal
        first, second = (verb.done for verb in self.verbs)
        if goal == "act_top":
            chosen = [_highest(chosen)]
        elif goal == "branch" and len(chosen) <= int(values["threshold"]):
            first = second
        for record in chosen:
            if goal == "move":
                record.label = str(values["target"])
            elif goal in ACTING:
                record.state = first

    def word(self, values: Values, pool: Pool, rng: Random) -> str:
        domain, (first, second) = self.main.domain, self.verbs
        words = {
            "noun": domain.noun, "nouns": domain.nouns, "person": domain.person, "label": domain.label,
            "number": domain.number, "initial": domain.initial, "when": _when(domain.date),
            "act": first.base, "Act": first.base.capitalize(), "acted": first.done,
            "act2": second.base, "Act2": second.base.capitalize(),
            "target": values.get("target", ""), "threshold": values.get("threshold", ""),
        }  # fmt: skip
        if self.joined:
            other = self.joined.domain
            words |= {"group": other.label, "noun2": other.noun, "nouns2": other.nouns}
        phrases = [
            rng.choice(CONDITIONS[pool][each]).format(v=values[PARAMETERS[each]], **words)
            for each in self.form.selection
        ]
        words["conditions"] = " and ".join(phrases)
        words["them"] = f"{domain.nouns} {words['conditions']}"
        return rng.choice(GYM_FRAMES[pool][self.form.goal]).format(**words)

    def _selected(self, records: Records, values: Values) -> list[Record]:
        """The records that the task means."""
        groups = records[self.joined.name, 0] if self.joined else []
        people = {each.person for each in groups if each.label == values["group"]}

        def holds(record: Record, condition: Condition) -> bool:
            match condition:
                case "person" | "label":
                    return bool(getattr(record, condition) == values[condition])
                case "over":
                    return record.number > int(values["over"])
                case "under":
                    return record.number < int(values["under"])
                case "before":
                    return record.date < str(values["before"])
            return record.person in people

        return [
            each for each in records[self.main.name, 0] if all(holds(each, one) for one in self.form.selection)
        ]


class GymPlan(Plan, frozen=True, kw_only=True):
    facts = ("state", "label")  # what a task may change

    key: GymKey
    ask: GymAsk
    others: tuple[GymApi, ...]
    people: tuple[tuple[str, ...], ...]  # by task

    @property
    def main(self) -> GymApi:
        return self.ask.main

    def initial_records(self, index: int) -> Records:
        found: Records = {}
        layout = _Layout(self.ask, self.values[index], self.people[index], self.key.random(f"insiders {index}"))
        for api in self.apis:
            rng = self.key.random(f"items {index} {api.name}")
            count = rng.randint(2 * PAGE_SIZE + 1, 3 * PAGE_SIZE + 1) if api is self.main else PAGE_SIZE + 2
            records = layout.any_records(api, count, rng)
            if api is self.main:
                layout.set_task(records, rng)
            elif api in self.ask.apis:
                records = layout.join(api, rng)
            for record in records:
                pairs = zip(api.domain.distractors, api.collection.distractors, strict=True)
                record.extra = {name: f"{words[:2]}-{record.number % 7}" for words, name in pairs}
            found[api.name, 0] = records
        return found


class GymEnvironment(GeneratedEnvironment[GymPlan]):
    """Scenarios of validation and test hold one thing out of training: the words (`domains`), how the APIs work
    (`shapes`), what is asked (`compositions`), or how it is worded (`phrasings`); `all` are these by turns.
    """

    def __init__(self, held_out: HeldOut = "all") -> None:
        super().__init__("gym", GymKey, plan_of, held_out)


@lru_cache(maxsize=1024)
def plan_of(key: GymKey) -> GymPlan:
    rng = key.random("plan")
    words, shapes = key.pool("domains"), key.pool("shapes")
    form = draw_form(key.pool("compositions"), rng, lesson=key.is_lesson)
    shape = partial(GYM.draw, shapes, rng, more=GYM_LESSONS if key.is_lesson else {})
    names = draw_names(words, 4, rng)
    domain = draw_domain(words, rng)
    main = draw_gym_api(names[0], domain, shape(unmet=_unmet(form)), rng, words)
    joined = None
    if form.joined == "member":
        directory = directory_name(words, rng)
        joined = draw_gym_api(directory, draw_directory(words, rng), shape(unmet=_WRITES), rng, words)
    elif form.joined == "other":
        joined = draw_gym_api(names[1], draw_domain(words, rng, domain), shape(unmet=_WRITES), rng, words)
    others = tuple(
        draw_gym_api(name, draw_domain(words, rng, domain), GYM.draw("train", rng), rng, words)
        for name in names[2 : 2 + rng.randint(0, 2)]
    )
    first, second, *_ = (*rng.sample(domain.verbs, min(2, len(domain.verbs))), domain.verbs[0])
    ask = GymAsk(form=form, main=main, joined=joined, verbs=(first, second))
    values, crowds = draw_values(ask, words, key.random("values"))
    return GymPlan(key=key, ask=ask, others=others, values=values, people=crowds)


def _unmet(form: TaskForm) -> frozenset[str]:
    """The values of a shape that programs for tasks of this form do not meet."""
    writes = frozenset() if form.goal in ACTING else _WRITES
    return writes if "person" in form.needs else writes | {"object"}


def draw_values(ask: GymAsk, pool: Pool, rng: Random) -> tuple[tuple[Values, ...], tuple[tuple[str, ...], ...]]:
    """The values and the people of each task. No two tasks share a value."""
    form, main, joined = ask.form, ask.main, ask.joined
    labels = rng.sample(main.domain.values, TASKS)
    groups = rng.sample(joined.domain.values, TASKS) if joined else [""] * TASKS
    scale = rng.choice((100, 1000, 10_000))
    limits = rng.sample(range(scale // 5, 4 * scale // 5), TASKS)
    months, thresholds = rng.sample(range(2, 13), TASKS), rng.sample(range(1, 5), TASKS)
    everybody = people(pool, PEOPLE * TASKS, rng)
    crowds = tuple(tuple(everybody[at : at + PEOPLE]) for at in range(0, len(everybody), PEOPLE))
    drawn: list[Values] = []
    for index in range(TASKS):
        candidates: Values = {
            "person": crowds[index][0],
            "label": labels[index],
            "over": limits[index],
            "under": limits[index],
            "before": f"2026-{months[index]:02}-{rng.randint(2, 28):02}",
            "group": groups[index],
            "target": rng.choice([value for value in main.domain.values if value != labels[index]]),
            "threshold": thresholds[index],
        }
        drawn.append({parameter: candidates[parameter] for parameter in form.parameters})
    return tuple(drawn), crowds


def _when(date: str) -> str:
    """
    >>> _when("opened on"), _when("due date")
    ('opened', 'with due date')
    """
    return date.rpartition(" ")[0] if date.endswith((" on", " at")) else f"with {date}"


def _highest(records: Iterable[Record]) -> Record:
    return max(records, key=lambda record: record.number)


class _Layout:
    """The records of one task. Of its people, those inside are in the task's group, if it has one."""

    def __init__(self, ask: GymAsk, values: Values, people: Sequence[str], rng: Random) -> None:
        self._ask, self._values, self._people = ask, values, people
        crowd = list(people)
        rng.shuffle(crowd)
        self._inside, self._outside = crowd[:2], crowd[2:]

    def any_records(self, api: GymApi, count: int, rng: Random) -> list[Record]:
        ids = rng.sample(range(1000, 10_000), count)
        prefix = "".join(word[0] for word in api.domain.noun.split()).upper()
        numbers = rng.sample(range(1, 100), count)  # all different: the highest is unique
        return [
            Record(
                id=number if api.shape.ids == "number" else f"{prefix}-{number}",
                person=rng.choice(self._people),
                label=rng.choice(api.domain.values),
                number=numbers[at],
                date=rng.choice(DATES),
                state=api.domain.initial,
            )
            for at, number in enumerate(ids)
        ]

    def set_task(self, records: list[Record], rng: Random) -> None:
        """Change records so that some are meant, and others only nearly."""
        form, last = self._ask.form, len(records) - 1
        chosen = {rng.randrange(PAGE_SIZE), last, *rng.sample(range(PAGE_SIZE, last), rng.randint(0, 2))}
        rest = [at for at in range(len(records)) if at not in chosen]
        rng.shuffle(rest)
        for turn, at in enumerate(sorted(chosen)):
            for condition in form.selection:
                self._set(records[at], condition, True, rng)
            if form.joined:
                records[at].person = self._inside[turn % len(self._inside)]  # every insider matters
        self._set_others([records[at] for at in rest], rng)
        if form.goal == "move":
            self._avoid_target(records, rng)
        if form.goal in RANKED:
            _give_highest_to_other(records, [records[at] for at in chosen], [records[at] for at in rest])

    def join(self, api: GymApi, rng: Random) -> list[Record]:
        """The records of the joined app: in the task's group are the insiders, and nobody else."""
        group = str(self._values["group"])
        others = [label for label in api.domain.values if label != group]
        pairs = [(person, group) for person in self._inside]
        pairs += [(person, rng.choice(others)) for person in self._outside]
        if self._ask.form.joined == "other":  # people have several records there
            pairs += [(rng.choice(self._people), rng.choice(others)) for _ in range(3)]
        rng.shuffle(pairs)
        pairs.append(pairs.pop(pairs.index((self._inside[0], group))))  # on the last page
        records = self.any_records(api, len(pairs), rng)
        for record, (person, label) in zip(records, pairs, strict=True):
            record.person, record.label = person, label
        return records

    def _set_others(self, others: list[Record], rng: Random) -> None:
        """One condition fails, by turns: of the first of them only that one, and a limit by equalling it."""
        conditions = self._ask.form.selection
        for turn, record in enumerate(others):
            failing = conditions[turn % len(conditions)]
            for condition in conditions:
                holds = condition != failing and (turn < len(conditions) or rng.random() < _HOLDS)
                self._set(record, condition, holds, rng)
        for record, condition in zip(others, conditions, strict=False):
            match condition:
                case "over" | "under":
                    record.number = int(self._values[condition])
                case "before":
                    record.date = str(self._values["before"])

    def _set(self, record: Record, condition: Condition, holds: bool, rng: Random) -> None:
        values = self._values
        match condition:
            case "person":
                others = [name for name in self._people if name != values["person"]]
                record.person = str(values["person"]) if holds else rng.choice(others)
            case "label":
                labels = [label for label in self._ask.main.domain.values if label != values["label"]]
                record.label = str(values["label"]) if holds else rng.choice(labels)
            case "over" | "under":
                limit = int(values[condition])
                distance = rng.randint(1, 1 + limit // 4)
                record.number = limit + distance if (condition == "over") == holds else limit - distance
            case "before":
                day = str(values["before"])
                record.date = rng.choice([each for each in DATES if (each < day) == holds])
            case _:
                record.person = rng.choice(self._inside if holds else self._outside)

    def _avoid_target(self, records: list[Record], rng: Random) -> None:
        """No record has the target label already: every move shows."""
        target, label = self._values["target"], self._values.get("label")
        others = [each for each in self._ask.main.domain.values if each not in (target, label)]
        for record in records:
            if record.label == target:
                record.label = rng.choice(others)


def _give_highest_to_other(records: list[Record], chosen: list[Record], others: list[Record]) -> None:
    """The highest number of all is that of a record that is not meant, and of another person."""
    for other in others:
        highest = _highest(records)
        highest.number, other.number = other.number, highest.number
        if other.person != _highest(chosen).person:
            return

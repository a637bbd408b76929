"""The items of a world at its start, laid out so that a program with a usual mistake gives a wrong result.

Of the items that a task means, one is on the first page and one is the last of all. The others miss one condition
at least, often just one: the limit itself, the same label for another person.
"""

from collections.abc import Mapping
from random import Random
from typing import Any

import msgspec

from trainer.worlds.generated.gym_apis import PAGE_SIZE, GymApi
from trainer.worlds.generated.gym_plans import ScenarioPlan
from trainer.worlds.generated.task_forms import Condition, Parameter

_HOLDS = 0.8  # the share of the other conditions that an item fulfils which fails one
_DATES = tuple(f"2026-{month:02}-{day:02}" for month in range(1, 13) for day in range(1, 29))


class GymItem(msgspec.Struct):
    id: int | str
    person: str
    label: str
    number: int
    date: str
    state: str


class Insiders(msgspec.Struct, frozen=True):
    """The people of a task, parted by whether the joined app puts them in the task's group."""

    inside: tuple[str, ...]
    outside: tuple[str, ...]


def insiders_of(plan: ScenarioPlan, index: int) -> Insiders:
    crowd = list(plan.people[index])
    plan.key.random(f"insiders {index}").shuffle(crowd)
    return Insiders(tuple(crowd[:2]), tuple(crowd[2:]))


def initial_items(plan: ScenarioPlan, index: int) -> dict[str, list[GymItem]]:
    """The items of every app, in the order in which lists show them."""
    items = {}
    for api in plan.apis:
        rng = plan.key.random(f"items {index} {api.name}")
        count = rng.randint(2 * PAGE_SIZE + 1, 3 * PAGE_SIZE + 1) if api is plan.main else PAGE_SIZE + 2
        items[api.name] = _any_items(api, plan, index, count, rng)
        if api is plan.main:
            _set_task(items[api.name], plan, index, rng)
        elif api is plan.joined:
            items[api.name] = _join(plan, index, rng)
    return items


def selected(plan: ScenarioPlan, index: int, items: list[GymItem]) -> list[GymItem]:
    """The items of the main app that the task means."""
    inside, values = insiders_of(plan, index).inside, plan.values[index]
    return [item for item in items if all(_holds(item, each, values, inside) for each in plan.form.selection)]


def _holds(item: GymItem, condition: Condition, values: dict[Parameter, Any], inside: tuple[str, ...]) -> bool:
    match condition:
        case "person":
            return bool(item.person == values["person"])
        case "label":
            return bool(item.label == values["label"])
        case "over":
            return bool(item.number > values["over"])
        case "under":
            return bool(item.number < values["under"])
        case "before":
            return bool(item.date < values["before"])
    return item.person in inside


def _any_items(api: GymApi, plan: ScenarioPlan, index: int, count: int, rng: Random) -> list[GymItem]:
    ids = rng.sample(range(1000, 10_000), count)
    prefix = "".join(word[0] for word in api.domain.noun.split()).upper()
    numbers = rng.sample(range(1, 100), count)  # all different: the highest is unique
    return [
        GymItem(
            number if api.shape.ids == "number" else f"{prefix}-{number}",
            rng.choice(plan.people[index]),
            rng.choice(api.domain.values),
            numbers[at],
            rng.choice(_DATES),
            api.domain.initial,
        )
        for at, number in enumerate(ids)
    ]


def _set_task(items: list[GymItem], plan: ScenarioPlan, index: int, rng: Random) -> None:
    last = len(items) - 1
    chosen = {rng.randrange(PAGE_SIZE), last, *rng.sample(range(PAGE_SIZE, last), rng.randint(0, 2))}
    rest = [at for at in range(len(items)) if at not in chosen]
    rng.shuffle(rest)
    inside = insiders_of(plan, index).inside
    for turn, at in enumerate(sorted(chosen)):
        for condition in plan.form.selection:
            _set(items[at], condition, True, plan, index, rng)
        if plan.form.joined:
            items[at].person = inside[turn % len(inside)]  # every insider matters
    _set_others([items[at] for at in rest], plan, index, rng)
    if plan.form.goal == "move":
        _avoid_target(items, plan, index, rng)
    if plan.form.goal in ("peak", "who", "act_top"):
        _give_highest_to_other(items, chosen, rest)


def _set_others(others: list[GymItem], plan: ScenarioPlan, index: int, rng: Random) -> None:
    """One condition fails, by turns: of the first of them only that one, and a limit by equalling it."""
    conditions = plan.form.selection
    for turn, item in enumerate(others):
        failing = conditions[turn % len(conditions)]
        for condition in conditions:
            holds = condition != failing and (turn < len(conditions) or rng.random() < _HOLDS)
            _set(item, condition, holds, plan, index, rng)
    for item, condition in zip(others, conditions, strict=False):
        _equal_limit(item, condition, plan.values[index])


def _set(item: GymItem, condition: Condition, holds: bool, plan: ScenarioPlan, index: int, rng: Random) -> None:
    values, known = plan.values[index], insiders_of(plan, index)
    limit, day = values.get("over", values.get("under", 0)), str(values.get("before", ""))
    above = (condition == "over") == holds
    match condition:
        case "person":
            others = [name for name in plan.people[index] if name != values["person"]]
            item.person = str(values["person"]) if holds else rng.choice(others)
        case "label":
            labels = [label for label in plan.main.domain.values if label != values["label"]]
            item.label = str(values["label"]) if holds else rng.choice(labels)
        case "over" | "under":
            base = int(limit)
            item.number = base + rng.randint(1, 1 + base // 4) if above else base - rng.randint(1, 1 + base // 4)
        case "before":
            item.date = rng.choice([each for each in _DATES if (each < day) == holds])
        case _:
            item.person = rng.choice(known.inside if holds else known.outside)


def _equal_limit(item: GymItem, condition: Condition, values: Mapping[Parameter, str | int]) -> None:
    """If the condition is a limit, the item misses it by equalling it."""
    match condition:
        case "over" | "under":
            item.number = int(values[condition])
        case "before":
            item.date = str(values["before"])


def _give_highest_to_other(items: list[GymItem], chosen: set[int], rest: list[int]) -> None:
    """The highest number of all is that of an item that is not meant, and of another person."""
    for other in rest:
        highest = max(items, key=lambda item: item.number)
        highest.number, items[other].number = items[other].number, highest.number
        if items[other].person != max((items[at] for at in chosen), key=lambda item: item.number).person:
            return


def _avoid_target(items: list[GymItem], plan: ScenarioPlan, index: int, rng: Random) -> None:
    """No item has the target label already: every move shows."""
    values = plan.values[index]
    others = [each for each in plan.main.domain.values if each not in (values["target"], values.get("label"))]
    for item in items:
        if item.label == values["target"]:
            item.label = rng.choice(others)


def _join(plan: ScenarioPlan, index: int, rng: Random) -> list[GymItem]:
    """The items of the joined app: in the task's group are the insiders, and nobody else."""
    api, known, group = plan.joined, insiders_of(plan, index), str(plan.values[index]["group"])
    assert api is not None
    others = [label for label in api.domain.values if label != group]
    pairs = [(person, group) for person in known.inside] + [
        (person, rng.choice(others)) for person in known.outside
    ]
    if plan.form.joined == "other":  # people have several items there
        pairs += [(rng.choice(plan.people[index]), rng.choice(others)) for _ in range(3)]
    rng.shuffle(pairs)
    pairs.append(pairs.pop(pairs.index((known.inside[0], group))))  # on the last page
    items = _any_items(api, plan, index, len(pairs), rng)
    for item, (person, label) in zip(items, pairs, strict=True):
        item.person, item.label = person, label
    return items

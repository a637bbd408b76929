"""What a world holds when it is new: made from the task's place, so that the usual mistakes are found out."""

from collections.abc import Sequence
from random import Random
from typing import Any

import msgspec

from trainer.environments.office.apps import APPS, GROUPS, PEOPLE, AppSpec, Role
from trainer.environments.office.places import Place

PAGE_SIZE = 4
_DEMO_ITEMS = 42


class Item(msgspec.Struct):
    """One mail, note, event ... `done` are the acts that were done to it."""

    id: int
    person: str
    label: str
    number: int
    done: set[Role] = msgspec.field(default_factory=set)
    prepared: bool = False
    removed: bool = False


def groups_of(place: Place | None) -> dict[str, tuple[str, ...]]:
    """Who belongs to which group. Nobody belongs to two."""
    people = list(PEOPLE)
    if place is not None:
        Random(f"groups {place.world()}").shuffle(people)
    return {group: tuple(people[start::6]) for start, group in enumerate(GROUPS)}


def items_of(app: str, place: Place | None) -> list[Item]:
    """The items of one app, in their order. Without a place, those of the demo world."""
    if place is None:
        return _demo_items(APPS[app])
    rng = Random(f"items {app} {place.world()}")
    items = _any_items(APPS[app], rng.randint(9, 14), rng)
    if app == place.kind.app:
        _set_task(items, place, rng)
    elif place.kind.selector == "person":  # the same person has something in every other app
        rng.choice(items).person = place.value
    return items


def matches(item: Item, place: Place, groups: dict[str, tuple[str, ...]]) -> bool:
    """Does the task's selector select this item?"""
    if place.kind.selector == "person":
        return item.person == place.value
    if place.kind.selector == "label":
        return item.label == place.value
    if place.kind.selector == "group":
        return item.person in groups[place.value]
    return item.number > int(place.value)


def _any_items(spec: AppSpec, count: int, rng: Random) -> list[Item]:
    ids = rng.sample(range(100, 1000), count)
    numbers = rng.sample(range(1, 100), count)  # no two alike: the largest is one item
    return [
        Item(identity, rng.choice(PEOPLE), rng.choice(spec.values), number)
        for identity, number in zip(ids, numbers, strict=True)
    ]


def _set_task(items: list[Item], place: Place, rng: Random) -> None:
    """Puts matches on the first page, on the last, and perhaps between; nothing else matches."""
    last = len(items) - 1
    between = rng.sample(range(PAGE_SIZE, last), rng.randint(0, 2))
    chosen = {rng.randrange(PAGE_SIZE), last, *between}
    wanted, others = _pools(place)
    field = {"person": "person", "group": "person", "label": "label", "over": "number"}[place.kind.selector]
    for at, value in zip(sorted(chosen), _spread(wanted, len(chosen), rng), strict=True):
        setattr(items[at], field, value)
    rest = [at for at in range(len(items)) if at not in chosen]
    for at, value in zip(rest, _spread(others, len(rest), rng), strict=True):
        setattr(items[at], field, value)
    if place.kind.selector == "over":
        items[rng.choice(rest)].number = int(place.value)  # not over it, though near
    if place.kind.verb == "top":
        _outdo(items, chosen, rest, rng)


def _pools(place: Place) -> tuple[Sequence[Any], Sequence[Any]]:
    """The values of the selecting field that match, and those that do not."""
    kind, value = place.kind, place.value
    if kind.selector == "over":
        limit = int(value)
        return range(limit + 1, 100), range(1, limit)
    if kind.selector == "group":
        members = groups_of(place)[value]
        return members, [person for person in PEOPLE if person not in members]
    return [value], [other for other in kind.values if other != value]


def _spread(pool: Sequence[Any], count: int, rng: Random) -> list[Any]:
    """So many values of the pool, in which each comes once before one comes twice."""
    drawn: list[Any] = []
    while len(drawn) < count:
        drawn += rng.sample(pool, min(len(pool), count - len(drawn)))
    return drawn


def _outdo(items: list[Item], chosen: set[int], rest: list[int], rng: Random) -> None:
    """Gives the largest number of all to an item that does not match."""
    largest = max(range(len(items)), key=lambda at: items[at].number)
    if largest in chosen:
        other = rng.choice(rest)
        items[largest].number, items[other].number = items[other].number, items[largest].number


def _demo_items(spec: AppSpec) -> list[Item]:
    rng = Random(f"demo {spec.name}")
    people = _spread(PEOPLE, _DEMO_ITEMS, rng)
    labels = _spread(spec.values, _DEMO_ITEMS, rng)
    numbers = rng.sample(range(1, 100), _DEMO_ITEMS)
    return [Item(101 + at, people[at], labels[at], numbers[at]) for at in range(_DEMO_ITEMS)]

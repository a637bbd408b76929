"""The initial items of a world, derived from the task's place so that the usual mistakes are detected."""

from collections.abc import Sequence
from random import Random
from typing import Any

import msgspec

from trainer.worlds.office.apps import APPS, GROUPS, PEOPLE, AppSpec, Role
from trainer.worlds.office.places import Place

PAGE_SIZE = 4
_DEMO_ITEMS = 42


class Item(msgspec.Struct):
    """A mail, note, event and so on, with the acts that were done to it."""

    id: int
    person: str
    label: str
    number: int
    done: set[Role] = msgspec.field(default_factory=set)
    prepared: bool = False
    removed: bool = False


def groups_of(place: Place | None) -> dict[str, tuple[str, ...]]:
    """The members of each group. Nobody is in two groups."""
    people = list(place.people if place else PEOPLE)
    if place is not None:
        Random(f"groups {place.key}").shuffle(people)
    return {group: tuple(people[start::6]) for start, group in enumerate(GROUPS)}


def items_of(app: str, place: Place | None) -> list[Item]:
    """The items of one app, in order. None: those of the demo world."""
    if place is None:
        return _demo_items(APPS[app])
    rng = Random(f"items {app} {place.key}")
    items = _any_items(place, app, rng.randint(9, 14), rng)
    if app == place.kind.app:
        _set_task(items, place, rng)
    elif place.kind.selector == "person":  # the same person has an item in every other app
        rng.choice(items).person = place.value
    return items


def matches(item: Item, place: Place, groups: dict[str, tuple[str, ...]]) -> bool:
    """Whether the task's selector selects this item."""
    if place.kind.selector == "person":
        return item.person == place.value
    if place.kind.selector == "label":
        return item.label == place.value
    if place.kind.selector == "group":
        return item.person in groups[place.value]
    return item.number > int(place.value)


def _any_items(place: Place, app: str, count: int, rng: Random) -> list[Item]:
    ids = rng.sample(range(100, 1000), count)
    numbers = rng.sample(range(1, 100), count)  # all different: the largest is unique
    return [
        Item(identity, rng.choice(place.people), rng.choice(place.labels(app)), number)
        for identity, number in zip(ids, numbers, strict=True)
    ]


def _set_task(items: list[Item], place: Place, rng: Random) -> None:
    """Put matches on the first page, the last page, and perhaps between; nothing else matches."""
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
        items[rng.choice(rest)].number = int(place.value)  # the limit itself does not match
    if place.kind.verb == "top":
        _give_largest_to_other(items, chosen, rest, rng)


def _pools(place: Place) -> tuple[Sequence[Any], Sequence[Any]]:
    """The matching and the other values of the selecting field."""
    kind, value = place.kind, place.value
    if kind.selector == "over":
        limit = int(value)
        return range(limit + 1, 100), range(1, limit)
    if kind.selector == "group":
        members = groups_of(place)[value]
        return members, [person for person in place.people if person not in members]
    return [value], [other for other in place.values(kind.selector) if other != value]


def _spread(pool: Sequence[Any], count: int, rng: Random) -> list[Any]:
    """`count` values of the pool; each occurs once before any occurs twice."""
    drawn: list[Any] = []
    while len(drawn) < count:
        drawn += rng.sample(pool, min(len(pool), count - len(drawn)))
    return drawn


def _give_largest_to_other(items: list[Item], chosen: set[int], rest: list[int], rng: Random) -> None:
    """Give the overall largest number to an item that does not match."""
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

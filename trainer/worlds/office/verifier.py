"""Verify a task by the final state of its world and by the answer, not by how it was done."""

from app.errors import NotFoundError
from app.records import Json
from trainer.environment import Verdict
from trainer.worlds.office.items import Item, matches
from trainer.worlds.office.places import Place
from trainer.worlds.office.worlds import WorldState


def verify(world: WorldState, answer: Json, *, completed: bool = True) -> Verdict:
    """One check for each requested change, one that nothing else changed, and one of the answer.

    Raises NotFoundError for a world without a task, such as the demo.
    """
    place = world.place
    if place is None:
        raise NotFoundError(f"world {world.name} has no task to judge")
    items = world.items(place.kind.app)
    selected = [item for item in items if matches(item, place, world.groups)]
    changing = _to_change(selected, place)
    failures = [f for item in changing if (f := _unchanged(item, place))]
    if other := _other_changes(world, changing):
        failures.append(f"changed without being asked: {other}")
    if wrong := _wrong_answer(selected, place, answer, completed):
        failures.append(wrong)
    total = len(changing) + 2
    return Verdict(total - len(failures), total, tuple(failures))


def _to_change(selected: list[Item], place: Place) -> list[Item]:
    if place.kind.verb == "top":
        return [max(selected, key=lambda item: item.number)]
    return selected if place.kind.role else []


def _unchanged(item: Item, place: Place) -> str | None:
    if item.done == {place.kind.role}:
        return None
    return f"{place.kind.app} {item.id}: expected {place.kind.role}, found {sorted(item.done) or 'no change'}"


def _other_changes(world: WorldState, asked: list[Item]) -> str | None:
    allowed = {id(item) for item in asked}
    changed = [
        f"{app} {item.id}"
        for app, items in world.touched.items()
        for item in items
        if item.done and id(item) not in allowed
    ]
    return ", ".join(changed) or None


def _wrong_answer(selected: list[Item], place: Place, answer: Json, completed: bool) -> str | None:
    if not completed:
        return "the task was not completed"
    if place.kind.role:
        return None if answer in (None, "") else "an answer was given where none was expected"
    expected = len(selected) if place.kind.verb == "count" else sum(item.number for item in selected)
    right = not isinstance(answer, bool) and answer in (expected, str(expected))
    return None if right else f"expected the answer {expected}, got {str(answer)[:60]}"

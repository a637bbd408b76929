"""The check of a task by what became of all records, and by its answer; programs are not read. Pure."""

from collections.abc import Mapping
from typing import Final

import msgspec

from app.apis.double.meanings import Record
from app.apis.double.model import Model
from app.apis.double.state import State, changes
from app.base.values import Json
from trainer.environment import Verdict

Place = tuple[str, tuple[str, ...]]
"""The collection of a record, and its scope and key."""
_SHOWN: Final = 160


class Goal(msgspec.Struct, frozen=True):
    """What the records are to become. `asked` are the fields that the task decides of each record that changes,
    and of new ones under no key: what a server sets beside them, as the time of a change, may be anything.
    """

    before: State
    wanted: State
    asked: Mapping[Place, frozenset[str]]
    answer: Json = None  # None: the task asks for none


def verdict(model: Model, goal: Goal, found: State, answer: Json, *, completed: bool) -> Verdict:
    """One check for each record that is to change, one that nothing else has changed, one of the answer."""
    before, wanted, after = (_by_place(each) for each in (goal.before, goal.wanted, found))
    changing = [place for place in before if before[place] != wanted.get(place)]
    failures = [
        f"{_name(place)} is not as the task wants it"
        for place in changing
        if not _is_right(before[place], wanted.get(place), after.get(place), goal.asked.get(place, frozenset()))
    ]
    new = [wanted[place] for place in wanted if place not in before]
    added = [place for place in after if place not in before]
    left = list(added)
    for record, name in ((wanted[place], place[0]) for place in wanted if place not in before):
        asked = goal.asked.get((name, ()), frozenset())
        own, key = model.collections[name].given | asked, model.collections[name].key
        fit = (
            each
            for each in left
            if each[0] == name and _is_such(record, after[each], own, "" if key in asked else key)
        )
        match = next(fit, None)
        if match is None:
            failures.append(f"there is no new record in {name} as the task wants it")
        else:
            left.remove(match)
    others = [place for place in before if place not in changing and after.get(place) != before[place]]
    named = goal.wanted.parts.keys() | found.parts.keys()
    told = {each for each in named if goal.wanted.parts.get(each) != goal.before.parts.get(each)}
    wrong_parts = {each for each in named if goal.wanted.parts.get(each) != found.parts.get(each)}
    failures += [f"{each} is not as the task wants it" for each in sorted(told & wrong_parts)]
    touched = wrong_parts - told
    if others or left or touched:
        said = "; ".join(changes(goal.before, found))
        failures.append(f"changed without being asked: {said[:_SHOWN]}")
    if not completed:
        failures.append("the task was not completed")
    elif wrong := wrong_answer(goal.answer, answer):
        failures.append(wrong)
    total = len(changing) + len(new) + len(told) + 2
    return Verdict(total - len(failures), total, tuple(failures))


def wrong_answer(expected: Json, answer: Json) -> str | None:
    """What is wrong with an answer, if anything.

    >>> [wrong_answer(3, each) is None for each in (3, "3", 3.0, 4, True, None)]
    [True, True, True, False, False, False]
    >>> [wrong_answer(["b", "a"], each) is None for each in (["a", "b"], "a, b", ["a"], ["a", "b", "c"])]
    [True, True, False, False]
    >>> wrong_answer(None, "Done."), wrong_answer(False, "false")
    ('an answer was given where none was expected', None)
    """
    if expected is None:
        return None if answer in (None, "") else "an answer was given where none was expected"
    right = _is_list(expected, answer) if isinstance(expected, list) else _is_same(expected, answer)
    return None if right else f"expected the answer {str(expected)[:_SHOWN]}, got {str(answer)[:_SHOWN]}"


def _is_list(expected: list[Json], answer: Json) -> bool:
    if isinstance(answer, str):
        return answer == ", ".join(map(str, expected)) or sorted(answer.split(", ")) == sorted(map(str, expected))
    return isinstance(answer, list) and sorted(map(str, answer)) == sorted(map(str, expected))


def _is_same(expected: Json, answer: Json) -> bool:
    if isinstance(expected, bool) or isinstance(answer, bool):
        return str(expected).lower() == str(answer).strip().lower()
    if isinstance(expected, int | float):
        try:
            return abs(float(answer) - expected) < 1e-6 * max(1.0, abs(expected))
        except (TypeError, ValueError, OverflowError):
            return False
    return isinstance(answer, str | int | float) and str(answer).strip() == str(expected).strip()


def _by_place(state: State) -> dict[Place, Record]:
    return {(name, place): each for name, keyed in state.records.items() for place, each in keyed.items()}


def _is_right(before: Record, wanted: Record | None, found: Record | None, asked: frozenset[str]) -> bool:
    """Whether a record is as wanted, but for what the server sets when it is changed."""
    if wanted is None or found is None:
        return wanted is found
    names = before.fields.keys() | wanted.fields.keys() | found.fields.keys()
    loose = {each for each in names if each not in asked and before.fields.get(each) != wanted.fields.get(each)}
    return all(wanted.fields.get(each) == found.fields.get(each) for each in names if each not in loose)


def _is_such(wanted: Record, found: Record, own: frozenset[str], key: str) -> bool:
    names = [each for each in own if each != key]
    return wanted.scope == found.scope and all(wanted.fields.get(each) == found.fields.get(each) for each in names)


def _name(place: Place) -> str:
    return f"{place[0]} {'/'.join(place[1])}"

"""The records of a world, and the check of a task by their final state and its answer; programs are not read."""

from collections.abc import Container, Sequence
from random import Random
from typing import TypeAlias

import msgspec

from app.records import Json
from trainer.environment import Verdict
from trainer.worlds.generated.apis import Api, Collection

RecordId: TypeAlias = int | str
Values: TypeAlias = dict[str, str | int]  # the details of one task, by parameter

DATES = tuple(f"2026-{month:02}-{day:02}" for month in range(1, 13) for day in range(1, 29))


class Record(msgspec.Struct, kw_only=True):
    """Without the fields that its kind does not have."""

    id: RecordId
    title: str = ""
    link: str = ""
    person: str = ""
    label: str = ""
    number: int = 0
    date: str = ""
    state: str = ""
    extra: dict[str, Json] = {}  # by wire name, what no task asks for

    @property
    def facts(self) -> tuple[object, ...]:
        """All but the id, which the server gives."""
        return msgspec.structs.astuple(self)[1:]


Records: TypeAlias = dict[tuple[str, int], list[Record]]  # by app and place of the collection
FACTS = Record.__struct_fields__[1:]


def blank_record(collection: Collection, identity: RecordId) -> Record:
    """A new record, before anything is known of it."""
    return Record(
        id=identity,
        label=collection.domain.values[0],
        state=collection.domain.initial,
        extra=dict.fromkeys(collection.distractors, ""),
    )


def new_id(api: Api, taken: Container[RecordId], rng: Random) -> RecordId:
    while True:
        drawn = rng.randint(100, 99_999) if api.shape.ids == "number" else f"{rng.getrandbits(40):010x}"
        if drawn not in taken:
            return drawn


def verify_records(
    start: Records,
    wanted: Records,
    found: Records,
    *,
    expected: str | int | None,
    answer: Json,
    completed: bool,
    facts: Sequence[str] = FACTS,
) -> Verdict:
    """One check for each record that the task changes, one that nothing else changed, one of the answer.

    `expected` is None where no answer is asked for; `facts` are what is compared of a record.
    """
    before, goal, ended = (_by_place(records, facts) for records in (start, wanted, found))
    changing = [place for place in before if before[place] != goal.get(place)]
    new = [place for place in goal if place not in before]
    added = [place for place in ended if place not in before]
    failures = [
        f"{_name(place)}: expected {goal.get(place)}, found {ended.get(place)}"
        for place in changing
        if ended.get(place) != goal.get(place)
    ]
    if new and sorted(str(ended[place]) for place in added) != sorted(str(goal[place]) for place in new):
        failures.append(f"expected a new record {goal[new[0]]}, found {[ended[place] for place in added]}")
    others = [place for place in before if place not in changing and ended.get(place) != before[place]]
    others += [] if new else added
    if others:
        failures.append(f"changed without being asked: {', '.join(map(_name, others))}")
    if wrong := _wrong_answer(expected, answer, completed=completed):
        failures.append(wrong)
    total = len(changing) + len(new) + 2
    return Verdict(total - len(failures), total, tuple(failures))


_Place = tuple[str, int, RecordId]


def _by_place(records: Records, facts: Sequence[str]) -> dict[_Place, tuple[object, ...]]:
    return {
        (*place, record.id): tuple(getattr(record, fact) for fact in facts)
        for place, listed in records.items()
        for record in listed
    }


def _name(place: _Place) -> str:
    return f"{place[0]} {place[2]}"


def _wrong_answer(expected: str | int | None, answer: Json, *, completed: bool) -> str | None:
    """What is wrong with an answer, if anything."""
    if not completed:
        return "the task was not completed"
    if expected is None:
        return None if answer in (None, "") else "an answer was given where none was expected"
    right = not isinstance(answer, bool) and str(answer).strip() == str(expected)
    return None if right else f"expected the answer {expected}, got {str(answer)[:60]}"

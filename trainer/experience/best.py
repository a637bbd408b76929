"""The best of what was served, for supervised steps: rejection sampling. Pure."""

from collections import defaultdict
from collections.abc import Collection, Sequence
from uuid import UUID

import msgspec

from app.agent.action import code_of
from trainer.experience.comparison import position_of
from trainer.experience.records import Drop, Served


class Chosen(msgspec.Struct, frozen=True):
    """What is worth imitating, with its family, in the order of the tasks; and why the rest is not."""

    kept: list[tuple[Served, str]]
    dropped: list[Drop]


def choose(
    tasks: Sequence[Served], families: Sequence[str], makers: Collection[UUID | None], count: int
) -> Chosen:
    """Of each family, and with and without skills before it, the `count` best successes.

    First those that used an inherited skill, or left one where none was offered (`makers` are the tasks that did);
    then the ones with the fewest tokens. The two positions are chosen apart, or the short tasks that use skills
    would crowd out those that write them.
    """
    dropped: list[Drop] = []
    cells: dict[tuple[str, int], list[int]] = defaultdict(list)
    for index, (task, family) in enumerate(zip(tasks, families, strict=True)):
        fault = task.fault or _blemish(task)
        if fault is not None:
            dropped.append(fault)
        else:
            cells[family, position_of(task)].append(index)
    chosen: list[int] = []
    for cell in cells.values():
        best = sorted(cell, key=lambda index: _order(tasks[index], makers))
        chosen += best[:count]
        dropped += [Drop.SURPLUS] * len(best[count:])
    return Chosen([(tasks[index], families[index]) for index in sorted(chosen)], dropped)


def _blemish(task: Served) -> Drop | None:
    """Why it is no example, although it could be learned from."""
    if not task.success:
        return Drop.WEAK
    whole = all(turn.finish != "length" and code_of(turn.text) is not None for turn in task.trajectory.turns)
    return None if whole else Drop.CUT_OFF


def _order(task: Served, makers: Collection[UUID | None]) -> tuple[bool, int]:
    did = next(task.trajectory.used(), None) is not None if task.trajectory.offered else task.id in makers
    return not did, task.trajectory.generated_tokens

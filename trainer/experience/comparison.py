"""Who is compared with whom: tasks of one family, sampled by one release, all with skills or all without. Pure."""

from collections import defaultdict
from collections.abc import Mapping, Sequence

import msgspec

from trainer.experience.records import Drop, Served
from trainer.sage.advantages import MIN_SIGNAL, ScoredRollout
from trainer.sage.reward import Reward


class Compared(msgspec.Struct, frozen=True):
    """What teaches something, in the order of the tasks, and why the rest does not."""

    kept: list[tuple[Served, ScoredRollout]]
    dropped: list[Drop]


def compare(tasks: Sequence[Served], earned: Sequence[Reward], families: Sequence[str]) -> Compared:
    """Position 0 had no skill to fall back on, position 1 had: the two are never compared with each other.

    A task that cannot be learned from is dropped before its group is looked at.
    """
    kept: list[tuple[Served, ScoredRollout]] = []
    dropped: list[Drop] = []
    cells: dict[tuple[str, int], list[float]] = defaultdict(list)
    for task, reward, family in zip(tasks, earned, families, strict=True):
        if task.fault is not None:
            dropped.append(task.fault)
            continue
        kept.append((task, _rewarded(task, reward, family)))
        cells[_cell(kept[-1][1])].append(reward.total)
    useless = {cell: reason for cell, totals in cells.items() if (reason := _why_useless(totals))}
    return _without(kept, useless, dropped)


def position_of(task: Served) -> int:
    return 1 if task.trajectory.offered else 0


def _rewarded(task: Served, reward: Reward, family: str) -> ScoredRollout:
    return ScoredRollout(
        trajectory=task.trajectory,
        reward=reward.total,
        score=reward.score,
        bonus=reward.bonus,
        group=f"{family}, release {task.release}",
        position=position_of(task),
        staleness=task.staleness,
    )


def _cell(rewarded: ScoredRollout) -> tuple[str, int]:
    return rewarded.group, rewarded.position


def _why_useless(totals: Sequence[float]) -> Drop | None:
    if len(totals) == 1:
        return Drop.ALONE
    return Drop.EVEN if max(totals) - min(totals) < MIN_SIGNAL else None


def _without(
    kept: Sequence[tuple[Served, ScoredRollout]], useless: Mapping[tuple[str, int], Drop], dropped: Sequence[Drop]
) -> Compared:
    return Compared(
        [pair for pair in kept if _cell(pair[1]) not in useless],
        [*dropped, *(useless[_cell(rewarded)] for _, rewarded in kept if _cell(rewarded) in useless)],
    )

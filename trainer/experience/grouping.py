"""Groups of served tasks to compare: one scenario, one release, all with skills offered or all without."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import msgspec

from trainer.experience.drop_reasons import DropReason
from trainer.experience.scored_task import ScoredTask
from trainer.sage.advantages import MIN_SIGNAL, ScoredRollout
from trainer.sage.reward import Reward

_Cell: TypeAlias = tuple[str, int]  # group and position


class GroupedTasks(msgspec.Struct, frozen=True):
    """The tasks of groups with a learning signal, in their order, and why the others were dropped."""

    kept: list[tuple[ScoredTask, ScoredRollout]]
    dropped: list[DropReason]


def group_tasks(tasks: Sequence[ScoredTask], rewards: Sequence[Reward], scenarios: Sequence[str]) -> GroupedTasks:
    """`rewards` and `scenarios` are those of each task. Unusable tasks are dropped before groups are compared."""
    kept: list[tuple[ScoredTask, ScoredRollout]] = []
    dropped: list[DropReason] = []
    cells: dict[_Cell, list[float]] = defaultdict(list)
    for task, reward, scenario in zip(tasks, rewards, scenarios, strict=True):
        if task.unusable is not None:
            dropped.append(task.unusable)
            continue
        kept.append((task, _scored_rollout(task, reward, scenario)))
        cells[_cell(kept[-1][1])].append(reward.total)
    useless = {cell: reason for cell, totals in cells.items() if (reason := _without_signal(totals))}
    return _drop(useless, kept, dropped)


def _scored_rollout(task: ScoredTask, reward: Reward, scenario: str) -> ScoredRollout:
    return ScoredRollout(
        trajectory=task.trajectory,
        reward=reward.total,
        score=reward.score,
        bonus=reward.bonus,
        group=f"{scenario}, release {task.release}",
        position=task.position,
        staleness=task.staleness,
    )


def _cell(rollout: ScoredRollout) -> _Cell:
    return rollout.group, rollout.position


def _without_signal(totals: Sequence[float]) -> DropReason | None:
    if len(totals) == 1:
        return DropReason.NO_PEERS
    return DropReason.EQUAL_REWARDS if max(totals) - min(totals) < MIN_SIGNAL else None


def _drop(
    useless: Mapping[_Cell, DropReason],
    kept: Sequence[tuple[ScoredTask, ScoredRollout]],
    dropped: Sequence[DropReason],
) -> GroupedTasks:
    return GroupedTasks(
        [pair for pair in kept if _cell(pair[1]) not in useless],
        [*dropped, *(useless[_cell(rollout)] for _, rollout in kept if _cell(rollout) in useless)],
    )

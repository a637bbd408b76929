"""Groups of served tasks to compare: one scenario, one release, all with skills offered or all without."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import msgspec

from trainer.experience.drop_reasons import DropReason
from trainer.experience.scored_task import ScoredTask
from trainer.sage.advantages import MIN_SIGNAL, ScoredRollout
from trainer.sage.reward import Reward

_GroupPosition: TypeAlias = tuple[str, int]


class GroupedTasks(msgspec.Struct, frozen=True):
    """The tasks of groups with a learning signal, in their order, and why the others were dropped."""

    kept: list[tuple[ScoredTask, ScoredRollout]]
    dropped: list[DropReason]


def group_tasks(tasks: Sequence[ScoredTask], rewards: Sequence[Reward], scenarios: Sequence[str]) -> GroupedTasks:
    """Group the tasks; `rewards` and `scenarios` are those of each task. Unusable tasks are dropped before groups
    are compared.
    """
    kept: list[tuple[ScoredTask, ScoredRollout]] = []
    dropped: list[DropReason] = []
    rewards_of: dict[_GroupPosition, list[float]] = defaultdict(list)
    for task, reward, scenario in zip(tasks, rewards, scenarios, strict=True):
        if task.unusable is not None:
            dropped.append(task.unusable)
            continue
        kept.append((task, _scored_rollout(task, reward, scenario)))
        rewards_of[_group_position(kept[-1][1])].append(reward.total)
    without_signal = {key: reason for key, totals in rewards_of.items() if (reason := _why_no_signal(totals))}
    return _drop(without_signal, kept, dropped)


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


def _group_position(rollout: ScoredRollout) -> _GroupPosition:
    return rollout.group, rollout.position


def _why_no_signal(totals: Sequence[float]) -> DropReason | None:
    if len(totals) == 1:
        return DropReason.NO_PEERS
    return DropReason.EQUAL_REWARDS if max(totals) - min(totals) < MIN_SIGNAL else None


def _drop(
    without_signal: Mapping[_GroupPosition, DropReason],
    kept: Sequence[tuple[ScoredTask, ScoredRollout]],
    dropped: Sequence[DropReason],
) -> GroupedTasks:
    reasons = [without_signal.get(_group_position(rollout)) for _, rollout in kept]
    return GroupedTasks(
        [pair for pair, reason in zip(kept, reasons, strict=True) if reason is None],
        [*dropped, *(reason for reason in reasons if reason is not None)],
    )

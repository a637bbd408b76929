"""Groups of served tasks to compare: one scenario, one release, all with skills offered or all without.

Groups are of the size of rollouts', so that more tasks give more steps, not steps of larger groups.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import msgspec

from trainer.experience.drop_reasons import DropReason
from trainer.experience.scored_task import ScoredTask
from trainer.sage.advantages import MIN_SIGNAL, ScoredRollout
from trainer.sage.reward import Reward

_GroupPosition: TypeAlias = tuple[str, int]
_SIZE = 8  # of a group at most, as many as rollouts of a chain (SAGE's G)


class GroupedTasks(msgspec.Struct, frozen=True):
    """The tasks of groups with a learning signal, in their order, and why the others were dropped."""

    kept: list[tuple[ScoredTask, ScoredRollout]]
    dropped: list[DropReason]


def group_tasks(tasks: Sequence[ScoredTask], rewards: Sequence[Reward], scenarios: Sequence[str]) -> GroupedTasks:
    """Group the tasks; `rewards` and `scenarios` are those of each task. Unusable tasks are dropped before groups
    are compared. What would be a large group is cut into equal parts, by time.
    """
    dropped = [task.unusable for task in tasks if task.unusable is not None]
    usable = [each for each in zip(tasks, rewards, scenarios, strict=True) if each[0].unusable is None]
    comparable = [(f"{scenario}, release {task.release}", task.position) for task, _, scenario in usable]
    sizes, seen = Counter(comparable), Counter[_GroupPosition]()
    kept: list[tuple[ScoredTask, ScoredRollout]] = []
    rewards_of: dict[_GroupPosition, list[float]] = defaultdict(list)
    for (task, reward, _), key in zip(usable, comparable, strict=True):
        part = seen[key] * -(-sizes[key] // _SIZE) // sizes[key]
        seen[key] += 1
        kept.append((task, _scored_rollout(task, reward, f"{key[0]}, part {part + 1}" if part else key[0])))
        rewards_of[_group_position(kept[-1][1])].append(reward.total)
    without_signal = {key: reason for key, totals in rewards_of.items() if (reason := _why_no_signal(totals))}
    return _drop(without_signal, kept, dropped)


def _scored_rollout(task: ScoredTask, reward: Reward, group: str) -> ScoredRollout:
    return ScoredRollout(
        trajectory=task.trajectory,
        reward=reward.total,
        score=reward.score,
        bonus=reward.bonus,
        group=group,
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

"""Rejection sampling from served tasks: the best successes of each scenario, for supervised training."""

from collections import defaultdict
from collections.abc import Collection, Sequence
from uuid import UUID

import msgspec

from app.agent.action import extract_code
from trainer.experience.drop_reasons import DropReason
from trainer.experience.scored_task import ScoredTask


class BestTasks(msgspec.Struct, frozen=True):
    """The tasks worth imitating with their scenario, in their order, and why the others were dropped."""

    kept: list[tuple[ScoredTask, str]]
    dropped: list[DropReason]


def select_best(
    tasks: Sequence[ScoredTask], scenarios: Sequence[str], makers: Collection[UUID | None], count: int
) -> BestTasks:
    """The `count` best successes of each scenario, with skills offered and without.

    First those that used an offered skill or, where none was offered, made one (`makers` are the tasks that did);
    then those with the fewest tokens. With and without are selected apart, or the short tasks that use skills
    would crowd out those that write them.
    """
    dropped: list[DropReason] = []
    candidates: dict[tuple[str, int], list[int]] = defaultdict(list)
    for index, (task, scenario) in enumerate(zip(tasks, scenarios, strict=True)):
        reason = task.unusable or _not_an_example(task)
        if reason is not None:
            dropped.append(reason)
        else:
            candidates[scenario, task.position].append(index)
    selected: list[int] = []
    for indices in candidates.values():
        ranked = sorted(indices, key=lambda index: _rank(tasks[index], makers))
        selected += ranked[:count]
        dropped += [DropReason.SURPLUS] * len(ranked[count:])
    return BestTasks([(tasks[index], scenarios[index]) for index in sorted(selected)], dropped)


def _not_an_example(task: ScoredTask) -> DropReason | None:
    if not task.success:
        return DropReason.UNSUCCESSFUL
    turns = task.trajectory.turns
    whole = all(turn.finish != "length" and extract_code(turn.full_text) is not None for turn in turns)
    return None if whole else DropReason.CUT_OFF


def _rank(task: ScoredTask, makers: Collection[UUID | None]) -> tuple[bool, int]:
    """Sort key: lower is better."""
    offered = bool(task.trajectory.offered)
    with_skill = next(task.trajectory.used(), None) is not None if offered else task.id in makers
    return not with_skill, task.trajectory.generated_tokens

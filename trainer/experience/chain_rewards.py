"""Rewards of served tasks, with the bonus for skills that pass between them.

Served tasks form chains of their own accord: a task makes a skill, and the library offers it to later tasks that
have the same scenario or a near instruction. Each offer is a chain of two, rewarded as in training; a task that is
part of many chains gets the best reward of any of them, so never more than one bonus.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TypeAlias
from uuid import UUID

from trainer.experience.scored_task import ScoredTask
from trainer.rollouts.chain_step import chain_step
from trainer.sage.reward import ChainStep, Reward, RewardRule, with_use_values

SkillMakers: TypeAlias = Mapping[UUID, UUID | None]
"""The task that made each skill that may earn a bonus; None for a task that was deleted."""


def compute_rewards(
    tasks: Sequence[ScoredTask],
    scenarios: Sequence[str],
    makers: SkillMakers,
    rule: RewardRule,
    use_values: Mapping[str, float] = MappingProxyType({}),
) -> list[Reward]:
    """One reward per task, in their order; `scenarios` has that of each, `use_values` what trials have shown.

    A maker that is not among `tasks` gets no reward, but a success that used its skill does. A skill that is not
    in `makers` earns no bonus.
    """
    steps = _chain_steps(tasks, scenarios, makers, use_values)
    began = {task.id: task.began for task in tasks}
    best = {task.id: rule([steps[task.id]])[0] for task in tasks}
    for user in tasks:
        for maker, skills in _offered_by_maker(user, makers).items():
            if maker is not None and maker in began and began[maker] >= user.began:
                continue  # the library held the skill before this task made it: not a chain
            first = steps.get(maker) or ChainStep(score=0.0, success=False, creditable=skills)
            pair = rule([first, steps[user.id]])
            for task_id, reward in zip((maker, user.id), pair, strict=True):
                if task_id in best:
                    best[task_id] = max(best[task_id], reward, key=lambda each: each.total)
    return [best[task.id] for task in tasks]


def _chain_steps(
    tasks: Sequence[ScoredTask], scenarios: Sequence[str], makers: SkillMakers, use_values: Mapping[str, float]
) -> dict[UUID | None, ChainStep]:
    made: dict[UUID | None, set[UUID]] = defaultdict(set)
    for skill, maker in makers.items():
        made[maker].add(skill)
    steps = [
        chain_step(task.trajectory, task.score, success=task.success, creditable=frozenset(made.get(task.id, ())))
        for task in tasks
    ]
    return {task.id: step for task, step in zip(tasks, with_use_values(steps, scenarios, use_values), strict=True)}


def _offered_by_maker(user: ScoredTask, makers: SkillMakers) -> dict[UUID | None, frozenset[UUID]]:
    """The skills that a task was offered, by the task that made them."""
    offered: dict[UUID | None, set[UUID]] = defaultdict(set)
    for offer in user.trajectory.offered:
        if offer.skill_id in makers:
            offered[makers[offer.skill_id]].add(offer.skill_id)
    return {maker: frozenset(skills) for maker, skills in offered.items()}

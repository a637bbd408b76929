"""What served tasks earned, with the skills they left each other. Pure.

Served tasks form chains by themselves: a task makes a skill, and the library puts it before later tasks that have
the same scenario or a near instruction. Each offer is a chain of two, rewarded as one of practice is; a task that
stands in many chains earns the best it earned in any of them, so never more than one bonus.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from uuid import UUID

from trainer.experience.records import Served
from trainer.rollouts.chain_step import chain_step
from trainer.sage.chains import ChainStep
from trainer.sage.reward import Reward, RewardRule

Makers = Mapping[UUID, UUID | None]
"""The task that made each skill that may earn. None: it was deleted."""


def earned(tasks: Sequence[Served], makers: Makers, rule: RewardRule) -> list[Reward]:
    """One reward per task, in their order.

    A maker that is not among `tasks` earns nothing, but a success that used its skill does. A skill that `makers`
    does not name earns nobody anything.
    """
    links = _links(tasks, makers)
    began = {task.id: task.began for task in tasks}
    best = {task.id: rule([links[task.id]])[0] for task in tasks}
    for user in tasks:
        for maker, inherited in _offered(user, makers).items():
            if maker is not None and maker in began and began[maker] >= user.began:
                continue  # the library held it before this task made it: not a chain
            first = links.get(maker) or ChainStep(score=0.0, success=False, made=inherited)
            pair = rule([first, links[user.id]])
            for task_id, reward in zip((maker, user.id), pair, strict=True):
                if task_id in best:
                    best[task_id] = max(best[task_id], reward, key=lambda each: each.total)
    return [best[task.id] for task in tasks]


def _links(tasks: Sequence[Served], makers: Makers) -> dict[UUID | None, ChainStep]:
    made: dict[UUID | None, set[UUID]] = defaultdict(set)
    for skill, maker in makers.items():
        made[maker].add(skill)
    return {
        task.id: chain_step(
            task.trajectory, task.score, success=task.success, made=frozenset(made.get(task.id, ()))
        )
        for task in tasks
    }


def _offered(user: Served, makers: Makers) -> dict[UUID | None, frozenset[UUID]]:
    """The skills that were put before a task, by the task that made them."""
    offered: dict[UUID | None, set[UUID]] = defaultdict(set)
    for offer in user.trajectory.offered:
        if offer.skill_id in makers:
            offered[makers[offer.skill_id]].add(offer.skill_id)
    return {maker: frozenset(skills) for maker, skills in offered.items()}

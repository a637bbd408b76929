"""Tasks of an exam that are solved by doing nothing: they cannot tell a good policy from a bad one.

Whoever completes such a task at once passes, so a policy would gain by ending its tasks sooner, or be promoted for
using fewer tokens. A check that is always true is of this kind.
"""

from collections.abc import Callable, Sequence
from uuid import UUID

from app.records import Json, Policy, Stop, Trajectory
from trainer.exam.exam_environment import ExamItem, Trials

_ANSWERS: tuple[Json, ...] = (None, "?")  # the second is right for nothing, but a check may accept any answer


async def solved_idly(
    trials: Trials, items: Sequence[ExamItem], report: Callable[[int, int], object]
) -> set[UUID]:
    """The ids of tasks that are judged as solved if all that a trial does is to complete them.

    `report` is called with how many of them are done, and their number. Raises StagingError if the APIs cannot be
    reset.
    """
    found = set[UUID]()
    for done, item in enumerate(items, 1):
        if await _solved_idly(trials, item):
            found.add(item.task.id)
        report(done, len(items))
    return found


async def _solved_idly(trials: Trials, item: ExamItem) -> bool:
    async with trials.open(item) as world:
        for answer in _ANSWERS:
            verdict = await world.verify(_idle(item, answer))
            if verdict.known and verdict.success:
                return True
    return False


def _idle(item: ExamItem, answer: Json) -> Trajectory:
    return Trajectory(task=item.task, policy=Policy(), profile="", turns=(), stop=Stop.COMPLETED, answer=answer)

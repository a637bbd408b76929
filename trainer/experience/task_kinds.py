"""The kinds of a project's tasks, by which it holds some out: all tasks of one kind, or none.

Tasks without a scenario are of one kind if their instructions are alike and most of what they called is the same.
That is coarser than the scenarios which runs infer: what is learned from shall tell nothing of what is examined.
"""

from collections.abc import Sequence
from uuid import UUID

from app.db.scored_log import UnlabelledTask
from app.project.holdout import kind_that_begins
from app.skills.ngrams import NgramIndex

_NEAREST = 50  # instructions that are compared
_LEAST = 0.55  # Jaccard similarity of the instructions' n-grams, as of one inferred scenario
_MARGIN = 0.2  # less similar kinds are not possible
_MOST = 0.5  # more of the operations of two solved tasks are the same


class TaskKinds:
    """A kind is a scenario or, of tasks without one, named after the first instruction of those that are alike.

    `new` are the kinds of tasks that had none.
    """

    def __init__(self, logged: Sequence[UnlabelledTask] = ()) -> None:
        """`logged` are oldest first: later tasks change the kind of none before them, and none that has one."""
        self._index: NgramIndex[int] = NgramIndex()
        self._placed: list[tuple[str, UnlabelledTask | None]] = []  # by the index' keys: the kind, and the task
        self._of_task = {
            task.id: self._add(task.kind, task.instruction, task) for task in logged if task.kind is not None
        }
        self.new: dict[UUID, str] = {}
        for task in logged:
            if task.kind is None:
                self.new[task.id] = self._of_task[task.id] = self._place(task)

    def of_task(self, task_id: UUID, instruction: str, scenario: str | None) -> str:
        """The kind of a task; the likeliest if it is not in the log."""
        return self.possible(task_id, instruction, scenario)[0]

    def possible(self, task_id: UUID | None, instruction: str, scenario: str | None) -> list[str]:
        """The kinds that a task can be of, likeliest first: one, if it is in the log or has a scenario."""
        if scenario is not None:
            return [scenario]
        if task_id in self._of_task:
            return [self._of_task[task_id]]
        near = self._near(instruction)
        if not near:
            return [self._add(kind_that_begins(instruction), instruction)]
        best = near[0][1]
        return list(dict.fromkeys(kind for kind, similarity, _ in near if similarity > best - _MARGIN))

    def _place(self, task: UnlabelledTask) -> str:
        alike = (
            kind for kind, _, other in self._near(task.instruction) if other is None or _is_alike(task, other)
        )
        kind = next(alike, kind_that_begins(task.instruction))
        return self._add(kind, task.instruction, task)

    def _near(self, instruction: str) -> list[tuple[str, float, UnlabelledTask | None]]:
        """The kinds of instructions like this one, most alike first, each with its similarity and its task."""
        found = [each for each in self._index.search(instruction, _NEAREST) if each[1] >= _LEAST]
        return [(self._placed[key][0], similarity, self._placed[key][1]) for key, similarity in found]

    def _add(self, kind: str, instruction: str, task: UnlabelledTask | None = None) -> str:
        self._index.add(len(self._placed), instruction, task.slots if task else ())
        self._placed.append((kind, task))
        return kind


def _is_alike(task: UnlabelledTask, other: UnlabelledTask) -> bool:
    """Whether what they called may be of one kind. Who called nothing may be of any."""
    own, others = task.operations, other.operations
    if not own or not others:
        return True
    if not (task.solved and other.solved):
        return own <= others or others <= own
    return len(own & others) > _MOST * len(own | others)

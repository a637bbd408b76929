"""The scenario of each task: the labelled one or, without a label, one inferred from instructions and calls.

Instructions alone mix "approve the leave of ann" with "reject the leave of ann". What tasks called tells them
apart: solved tasks of one kind called the same operations, and one that failed called none that these did not.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple
from uuid import UUID

from app.records import Task, Trajectory
from app.skills.ngrams import NgramIndex

_NEAREST = 20  # instructions that are compared


class _Likeness(NamedTuple):
    """Jaccard similarity of word n-grams between instructions of one scenario."""

    least: float
    margin: float  # over the next scenario that it could be


_ALL_CALLED, _LESS_CALLED = _Likeness(0.55, 0.2), _Likeness(0.65, 0.25)  # fewer calls show less of a kind


class Conduct(NamedTuple):
    """What a task did: the operations that answered, and whether it was solved."""

    operations: frozenset[str] = frozenset()
    solved: bool = True

    @classmethod
    def of(cls, trajectory: Trajectory, *, solved: bool) -> "Conduct":
        return cls(frozenset(call.api for call in trajectory.calls if call.error is None), solved)

    def fits(self, first: "Conduct") -> bool:
        """Whether it may be of the scenario of a task."""
        return self.operations == first.operations if self.solved else self.operations <= first.operations


def infer_scenarios(
    tasks: Sequence[Task],
    slots: Mapping[UUID, Collection[str]] | None = None,
    conduct: Mapping[UUID, Conduct] | None = None,
) -> list[str]:
    """A scenario key for each task, in their order.

    An unlabelled task joins the scenario whose instructions are nearest to its own, or starts a new one. `slots`
    are words of a task's instruction that are known arguments, so they may differ; `conduct` is what tasks did.

    >>> from uuid import UUID
    >>> texts = ["delete the mails from iris", "delete mails from omar", "pay the rent"]
    >>> [key[-1] for key in infer_scenarios([Task(UUID(int=n), text) for n, text in enumerate(texts)])]
    ['0', '0', '2']
    """
    families = _Families(slots or {}, conduct or {})
    unlabelled = [task for task in tasks if task.scenario is None]
    for task in sorted(unlabelled, key=lambda task: not families.conduct(task).solved):  # the solved ones first
        families.place(task)
    return [
        f"like {families.first[task.id]}" if task.scenario is None else labelled(task.scenario) for task in tasks
    ]


def labelled(scenario: str) -> str:
    """The key of a labelled scenario."""
    return f"scenario {scenario}"


class _Families:
    """Tasks by the first task of their scenario."""

    def __init__(self, slots: Mapping[UUID, Collection[str]], conduct: Mapping[UUID, Conduct]) -> None:
        self._slots, self._conduct = slots, conduct
        self._index: NgramIndex[UUID] = NgramIndex()
        self.first: dict[UUID, UUID] = {}
        self._of_first: dict[UUID, Conduct] = {}

    def conduct(self, task: Task) -> Conduct:
        return self._conduct.get(task.id, Conduct())

    def place(self, task: Task) -> None:
        own = self.conduct(task)
        first = self._nearest(task, own)
        if first is None:
            first = task.id
            self._of_first[first] = own
        self.first[task.id] = first
        if own.solved or first == task.id:
            self._index.add(task.id, task.instruction, self._slots.get(task.id, ()))

    def _nearest(self, task: Task, own: Conduct) -> UUID | None:
        """The scenario that it certainly is of, if there is one."""
        best: dict[UUID, float] = {}  # the similarity of each scenario that it could be, best first
        for other, similarity in self._index.search(task.instruction, _NEAREST):
            first = self.first[other]
            if own.fits(self._of_first[first]):
                best.setdefault(first, similarity)
        if not best:
            return None
        (first, similarity), *others = best.items()
        next_one = others[0][1] if others else 0.0
        wanted = _ALL_CALLED if own.operations == self._of_first[first].operations else _LESS_CALLED
        certain = similarity >= wanted.least and similarity - next_one >= wanted.margin
        return first if certain else None

"""The scenario of each task: the labelled one or, without a label, one inferred from the nearest instructions."""

from collections.abc import Collection, Mapping, Sequence
from uuid import UUID

from app.records import Task
from app.skills.ngrams import NgramIndex

_MIN_SIMILARITY = 0.5  # Jaccard similarity of word n-grams, between instructions of one scenario


def infer_scenarios(tasks: Sequence[Task], slots: Mapping[UUID, Collection[str]] | None = None) -> list[str]:
    """A scenario key for each task, in their order.

    An unlabelled task joins the scenario whose first instruction is nearest to its own, or starts a new one.
    `slots` are words of a task's instruction that are known arguments, so they may differ.

    >>> from uuid import UUID
    >>> texts = ["delete the mails from iris", "delete mails from omar", "pay the rent"]
    >>> [key[-1] for key in infer_scenarios([Task(UUID(int=n), text) for n, text in enumerate(texts)])]
    ['0', '0', '2']
    """
    firsts: NgramIndex[UUID] = NgramIndex()
    keys = []
    for task in tasks:
        if task.scenario is not None:
            keys.append(f"scenario {task.scenario}")
            continue
        nearest = firsts.search(task.instruction, 1)
        if nearest and nearest[0][1] >= _MIN_SIMILARITY:
            keys.append(f"like {nearest[0][0]}")
        else:
            firsts.add(task.id, task.instruction, (slots or {}).get(task.id, ()))
            keys.append(f"like {task.id}")
    return keys

"""Which tasks ask for the same thing? By their scenario or, without one, by the nearest instructions. Pure."""

from collections.abc import Collection, Mapping, Sequence
from uuid import UUID

from app.records import Task
from app.skills.ngrams import NgramIndex

_ALIKE = 0.5  # Jaccard similarity of word n-grams from which two instructions ask for one thing


def families(tasks: Sequence[Task], slots: Mapping[UUID, Collection[str]] | None = None) -> list[str]:
    """The family of each task, in their order.

    A task without a scenario joins the first one whose instruction is nearest to its own, or founds a family.
    `slots` are words of a task's instruction known to be details, so that they may differ.

    >>> from uuid import UUID
    >>> words = ["delete the mails from iris", "delete mails from omar", "pay the rent"]
    >>> [family[-1] for family in families([Task(UUID(int=n), text) for n, text in enumerate(words)])]
    ['0', '0', '2']
    """
    founders: NgramIndex[UUID] = NgramIndex()
    found = []
    for task in tasks:
        if task.scenario is not None:
            found.append(f"scenario {task.scenario}")
            continue
        nearest = founders.search(task.instruction, 1)
        if nearest and nearest[0][1] >= _ALIKE:
            found.append(f"like {nearest[0][0]}")
        else:
            founders.add(task.id, task.instruction, (slots or {}).get(task.id, ()))
            found.append(f"like {task.id}")
    return found

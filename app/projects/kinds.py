"""The kinds of tasks, and which of them are held out of training, to be examined on."""

import hashlib
from uuid import UUID

OWN_WORK = "own-work"
"""The name of the exam that `holdout_percent` fills."""

SET = 3
"""Tasks of one kind are examined three at a time: each such set is a scenario."""


def sets_of(tasks: int) -> int:
    """How many scenarios so many tasks of one kind are.

    >>> [sets_of(tasks) for tasks in (0, 1, 3, 4)]
    [0, 1, 1, 2]
    """
    return -(-tasks // SET)


def kind_of(instruction: str, scenario: str | None) -> str:
    """The scenario of a task, or its instruction where it has none.

    >>> kind_of("Archive  my MAILS", None)
    'archive my mails'
    """
    return scenario if scenario is not None else " ".join(instruction.lower().split())


def kind_that_begins(instruction: str) -> str:
    """The kind of tasks without a scenario of which the first has this instruction. The name does not tell it."""
    words = kind_of(instruction, None)
    return f"like {hashlib.sha256(words.encode()).hexdigest()[:32]}"


def is_held_out(project_id: UUID, kind: str, percent: float) -> bool:
    """Whether a kind is among the `percent` of all kinds that are held out: by its hash, so always the same."""
    digest = hashlib.sha256(f"{project_id} {kind}".encode()).digest()
    return int.from_bytes(digest[:8]) < percent / 100 * 2**64

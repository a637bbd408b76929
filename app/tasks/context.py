"""What a project gives its tasks, and which of them explore: these are sampled at temperature 1, for runs to
learn from, others as the server is set.

An exploring task reads, and no more: a policy gradient needs its worse attempts as well as its better ones, and
a user must not pay for these with a change that cannot be undone. At the first call that may change something
the attempt is thrown away, and the task begins again as if it had never explored. That loses nothing, since all
it did was to read. To go on from there at another temperature would, as the answers of its earlier turns were
drawn by chance, and to answer the call with an error would leave it to the policy to try again. A project whose
APIs can stand it opens all of them with `explore_writes`, or single operations.

A task that has changed something by an operation that is open cannot begin again, or the change would be made
twice: there, a call that is closed raises an error. Such an attempt is not learned from, or runs would teach
the policy that these calls are in vain.

Runs then learn from the attempts that did not come to change anything. Their rewards are relative to the mean
of their group, so that the gradient is that of the reward among these: it moves the policy neither towards
changing things nor away from it.
"""

from collections.abc import Sequence
from hashlib import blake2b
from uuid import UUID

import msgspec

from app.apis.catalog import Catalog, Operation
from app.base.fields import columns
from app.base.values import Policy, Task, hosted_id
from app.db import tables
from app.db.tables import Exploration, ReleaseState
from app.projects.settings import ProjectSettings, explored_percent
from app.releases.tools import ApiDocument


class TaskContext(msgspec.Struct, frozen=True):
    """The policy and the APIs that a project gives its tasks."""

    policy: Policy
    project: str
    apis: Sequence[ApiDocument]
    catalog: Catalog
    settings: ProjectSettings
    release: ReleaseState
    learns: bool = False  # runs that learn from these tasks are scheduled


def task_of(row: tables.Task, project: str) -> Task:
    """The task as a rollout gets it."""
    return Task(project=project, **columns(row, Task, "project", "memory"))


def is_chosen(task_id: UUID, percent: float) -> bool:
    """Whether a task is among this share, regardless of whether skills are withheld from it. A larger share
    contains a smaller one.
    """
    digest = blake2b(task_id.bytes, digest_size=8, person=b"explore").digest()
    return int.from_bytes(digest) < percent / 100 * 2**64


def exploration_of(row: tables.Task, context: TaskContext) -> Exploration | None:
    """How a task that has not begun is to explore; None: not at all.

    Neither do tasks that call a skill or repair one, and those whose release was chosen: they are no experience.
    Nor do those of a hosted model, whose logprobs nobody knows.
    """
    percent = explored_percent(context.settings, learns=context.learns)
    other = row.pinned or row.skill_run is not None or row.repairs is not None
    other = other or hosted_id(context.policy.model) is not None
    if row.exploration is not None or other or not is_chosen(row.id, percent):
        return None
    return Exploration.WRITES if context.settings.explore_writes else Exploration.READS


def is_open(row: tables.Task, operation: Operation) -> bool:
    """Whether the task may call the operation also where that changes something, or waits for a person."""
    if row.reads_only:
        return False
    match row.exploration:
        case Exploration.READS:
            return operation.explore is True
        case Exploration.WRITES:
            return operation.explore is not False
    return True

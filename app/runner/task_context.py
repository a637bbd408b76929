"""What a project gives its tasks."""

from collections.abc import Sequence

import msgspec

from app.apis.catalog import Catalog
from app.base.values import Policy, Task
from app.db import tables
from app.db.tables import ReleaseState
from app.projects.settings import ProjectSettings
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
    return Task(
        id=row.id,
        instruction=row.instruction,
        project=project,
        scenario=row.scenario,
        variables=row.variables,
        conversation=row.conversation,
    )

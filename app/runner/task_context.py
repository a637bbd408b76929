"""What a project gives its tasks."""

from collections.abc import Sequence

import msgspec

from app.apis.catalog import Catalog
from app.db.models import ReleaseState
from app.project.project_settings import ProjectSettings
from app.records import Policy
from app.release.manifest import ApiDocument


class TaskContext(msgspec.Struct, frozen=True):
    """The policy and the APIs that a project gives its tasks."""

    policy: Policy
    project: str
    apis: Sequence[ApiDocument]
    catalog: Catalog
    settings: ProjectSettings
    release: ReleaseState

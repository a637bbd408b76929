"""Where people see what a response is about."""

from typing import Literal, Self
from uuid import UUID

import msgspec

Kind = Literal["tasks", "skills", "releases", "runs", "approvals"]


def console_path(kind: Kind, row_id: UUID) -> str:
    """
    >>> console_path("tasks", UUID(int=7))
    '/console/tasks/00000000-0000-0000-0000-000000000007'
    """
    return f"/console/{kind}/{row_id}"


class ConsoleLinks(msgspec.Struct, frozen=True):
    """The page of the console."""

    console: str

    @classmethod
    def of(cls, kind: Kind, row_id: UUID) -> Self:
        return cls(console_path(kind, row_id))

    @classmethod
    def to(cls, path: str, project: str | None) -> Self:
        """A page that is about a project, or without one about all.

        >>> ConsoleLinks.to("/console/usage", "demo").console
        '/console/usage?project=demo'
        """
        return cls(path if project is None else f"{path}?project={project}")

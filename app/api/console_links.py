"""Where people see what a response is about."""

from typing import Literal, Self
from uuid import UUID

import msgspec

Kind = Literal["tasks", "skills", "releases", "runs"]


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

"""What many routes share: the parameters of lists, and links to the console."""

from datetime import UTC, datetime
from typing import Annotated, Literal, Self, TypeAlias
from uuid import UUID

import msgspec
from litestar.params import HeaderParameter, QueryParameter

from app.base.errors import InvalidError
from app.base.fields import MOST

ProjectName: TypeAlias = Annotated[str | None, QueryParameter(description="only this project")]
Cursor: TypeAlias = Annotated[str | None, QueryParameter(description="`next_cursor` of the previous page")]
Limit: TypeAlias = Annotated[int, QueryParameter(ge=1, le=200, description="page size")]
TIME = {"format": "date-time"}
"""Of a parameter that `in_utc` reads. The framework would take a number for a time as well."""
Since: TypeAlias = Annotated[
    str | None, QueryParameter(description="created at this time or later", schema_extra=TIME)
]
Until: TypeAlias = Annotated[str | None, QueryParameter(description="created before this time", schema_extra=TIME)]
LastEventId: TypeAlias = Annotated[int, HeaderParameter(name="Last-Event-ID", ge=0, le=MOST)]


IdempotencyKey: TypeAlias = Annotated[
    str | None,
    HeaderParameter(
        name="Idempotency-Key",
        min_length=1,
        max_length=200,
        description="repeating a submission with the same key creates no further tasks",
    ),
]


def in_utc(time: datetime | str | None, name: str = "time") -> datetime | None:
    """A time without a zone is taken as UTC, not as the time zone of the database. Raises InvalidError for a text
    that is no time.
    """
    if isinstance(time, str):
        try:
            time = msgspec.convert(time, datetime)
        except msgspec.ValidationError as error:
            raise InvalidError(f"{name}: {time!r} is not a time such as 2026-01-31T12:00:00Z") from error
    return time.replace(tzinfo=UTC) if time and time.tzinfo is None else time


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

"""What requests and responses are made of: types that validate values, the columns of a row, and links to the
console.

PostgreSQL text cannot contain NUL, so none is accepted. Patterns end with `(?!\n)$`: a bare `$` also matches
before a final newline in Python, though not in JavaScript.
"""

from datetime import UTC, datetime
from typing import Annotated, Literal, Self, TypeAlias
from uuid import UUID

import msgspec
from litestar.params import HeaderParameter, QueryParameter

from app.base.errors import InvalidError
from app.base.values import Json

Text: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"^[^\x00]*$")]
Scenario: TypeAlias = Annotated[str, msgspec.Meta(min_length=1, max_length=200, pattern=r"^[^\x00]*$")]
Name: TypeAlias = Annotated[
    str,
    msgspec.Meta(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}(?!\n)$",
        description="1 to 64 letters, digits, `_`, `.` or `-`; starts with a letter or digit",
    ),
]
AppName: TypeAlias = Annotated[
    str,
    msgspec.Meta(
        pattern=r"^[a-z][a-z0-9_]{0,63}(?!\n)$", description="the agent uses it as `apis.<name>`; lower case"
    ),
]
Score: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=1)]

ProjectName: TypeAlias = Annotated[str | None, QueryParameter(description="only this project")]
Cursor: TypeAlias = Annotated[str | None, QueryParameter(description="`next_cursor` of the previous page")]
Limit: TypeAlias = Annotated[int, QueryParameter(ge=1, le=200, description="page size")]
TIME = {"format": "date-time"}
"""Of a parameter that `in_utc` reads. The framework would take a number for a time as well."""
Since: TypeAlias = Annotated[
    str | None, QueryParameter(description="created at this time or later", schema_extra=TIME)
]
Until: TypeAlias = Annotated[str | None, QueryParameter(description="created before this time", schema_extra=TIME)]

MOST = 2**31 - 1
"""The largest integer of a column."""

LastEventId: TypeAlias = Annotated[int, HeaderParameter(name="Last-Event-ID", ge=0, le=MOST)]


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


def columns(row: object, view: type[msgspec.Struct], *others: str) -> dict[str, Json]:
    """The fields of `view`, except `others`, by name, of a row or another struct.

    Each has the name of its column. A field that is called otherwise in REST is renamed by
    `msgspec.field(name=...)`, so that it is still found here.
    """
    return {name: getattr(row, name) for name in view.__struct_fields__ if name not in others}


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

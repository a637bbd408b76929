"""What values the edge lets in. PostgreSQL keeps no NUL in text, so none gets past here."""

from datetime import UTC, datetime
from typing import Annotated, TypeAlias

import msgspec
from litestar.params import HeaderParameter, QueryParameter

Text: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"^[^\x00]*$")]
Scenario: TypeAlias = Annotated[str, msgspec.Meta(min_length=1, max_length=200, pattern=r"^[^\x00]*$")]
Name: TypeAlias = Annotated[
    str,
    msgspec.Meta(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$",
        description="letters, digits, `_`, `.` and `-`, at most 64, the first a letter or digit",
    ),
]
AppName: TypeAlias = Annotated[
    str,
    msgspec.Meta(
        pattern=r"^[a-z][a-z0-9_]{0,63}$", description="what the agent calls it by: `apis.<name>`; lower case"
    ),
]
Score: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=1)]

ProjectName: TypeAlias = Annotated[str | None, QueryParameter(description="only of this project")]
Cursor: TypeAlias = Annotated[str | None, QueryParameter(description="`next_cursor` of the page before")]
Limit: TypeAlias = Annotated[int, QueryParameter(ge=1, le=200, description="at most so many, 1 to 200")]
Since: TypeAlias = Annotated[datetime | None, QueryParameter(description="created at this moment or later")]
Until: TypeAlias = Annotated[datetime | None, QueryParameter(description="created before this moment")]

LastEventId: TypeAlias = Annotated[int, HeaderParameter(name="Last-Event-ID", ge=0, le=2**31 - 1)]


def in_utc(moment: datetime | None) -> datetime | None:
    """A moment without a zone is taken as UTC, not as the database's own."""
    return moment.replace(tzinfo=UTC) if moment and moment.tzinfo is None else moment

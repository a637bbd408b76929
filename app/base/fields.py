r"""What requests and responses are made of: types that validate values, and the fields of a struct out of a row.
None of it needs the web framework, which runners do not load.

PostgreSQL text cannot contain NUL, so none is accepted. Patterns end with `(?!\n)$`: a bare `$` also matches
before a final newline in Python, though not in JavaScript.
"""

from typing import Annotated, TypeAlias

import msgspec

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

MOST = 2**31 - 1
"""The largest integer of a column."""


def columns(row: object, view: type[msgspec.Struct], *others: str) -> dict[str, Json]:
    """The fields of `view`, except `others`, by name, of a row or another struct.

    Each has the name of its column. A field that is called otherwise in REST is renamed by
    `msgspec.field(name=...)`, so that it is still found here.
    """
    return {name: getattr(row, name) for name in view.__struct_fields__ if name not in others}

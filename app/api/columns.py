"""The fields of a response that are columns of a row."""

import msgspec

from app.db.tables import Base
from app.records import Json


def columns(row: Base, view: type[msgspec.Struct], *others: str) -> dict[str, Json]:
    """The fields of `view`, except `others`, by name.

    Each has the name of its column. A field that is called otherwise in REST is renamed by
    `msgspec.field(name=...)`, so that it is still found here.
    """
    return {name: getattr(row, name) for name in view.__struct_fields__ if name not in others}

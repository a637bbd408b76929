"""`IN` for any number of keys."""

from collections.abc import Iterable
from typing import TypeVar

from sqlalchemy import ARRAY, ColumnElement, any_, bindparam
from sqlalchemy.orm import InstrumentedAttribute

K = TypeVar("K")


def in_array(
    column: InstrumentedAttribute[K] | InstrumentedAttribute[K | None], keys: Iterable[K]
) -> ColumnElement[bool]:
    """`column IN keys` with one array parameter: a query takes no more than 65,535 parameters."""
    return column == any_(bindparam(None, list(keys), ARRAY(column.type)))

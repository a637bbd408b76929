"""The kinds of tasks in SQL: those whose values may be compared with each other."""

from typing import Any

from sqlalchemy import ColumnElement, func
from sqlalchemy.sql.base import ReadOnlyColumnCollection

UNLABELLED = "instruction "
"""What the kind of a task without a scenario begins with, before the hash of its instruction."""


def kind(columns: ReadOnlyColumnCollection[str, ColumnElement[Any]]) -> ColumnElement[str]:
    """As `holdout.kind_of`, with a hash for the instruction of a task without a scenario."""
    words = func.btrim(func.regexp_replace(func.lower(columns.instruction), r"\s+", " ", "g"))
    return func.coalesce(columns.scenario, func.concat(UNLABELLED, func.md5(words)))

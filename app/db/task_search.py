"""The search for words in the instructions of tasks."""

from collections.abc import Sequence
from uuid import UUID

from sqlalchemy import ColumnElement, Subquery, func, insert, literal_column, select
from sqlalchemy.dialects.postgresql import REGCONFIG
from sqlalchemy.ext.asyncio import AsyncSession

from app.db import tables
from app.db.queries import in_array

_WORDS: ColumnElement[str] = literal_column("'simple'", REGCONFIG)  # as they are written, in any language


async def add(session: AsyncSession, task_ids: Sequence[UUID]) -> None:
    """Make new tasks findable."""
    task = tables.Task
    new = select(task.id, task.project_id, task.created_at, func.to_tsvector(_WORDS, task.instruction))
    names = ["task_id", "project_id", "created_at", "words"]
    await session.execute(insert(tables.TaskWords).from_select(names, new.where(in_array(task.id, task_ids))))


def newest(words: str, project_id: UUID | None) -> Subquery:
    """Id and time of the tasks that have all the words; "in quotes" in this order, -without, this or that.

    In the order of a listing, so that only the tasks of its page are read.
    """
    row = tables.TaskWords
    query = select(row.task_id, row.created_at).where(
        row.words.bool_op("@@")(func.websearch_to_tsquery(_WORDS, words))
    )
    if project_id is not None:
        query = query.where(row.project_id == project_id)
    return query.order_by(row.created_at.desc(), row.task_id.desc()).subquery("found")

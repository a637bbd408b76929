"""Evaluations in the database."""

from collections.abc import Sequence
from uuid import UUID

import msgspec
from sqlalchemy import ColumnElement, delete, select
from sqlalchemy.ext.asyncio import AsyncSession

from app.base.values import Json
from app.db import tables


class NewEvaluation(msgspec.Struct, frozen=True, kw_only=True):
    """An evaluation's results, with the `settings` that repeat it."""

    model: str
    environment: str
    settings: dict[str, Json]
    figures: dict[str, Json]
    run_id: UUID | None = None
    release_id: UUID | None = None


async def add(session: AsyncSession, project_id: UUID, new: NewEvaluation) -> tables.Evaluation:
    row = tables.Evaluation(project_id=project_id, **msgspec.structs.asdict(new))
    session.add(row)
    await session.flush()
    return row


async def of_run(session: AsyncSession, run_id: UUID) -> Sequence[tables.Evaluation]:
    """Oldest first."""
    return await _where(session, tables.Evaluation.run_id == run_id)


async def delete_of_run(session: AsyncSession, run_id: UUID) -> None:
    await session.execute(delete(tables.Evaluation).where(tables.Evaluation.run_id == run_id))


async def of_release(session: AsyncSession, release_id: UUID) -> Sequence[tables.Evaluation]:
    """Oldest first."""
    return await _where(session, tables.Evaluation.release_id == release_id)


async def exams_of_release(session: AsyncSession, release_id: UUID) -> set[str]:
    """The names of the exams it was examined on."""
    name = tables.Evaluation.settings["exam", "name"].as_string()
    query = select(name).where(tables.Evaluation.release_id == release_id, name.is_not(None)).distinct()
    return set((await session.scalars(query)).all())


async def of_exam(
    session: AsyncSession, project_id: UUID, name: str
) -> Sequence[tuple[tables.Evaluation, int | None]]:
    """Those on any version of the exam, oldest first, each with the number of its release."""
    evaluation, release = tables.Evaluation, tables.Release
    query = (
        select(evaluation, release.number)
        .outerjoin(release, release.id == evaluation.release_id)
        .where(evaluation.project_id == project_id, evaluation.settings.contains({"exam": {"name": name}}))
        .order_by(evaluation.created_at)
    )
    return [(row[0], row[1]) for row in await session.execute(query)]


async def _where(session: AsyncSession, which: ColumnElement[bool]) -> Sequence[tables.Evaluation]:
    query = select(tables.Evaluation).where(which).order_by(tables.Evaluation.created_at)
    return (await session.scalars(query)).all()

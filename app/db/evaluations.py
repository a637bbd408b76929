"""Evaluations in the database."""

from collections.abc import Sequence
from uuid import UUID

import msgspec
from sqlalchemy import ColumnElement, delete, select
from sqlalchemy.ext.asyncio import AsyncSession

from app.db import models
from app.records import Json


class NewEvaluation(msgspec.Struct, frozen=True, kw_only=True):
    """An evaluation's results, with the `settings` that repeat it."""

    model: str
    environment: str
    settings: dict[str, Json]
    figures: dict[str, Json]
    run_id: UUID | None = None
    release_id: UUID | None = None


async def add(session: AsyncSession, project_id: UUID, new: NewEvaluation) -> models.Evaluation:
    row = models.Evaluation(project_id=project_id, **msgspec.structs.asdict(new))
    session.add(row)
    await session.flush()
    return row


async def of_run(session: AsyncSession, run_id: UUID) -> Sequence[models.Evaluation]:
    """Oldest first."""
    return await _where(session, models.Evaluation.run_id == run_id)


async def delete_of_run(session: AsyncSession, run_id: UUID) -> None:
    await session.execute(delete(models.Evaluation).where(models.Evaluation.run_id == run_id))


async def of_release(session: AsyncSession, release_id: UUID) -> Sequence[models.Evaluation]:
    """Oldest first."""
    return await _where(session, models.Evaluation.release_id == release_id)


async def exams_of_release(session: AsyncSession, release_id: UUID) -> set[str]:
    """The names of the exams it was examined on."""
    name = models.Evaluation.settings["exam", "name"].as_string()
    query = select(name).where(models.Evaluation.release_id == release_id, name.is_not(None)).distinct()
    return set((await session.scalars(query)).all())


async def of_exam(
    session: AsyncSession, project_id: UUID, name: str
) -> Sequence[tuple[models.Evaluation, int | None]]:
    """Those on any version of the exam, oldest first, each with the number of its release."""
    evaluation, release = models.Evaluation, models.Release
    query = (
        select(evaluation, release.number)
        .outerjoin(release, release.id == evaluation.release_id)
        .where(evaluation.project_id == project_id, evaluation.settings.contains({"exam": {"name": name}}))
        .order_by(evaluation.created_at)
    )
    return [(row[0], row[1]) for row in await session.execute(query)]


async def _where(session: AsyncSession, which: ColumnElement[bool]) -> Sequence[models.Evaluation]:
    query = select(models.Evaluation).where(which).order_by(models.Evaluation.created_at)
    return (await session.scalars(query)).all()

"""Releases in the database. Which one serves is decided here, and only here."""

from collections.abc import Sequence
from uuid import UUID

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncSession

from app.db import models
from app.db.models import RELEASE_MOVES, ReleaseState
from app.errors import ConflictError, NotFoundError
from app.records import Json

CHANNEL = "sage_releases"  # NOTIFY: releases of a project changed; the id of the one that did is the payload


async def active(session: AsyncSession, project_id: UUID) -> models.Release:
    """The one that new tasks are pinned to."""
    release = await find_active(session, project_id)
    if release is None:
        raise NotFoundError(f"project {project_id} has no active release: activate one")
    return release


async def get(session: AsyncSession, release_id: UUID) -> models.Release:
    release = await session.get(models.Release, release_id)
    if release is None:
        raise NotFoundError(f"no release has the id {release_id}")
    return release


async def of_project(session: AsyncSession, project_id: UUID) -> Sequence[models.Release]:
    """Newest first."""
    query = (
        select(models.Release)
        .where(models.Release.project_id == project_id)
        .order_by(models.Release.number.desc())
    )
    return (await session.scalars(query)).all()


async def propose(
    session: AsyncSession, project_id: UUID, model: str, training_run_id: UUID | None = None
) -> models.Release:
    """A candidate with the next number. A run that began again gets the one it proposed before."""
    await _lock(session, project_id)
    release = models.Release
    if training_run_id is not None:
        before = await session.scalar(
            select(release).where(release.training_run_id == training_run_id, release.model == model)
        )
        if before is not None:
            return before
    last = await session.scalar(select(func.max(release.number)).where(release.project_id == project_id))
    row = release(project_id=project_id, number=(last or 0) + 1, model=model, training_run_id=training_run_id)
    session.add(row)
    await session.flush()
    return await _told(session, row)


async def note(session: AsyncSession, release_id: UUID, evidence: dict[str, Json]) -> models.Release:
    """What the gate found, whatever comes of it."""
    release = await locked(session, release_id)
    release.evidence = evidence
    await session.flush()
    return await _told(session, release)


async def approve(
    session: AsyncSession, release_id: UUID, evidence: dict[str, Json], canary_percent: float | None = None
) -> models.Release:
    """The gate is for it. It serves, at once or a share of the new tasks first, when the model servers have proven
    that they have its weights. Raises NotFoundError, and ConflictError for one that is no candidate any more.
    """
    release = await locked(session, release_id)
    release.evidence, release.canary_percent = evidence, canary_percent or None
    return await move(session, release, ReleaseState.PASSED)


async def put_back(session: AsyncSession, release_id: UUID, evidence: dict[str, Json]) -> models.Release:
    """A candidate again: what it was compared with serves no more, so a person decides. Raises as `approve`."""
    release = await locked(session, release_id)
    release.evidence = evidence
    return await move(session, release, ReleaseState.CANDIDATE)


async def in_state(session: AsyncSession, state: ReleaseState) -> Sequence[models.Release]:
    """Of all projects, the oldest first."""
    query = select(models.Release).where(models.Release.state == state)
    return (await session.scalars(query.order_by(models.Release.created_at))).all()


async def activate(session: AsyncSession, release_id: UUID, *, allow_rejected: bool = False) -> models.Release:
    """From now on new tasks are pinned to it; the one that was active retires. Again is no mistake.

    Raises NotFoundError, and ConflictError for one that the gate rejected: a person may insist, `allow_rejected`.
    """
    release = await locked(session, release_id)
    if release.state == ReleaseState.ACTIVE:
        return release
    check_may_serve(release, allow_rejected=allow_rejected)
    former = await find_active(session, release.project_id)
    if former is not None:
        await move(session, former, ReleaseState.RETIRED)
    release.activated_at, release.canary_percent = func.clock_timestamp(), None
    return await move(session, release, ReleaseState.ACTIVE)


def check_may_serve(release: models.Release, *, allow_rejected: bool) -> None:
    """Raises ConflictError for one that was rejected, unless someone insists."""
    if release.state == ReleaseState.REJECTED and not allow_rejected:
        raise ConflictError(
            f"release {release.number} was rejected (its evidence says why): "
            "to serve it anyway, activate it with allow_rejected=true (sage releases --allow-rejected)"
        )


async def reject(session: AsyncSession, release_id: UUID, evidence: dict[str, Json]) -> models.Release:
    """One that does not pass, or that the model servers refuse. Raises NotFoundError, and ConflictError for one
    that serves or has served.
    """
    release = await locked(session, release_id)
    release.evidence = evidence
    return await move(session, release, ReleaseState.REJECTED)


async def find_active(session: AsyncSession, project_id: UUID) -> models.Release | None:
    return await session.scalar(
        select(models.Release).where(
            models.Release.project_id == project_id, models.Release.state == ReleaseState.ACTIVE
        )
    )


async def locked(session: AsyncSession, release_id: UUID) -> models.Release:
    """As it stands once no other change of a release of its project is under way."""
    await _lock(session, (await get(session, release_id)).project_id)
    return await session.get_one(models.Release, release_id, populate_existing=True)


async def _lock(session: AsyncSession, project_id: UUID) -> None:
    """One change of a project's releases at a time. Rows that refer to the project may still be added."""
    project = models.Project
    held = select(project.id).where(project.id == project_id).with_for_update(key_share=True)
    if await session.scalar(held) is None:
        raise NotFoundError(f"no project has the id {project_id}")


async def move(session: AsyncSession, release: models.Release, state: ReleaseState) -> models.Release:
    """Of a release that is `locked`. Raises ConflictError where its state allows no such move."""
    if state not in RELEASE_MOVES[release.state]:
        raise ConflictError(f"release {release.number} is {release.state}: it cannot be {state}")
    release.state = state
    await session.flush()
    return await _told(session, release)


async def _told(session: AsyncSession, release: models.Release) -> models.Release:
    """As the database has it, after those who serve the project are told."""
    await session.execute(select(func.pg_notify(CHANNEL, str(release.id))))
    await session.refresh(release)
    return release

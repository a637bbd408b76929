"""The hosted models of projects, in the database. Their keys are encrypted, and only read to be sent."""

from collections.abc import Collection, Sequence
from typing import Any
from uuid import UUID

from sqlalchemy import func, select, union_all, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from app.base.errors import ConflictError, NotFoundError
from app.base.values import Json, hosted, hosted_id
from app.db import releases, tables
from app.db.database import keys_of
from app.db.queries import in_array
from app.db.tables import ReleaseState

_row = tables.HostedModel
_SHOWN = 3  # tasks that an error names


async def add(
    session: AsyncSession, project_id: UUID, name: str, key: str | None, **columns: Any
) -> tables.HostedModel:
    """Raises ConflictError if the name is taken."""
    given = {"project_id": project_id, "name": name, "key": _sealed(session, key), **columns}
    row: tables.HostedModel | None = await session.scalar(
        insert(_row).values(**given).on_conflict_do_nothing().returning(_row)
    )
    if row is None:
        raise ConflictError(f"this project has a model named {name!r} already: change it, or choose another name")
    return row


async def of_project(session: AsyncSession, project_id: UUID) -> Sequence[tables.HostedModel]:
    """Ordered by name."""
    return (await session.scalars(select(_row).where(_row.project_id == project_id).order_by(_row.name))).all()


async def get(session: AsyncSession, project_id: UUID, name: str, *, lock: bool = False) -> tables.HostedModel:
    """Raises NotFoundError. With `lock`, no release of the project changes meanwhile, and none is proposed."""
    query = select(_row).where(_row.project_id == project_id, _row.name == name)
    if lock:
        await releases.lock(session, project_id)  # always before the row, so that none waits for one that waits
        query = query.with_for_update()
    row = await session.scalar(query.execution_options(populate_existing=True))
    if row is None:
        raise NotFoundError(f"this project has no hosted model named {name!r}; GET /v1/hosted-models lists them")
    return row


async def by_id(session: AsyncSession, model_id: UUID) -> tables.HostedModel:
    """Raises NotFoundError."""
    row = await session.get(_row, model_id, populate_existing=True)
    if row is None:
        raise NotFoundError("the hosted model was removed: let another release serve")
    return row


async def names(session: AsyncSession, ids: Collection[UUID]) -> dict[UUID, str]:
    """By id, of those that there are."""
    found = await session.execute(select(_row.id, _row.name).where(in_array(_row.id, ids)))
    return {row.id: row.name for row in found}


async def change(session: AsyncSession, row: tables.HostedModel, **columns: Any) -> None:
    """Of a locked row; `key` is plain. Raises ConflictError for another model where a release was made with this
    one: what serves never changes.
    """
    if columns.get("model", row.model) != row.model and (used := await _releases(session, row.id, *ReleaseState)):
        raise ConflictError(
            f"release {used[0]} was made with {row.model}: add the other model under a name of its own"
        )
    if "key" in columns:
        columns["key"] = _sealed(session, columns["key"])
    for name, value in columns.items():
        setattr(row, name, value)
    await session.flush()


async def delete(session: AsyncSession, project_id: UUID, name: str) -> tables.HostedModel:
    """Its name stays with its releases. Raises NotFoundError, and ConflictError while a release serves with it, or
    tasks are to be done with it: what they cost is counted by its prices.
    """
    row = await get(session, project_id, name, lock=True)
    if used := await _releases(session, row.id, *releases.SERVING):
        raise ConflictError(f"release {used[0]} serves with the model {name}: activate another release first")
    if left := await _unfinished(session, row.id):
        which = ", ".join(map(str, left[:_SHOWN])) + (f" and {len(left) - _SHOWN} more" if left[_SHOWN:] else "")
        raise ConflictError(
            f"tasks still run on the model {name}, or wait for it: let these end, or cancel them: {which}"
        )
    release = tables.Release
    await session.execute(update(release).where(release.model == hosted(row.id)).values(removed_model=name))
    await session.delete(row)
    await session.flush()
    return row


async def note(
    session: AsyncSession, row: tables.HostedModel, abilities: dict[str, Json], failure: str | None
) -> None:
    """What the latest request to the model, as `row` has it, taught, and why it failed; None: it did not. Nothing
    if it was put elsewhere meanwhile.
    """
    same = (_row.id == row.id, _row.url == row.url, _row.model == row.model)
    await session.execute(update(_row).where(*same).values(abilities=abilities, failure=failure))


async def failing(session: AsyncSession) -> Sequence[UUID]:
    """The projects that a hosted model serves whose latest request failed."""
    return tuple({row.project_id for row in await serving(session) if row.failure is not None})


async def serving(session: AsyncSession) -> Sequence[tables.HostedModel]:
    """Those of active releases and canaries, of all projects."""
    release = tables.Release
    serve = [  # a query for each state, as there is an index for each
        select(release.model).where(release.state == state, ~releases.is_local(release.model))
        for state in (ReleaseState.ACTIVE, ReleaseState.CANARY)
    ]
    named = await session.scalars(union_all(*serve))
    which = in_array(_row.id, [each for each in map(hosted_id, named) if each is not None])
    return (await session.scalars(select(_row).where(which).order_by(_row.created_at))).all()


async def others(session: AsyncSession, url: str, model: str) -> Sequence[tuple[str, tables.Release]]:
    """The active releases with another model than this one at a URL, each after the name of its project."""
    same = await session.scalars(select(_row.id).where(_row.url == url, _row.model == model))
    theirs = {hosted(each) for each in same}
    served = await releases.serving(session)
    return [each for each in served if each[1].state is ReleaseState.ACTIVE and each[1].model not in theirs]


async def known(session: AsyncSession, url: str, model: str) -> dict[str, Any] | None:
    """The abilities of a model at a URL, by the latest probe for any project."""
    same = select(_row.abilities).where(_row.url == url, _row.model == model, _row.abilities.is_not(None))
    found: dict[str, Any] | None = await session.scalar(same.order_by(_row.probed_at.desc()).limit(1))
    return found


async def renew(session: AsyncSession, url: str, model: str, abilities: dict[str, Json]) -> None:
    """Note a good probe of the model that the settings name, in all projects that have it."""
    named = (_row.url == url, _row.model == model, _row.trusted, _row.key.is_(None))
    await session.execute(update(_row).where(*named).values(probed(abilities)))


def probed(abilities: dict[str, Json]) -> dict[str, Any]:
    """The columns that a good probe changes."""
    return {"abilities": abilities, "probed_at": func.clock_timestamp(), "failure": None}


def about(row: tables.HostedModel) -> dict[str, Json]:
    """For the audit log."""
    shown: dict[str, Json] = {
        name: getattr(row, name) for name in ("name", "url", "model", "price_in", "price_out")
    }
    return {**shown, "key": row.key is not None}


def _sealed(session: AsyncSession, key: str | None) -> str | None:
    return keys_of(session).encrypt(key) if key else None


async def propose(session: AsyncSession, project_id: UUID, name: str) -> tables.Release:
    """Add a candidate release whose policy is the project's hosted model of this name. Raises NotFoundError."""
    row = await get(session, project_id, name, lock=True)
    return await releases.propose(session, project_id, hosted(row.id))


async def _releases(session: AsyncSession, model_id: UUID, *states: ReleaseState) -> Sequence[int]:
    """The numbers of those with it, newest first."""
    release = tables.Release
    query = select(release.number).where(release.model == hosted(model_id), release.state.in_(states))
    return (await session.scalars(query.order_by(release.number.desc()))).all()


async def _unfinished(session: AsyncSession, model_id: UUID) -> Sequence[UUID]:
    """The tasks that wait for it, or run on it, once whoever is pinning one to its releases has done so."""
    release, task = tables.Release, tables.Task
    of_it = select(release.id).where(release.model == hosted(model_id))
    ids = (await session.scalars(of_it.order_by(release.id).with_for_update())).all()
    unfinished = select(task.id).where(in_array(task.release_id, ids), task.finished_at.is_(None))
    return (await session.scalars(unfinished.order_by(task.created_at))).all()

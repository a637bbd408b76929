"""Routes for datasets: conversations that runs of kind `sft` learn from."""

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any
from uuid import UUID, uuid4

import msgspec
import structlog
from litestar import Controller, Request, delete, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath, QueryParameter
from sqlalchemy.ext.asyncio import AsyncSession

from app.base.errors import ConflictError, StorageError
from app.base.values import Json
from app.datasets.data_location import DataRules, check_location, dataset_id_of
from app.datasets.dataset_store import DatasetStore
from app.datasets.incoming import IncomingDataset, incoming
from app.db import datasets as dataset_table
from app.db import tables
from app.db.database import Sessions
from app.projects import audit
from app.projects import store as projects
from app.projects.authorization import find_project, project_filter, project_names
from app.projects.settings import Limits
from app.run_settings import RunSettings
from app.web.access import Access, Caller, Db
from app.web.fields import Cursor, Limit, ProjectName, columns
from app.web.problem import problems

log = structlog.get_logger(__name__)

DatasetName = Annotated[str, QueryParameter(max_length=200, pattern=r"^[^\x00]*$", description="for people")]


class DatasetView(msgspec.Struct, frozen=True, kw_only=True):
    """`digest` is the sha256 of the content, in hex."""

    id: UUID
    project: str
    name: str
    digest: str
    bytes: int
    conversations: int
    created_at: datetime

    @classmethod
    def of(cls, row: tables.Dataset, project: str) -> "DatasetView":
        return DatasetView(project=project, **columns(row, DatasetView, "project"))


class DatasetPage(msgspec.Struct, frozen=True):
    """Newest first. `next_cursor` is null on the last page."""

    datasets: list[DatasetView]
    next_cursor: str | None


class DatasetController(Controller):
    path = "/datasets"
    tags = ("Training",)
    opt = {"scope": "admin"}  # noqa: RUF012

    @post(summary="Upload a dataset", request_max_body_size=None, responses=problems(400, 401, 403, 404, 409, 507))
    async def upload(  # noqa: PLR0913 - dependencies
        self,
        request: Request[Any, Any, Any],
        access: Caller,
        sessions: NamedDependency[Sessions],
        datasets: NamedDependency[DatasetStore],
        data_rules: NamedDependency[DataRules],
        limits: NamedDependency[Limits],
        project: ProjectName = None,
        name: DatasetName = "",
    ) -> DatasetView:
        """The body is a file of conversations: one JSON object with `messages` per line. It is validated as it
        arrives, and never changes. The same content again is the same dataset.
        """
        async with sessions() as session:  # none is held during the upload
            owner = await find_project(session, access, project)
        with datasets.uploading(owner.id):
            async with incoming(datasets.local, data_rules.max_bytes) as received:
                await received.receive(request.stream())
                row = await _store(sessions, access, datasets, owner, received, name, limits)
        return DatasetView.of(row, owner.name)

    @get(summary="List datasets", responses=problems(400, 401, 403, 404))
    async def index(
        self, session: Db, access: Caller, project: ProjectName = None, cursor: Cursor = None, limit: Limit = 50
    ) -> DatasetPage:
        """Newest first."""
        only = await project_filter(session, access, project)
        page = await dataset_table.page(session, only, cursor=cursor, limit=limit)
        names = await project_names(session)
        return DatasetPage([DatasetView.of(row, names[row.project_id]) for row in page.items], page.cursor)

    @get("/{dataset_id:uuid}", summary="Show a dataset", responses=problems(400, 401, 403, 404))
    async def show(self, dataset_id: FromPath[UUID], session: Db, access: Caller) -> DatasetView:
        row = await dataset_table.get(session, dataset_id, access.project_id)
        return DatasetView.of(row, (await projects.by_id(session, row.project_id)).name)

    @delete("/{dataset_id:uuid}", summary="Delete a dataset", responses=problems(400, 401, 403, 404, 507))
    async def remove(
        self, dataset_id: FromPath[UUID], session: Db, access: Caller, datasets: NamedDependency[DatasetStore]
    ) -> None:
        """A queued run that names it will fail; one that has started has a copy."""
        row = await dataset_table.get(session, dataset_id, access.project_id)
        await dataset_table.delete(session, row.id)
        await _audit(session, access, row, tables.AuditAction.DATASET_DELETED)
        await session.commit()
        await datasets.delete(dataset_id)


async def _audit(session: AsyncSession, access: Access, row: tables.Dataset, action: tables.AuditAction) -> None:
    detail: dict[str, Json] = {"dataset": str(row.id), "name": row.name, "digest": row.digest}
    await audit.add(session, row.project_id, None, access.actor, action, detail)


async def check_data(
    session: AsyncSession, access: Access, project: tables.Project, settings: RunSettings, rules: DataRules
) -> None:
    """Raises InvalidError for data that a run of this key may not read, NotFoundError for an unknown dataset."""
    if not settings.data:
        return
    if dataset_id := dataset_id_of(settings.data):
        await dataset_table.get(session, dataset_id, project.id)
    else:
        check_location(settings.data, rules.prefixes, directories=access.project_id is None)


async def delete_files(datasets: DatasetStore, ids: Sequence[UUID]) -> None:
    """Of a project that is deleted. A file that cannot be deleted is logged and stays."""
    for dataset_id in ids:
        try:
            await datasets.delete(dataset_id)
        except StorageError as error:
            log.warning("the file of a deleted dataset stays", dataset=str(dataset_id), cause=str(error))


async def _store(
    sessions: Sessions,
    access: Access,
    datasets: DatasetStore,
    project: tables.Project,
    received: IncomingDataset,
    name: str,
    limits: Limits,
) -> tables.Dataset:
    """The file first, then its row: every row has a file."""
    new = tables.Dataset(
        id=uuid4(),
        project_id=project.id,
        name=name,
        digest=received.digest,
        bytes=received.bytes,
        conversations=received.conversations,
    )
    await datasets.put(new.id, received.path)
    stored = None
    try:
        async with sessions.begin() as session:
            used = await dataset_table.stored_bytes(session, project.id)
            row = await dataset_table.add(session, new)
            most = projects.settings_of(project).limits.over(limits).dataset_bytes
            if row.id == new.id and most is not None and used + new.bytes > most:
                raise ConflictError(
                    f"the datasets of {project.name} would have more than {most:,} bytes: delete some, or ask an "
                    "administrator to raise limits.dataset_bytes of the project, or SAGE_LIMIT_DATASET_BYTES"
                )
            if row.id == new.id:
                await _audit(session, access, row, tables.AuditAction.DATASET_STORED)
        stored = row.id
        return row
    finally:
        if stored != new.id:
            await datasets.delete(new.id)

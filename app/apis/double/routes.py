"""What can be practised on an API, and how the real one differs from its document."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

import msgspec
from litestar import Controller, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath
from sqlalchemy.ext.asyncio import AsyncSession

from app.apis import store as apis
from app.apis.documents.reader import DocumentReader
from app.apis.documents.stored import ApiReaders, read_request
from app.apis.double.coverage import Coverage
from app.apis.store import Comparison
from app.base.fields import columns
from app.db import tables
from app.db.tables import PracticeSource
from app.projects import store as projects
from app.projects.authorization import find_project
from app.releases import tools
from app.runs.practice import RealApi, read_real_api
from app.web.access import Caller, Db
from app.web.fields import ProjectName
from app.web.problem import CHANGE, READ

_SECONDS: Final = 25.0  # of calls; whoever waits for the answer also waits for the document to be read
_CALL_SECONDS: Final = 10.0


class PracticeView(Coverage, frozen=True, kw_only=True):
    """What can be practised on an API: a double of it answers the operations, on records of its own.

    `differences` say how what the real API answered, when it was last compared with its document as it is now,
    differs from that. They are also those of a run that has read it.
    """

    practice: PracticeSource
    compared_at: datetime | None = None
    calls: int = 0  #: to the real API, for the comparison
    differences: Sequence[str] = ()
    skipped: Sequence[str] = ()  #: what was not read, and why


class ApiPracticeController(Controller):
    path = "/apis/{name:str}/practice"
    tags = ("APIs",)
    opt = {"scope": "tasks"}  # noqa: RUF012

    @get(summary="Show what can be practised on an API", responses=READ)
    async def show_practice(
        self,
        name: FromPath[str],
        session: Db,
        access: Caller,
        document_reader: NamedDependency[DocumentReader],
        project: ProjectName = None,
    ) -> PracticeView:
        """By its document. A large one is read for some seconds the first time."""
        owner = await find_project(session, access, project)
        return await practice_of(session, document_reader, await apis.get(session, owner.id, name, document=False))

    @post(opt={"scope": "admin"}, status_code=200, summary="Compare an API with its document", responses=CHANGE)
    async def compare(
        self,
        name: FromPath[str],
        session: Db,
        access: Caller,
        readers: NamedDependency[ApiReaders],
        project: ProjectName = None,
    ) -> PracticeView:
        """Calls operations that only read, with the stored credentials: 100 calls at most, none after 25
        seconds of calls. One comparison of an API at a time.
        """
        owner = await find_project(session, access, project)
        return await compare_api(session, owner, name, readers)


async def practice_of(session: AsyncSession, reader: DocumentReader, row: tables.Api) -> PracticeView:
    """Ends the transaction."""
    content = await apis.document(session, row.id, row.digest)
    await session.commit()  # no transaction is held while a document is read
    coverage = msgspec.structs.asdict(await reader.coverage(read_request(row, row.bind), content, row.digest))
    if (found := apis.comparison_of(row)) is None:
        return PracticeView(practice=row.practice, **coverage)
    compared = columns(found, Comparison, "at", "digest")
    return PracticeView(practice=row.practice, compared_at=found.at, **coverage, **compared)


async def compare_api(
    session: AsyncSession, owner: tables.Project, name: str, readers: ApiReaders
) -> PracticeView:
    """Raises NotFoundError, ApiDocumentError for a document that has no double, and ConflictError while another
    comparison of the API is under way.
    """
    row = await apis.get(session, owner.id, name, document=False)
    reader = readers.document_reader
    real = RealApi(
        sessions=readers.sessions,
        client=readers.http_client,
        reader=reader,
        project_id=owner.id,
        document=await tools.api_document(session, row),
        rules=projects.settings_of(owner).approvals,
        seconds=_SECONDS,
        call_seconds=_CALL_SECONDS,
    )
    await session.commit()  # no transaction is held during the calls
    await read_real_api(real)
    return await practice_of(session, reader, await apis.get(session, owner.id, name, document=False))

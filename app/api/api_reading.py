"""The app of a stored API document."""

from collections.abc import Mapping

from sqlalchemy.ext.asyncio import AsyncSession

from app.apis.app_view import AppView
from app.apis.document_reader import DocumentReader
from app.apis.read_process import ReadRequest
from app.base.values import Json
from app.db import manifests, tables
from app.release.tool_documents import presentation_of


async def read_api(
    reader: DocumentReader, session: AsyncSession, row: tables.Api, bind: Mapping[str, Json]
) -> AppView:
    """Ends the transaction. Raises InvalidError for new bindings that do not fit."""
    content = await manifests.document(session, row.id, row.digest)
    await session.commit()  # no transaction is held while a document is read
    return await reader.view(read_request(row, bind), content, row.digest)


def read_request(row: tables.Api, bind: Mapping[str, Json]) -> ReadRequest:
    """How the API's document is read. New bindings are checked."""
    source = None if row.source == "upload" else row.source
    return ReadRequest(
        name=row.name,
        source=source,
        server=row.server,
        presentation=presentation_of(row),
        bind=dict(bind),
        check=bind != row.bind,
    )

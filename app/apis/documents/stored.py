"""Reads the documents of the APIs that a project has."""

from collections.abc import Mapping
from typing import NamedTuple

import httpx
from sqlalchemy.ext.asyncio import AsyncSession

from app.apis import store as apis
from app.apis.documents.read_process import ReadRequest
from app.apis.documents.reader import DocumentReader
from app.apis.mcp.connection import McpCommand
from app.apis.presentation import AppView
from app.base.errors import ApiDocumentError
from app.base.values import Json
from app.db import tables
from app.db.database import Sessions


class ApiReaders(NamedTuple):
    """What APIs are fetched, read and tried with."""

    sessions: Sessions
    http_client: httpx.AsyncClient
    document_reader: DocumentReader
    mcp_commands: Mapping[str, McpCommand]


async def read_api(
    reader: DocumentReader, session: AsyncSession, row: tables.Api, bind: Mapping[str, Json]
) -> AppView:
    """Ends the transaction. Raises InvalidError for new bindings that do not fit."""
    content = await apis.document(session, row.id, row.digest)
    await session.commit()  # no transaction is held while a document is read
    return await reader.view(read_request(row, bind), content, row.digest)


async def read_former(reader: DocumentReader, session: AsyncSession, row: tables.Api) -> AppView | None:
    """The API that is replaced; None if an earlier version of this server stored it, and it cannot be read any
    more. Ends the transaction.
    """
    try:
        return await read_api(reader, session, row, row.bind)
    except ApiDocumentError:
        await session.commit()
        return None


def read_request(row: tables.Api, bind: Mapping[str, Json]) -> ReadRequest:
    """How the API's document is read. New bindings are checked."""
    return ReadRequest(
        name=row.name,
        source=apis.url_of(row.source),
        server=row.server,
        presentation=apis.presentation_of(row),
        bind=dict(bind),
        check=bind != row.bind,
    )

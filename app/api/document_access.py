"""What the document of an API that is added is fetched with, if its server shows it to nobody else."""

from collections.abc import Collection
from uuid import UUID

import httpx
from msgspec import UNSET
from sqlalchemy.ext.asyncio import AsyncSession

from app.api.api_reading import read_api
from app.api.api_request import ApiRequest
from app.apis.address import origin
from app.apis.app_view import AppView
from app.apis.catalog import App
from app.apis.credentials import Credentials
from app.apis.document_reader import DocumentReader
from app.base.errors import ApiDocumentError
from app.credentials.document_fetch import DocumentFetch, check_origin, given, is_trusted, of_api, of_registration
from app.db import api_credentials, apis, tables
from app.db.database import Sessions
from app.release import tool_documents


def fetch_for(
    data: ApiRequest, project_id: UUID, sessions: Sessions, client: httpx.AsyncClient, reader: DocumentReader
) -> DocumentFetch:
    """With the credentials of the request, or else with those that are stored for the API that it replaces."""
    source = data.url or ""

    async def find() -> tuple[Credentials, App]:
        async with sessions() as session:
            row = await apis.find(session, project_id, data.name)
            view = None if row is None else await _former(session, row, reader)
            former = () if row is None else row.token_origins
            origins = former if data.token_origins is UNSET else data.token_origins
            sent = given(data.bearer_token or None, data.credentials, {} if view is None else view.schemes)
            if sent or row is None or view is None:
                check_origin(source, data.server, origins)
                return of_registration(sent, data.name)
            check_origin(source, view.default_url, origins)
            api = await tool_documents.api_document(session, row)
            rows = await api_credentials.of_api(session, row.id)
        return of_api(sessions, client, api, rows, view)

    return DocumentFetch(client, source, find)


def untrusted_remarks(source: str, server: str, token_origins: Collection[str]) -> list[str]:
    """What to do so that a document which needs credentials can be fetched again."""
    if is_trusted(source, server, token_origins):
        return []
    return [
        f"the document needs the credentials of the API, which are for {server}: without {origin(source)} among "
        "its `token_origins` it cannot be fetched again"
    ]


async def _former(session: AsyncSession, row: tables.Api, reader: DocumentReader) -> AppView | None:
    """Of the API that is replaced; None if its document was stored by an earlier version and cannot be read."""
    try:
        return await read_api(reader, session, row, row.bind)
    except ApiDocumentError:
        return None

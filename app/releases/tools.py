"""The API documents of a release, as tasks get them."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import Row
from sqlalchemy.ext.asyncio import AsyncSession

from app.apis import store as apis
from app.apis.catalog import App
from app.apis.credentials import store as credentials
from app.apis.presentation import AS_WRITTEN, Presentation
from app.apis.servers import CalledServers, server_of
from app.base.errors import SettingError
from app.base.values import Json
from app.db import manifests, releases, tables
from app.db.database import Handle
from app.db.manifests import Tool


class ApiDocument(msgspec.Struct, frozen=True, kw_only=True):
    """An API that a task may call: its document in the release, with the current server, token and bindings."""

    id: UUID  # of the API
    name: str
    source: str
    server: str | None
    token: str | SettingError | None  # or why it cannot be read
    has_credentials: bool = False  # for the security schemes of the document
    bind: dict[str, Json]
    secrets_for: str | None = None
    token_origins: tuple[str, ...] = ()
    digest: str  # of the document, see `manifests.document`
    presentation: Presentation = AS_WRITTEN


async def api_documents(session: AsyncSession, release: tables.Release) -> Sequence[ApiDocument]:
    """Ordered by name. APIs removed since are missing: their tokens are gone."""
    rows = await apis.of_project(session, release.project_id)
    tools = await tools_of(session, release)
    secured = await credentials.secured_apis(session, release.project_id)
    return [document_of(session, row, tools[row.name], row.id in secured) for row in rows if row.name in tools]


def presentation_of(row: tables.Api) -> Presentation:
    """How the API is presented now."""
    return msgspec.convert(row.presentation, Presentation)


async def api_document(session: AsyncSession, row: tables.Api) -> ApiDocument:
    """An API as it is now."""
    secured = await credentials.secured_apis(session, row.project_id)
    return document_of(session, row, Tool(row.digest, row.presentation), row.id in secured)


def trusting(app: App, api: ApiDocument) -> App:
    """The app, as far as the API's secrets may go: a document of an earlier release may name another server."""
    there = server_of(CalledServers.of(app), app.server)
    trusted = api.secrets_for in (None, there)
    return msgspec.structs.replace(app, trusted=trusted, token_origins=api.token_origins)


def document_of(handle: Handle, row: tables.Api | Row[Any], tool: Tool, has_credentials: bool) -> ApiDocument:
    """The document of a release, by the row of its API."""
    return ApiDocument(
        id=row.id,
        name=row.name,
        source=row.source,
        server=row.server,
        token=_token(handle, row),
        has_credentials=has_credentials,
        bind=row.bind,
        secrets_for=row.secrets_for,
        token_origins=tuple(row.token_origins),
        digest=tool.digest,
        presentation=msgspec.convert(tool.presentation, Presentation),
    )


async def tools_of(session: AsyncSession, release: tables.Release) -> dict[str, Tool]:
    """The API documents, by name. One that never served has those of the active release."""
    if release.tools is not None:
        return await manifests.tool_set(session, release.tools)
    present = await releases.active(session, release.project_id)
    if present.tools is not None:
        return await manifests.tool_set(session, present.tools)
    return await manifests.api_tools(session, release.project_id)


def _token(handle: Handle, row: tables.Api | Row[Any]) -> str | SettingError | None:
    try:
        return apis.token_of(handle, row)
    except SettingError as error:
        return error

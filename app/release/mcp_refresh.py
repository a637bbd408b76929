"""Asks MCP servers for their tools again once they have told that these changed."""

from collections.abc import Mapping
from typing import Self

import httpx
import msgspec
import structlog

from app.apis import store as apis
from app.apis.documents.read_process import ReadRequest
from app.apis.documents.reader import DocumentReader
from app.apis.mcp import listing
from app.apis.mcp.connection import Changed, McpCommand, McpServers, McpTarget
from app.apis.mcp.document import oauth_of
from app.apis.mcp.listing import connected_listing
from app.base.errors import InvalidError, NotFoundError, SettingError, first_line
from app.base.loop import Loop
from app.db import manifests, tables
from app.db.database import TRANSIENT, Sessions
from app.release import tool_documents
from app.release.api_refresh import apply_change

log = structlog.get_logger(__name__)

_SECONDS = 2.0


def mark_changed(sessions: Sessions) -> Changed:
    """For a runner's sessions with MCP servers: what they tell is noted for `McpRefresh`."""

    async def mark(target: McpTarget) -> None:
        assert target.project is not None
        try:
            async with sessions.begin() as session:
                await listing.mark(session, target.project, target.url)
        except TRANSIENT as error:
            log.warning("a change of an MCP server's tools is not noted", cause=first_line(error))

    return mark


class McpRefresh:
    """Stores changed tools while it is entered, as a new release of the project. Any number of processes may."""

    def __init__(
        self,
        sessions: Sessions,
        client: httpx.AsyncClient,
        commands: Mapping[str, McpCommand],
        reader: DocumentReader,
        *,
        pause: float = _SECONDS,
    ) -> None:
        self._sessions = sessions
        self._client = client
        self._servers = McpServers(client, commands)
        self._reader = reader
        self._loop = Loop("refresh the tools of MCP servers", self._refresh_next, pause, expected=TRANSIENT)

    async def __aenter__(self) -> Self:
        await self._loop.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._loop.stop()

    async def _refresh_next(self) -> float | None:
        async with self._sessions.begin() as session:
            row = await listing.claim_due(session)
        if row is None:
            return None
        try:
            await self._refresh(row)
        except (InvalidError, NotFoundError, SettingError) as error:
            left = listing.MAX_TRIES - row.refresh_tries
            log.warning(
                "the tools of an MCP server cannot be refreshed", api=row.name, tries_left=left, cause=str(error)
            )
            async with self._sessions.begin() as session:
                await apis.checked(session, row.id, str(error)[:2_000])
        return 0

    async def _refresh(self, row: tables.Api) -> None:
        async with self._sessions() as session:
            api = await tool_documents.api_document(session, row)
            old_content = await manifests.document(session, row.id, row.digest)
        shared = (self._sessions, self._servers, self._client)
        content = await connected_listing(*shared, api, row.source, oauth_of(old_content))
        request = ReadRequest(name=row.name, presentation=tool_documents.presentation_of(row), bind=row.bind)
        old = await self._reader.view(request, old_content, row.digest)
        named = msgspec.structs.replace(request, names=old.names)
        app, document = await self._reader.read(named, content, check=False)
        async with self._sessions.begin() as session:
            change = await apply_change(session, row, old, app, document)
            await listing.done(session, row.id, row.refresh_tries)
        if change is not None:
            log.info("the tools of an MCP server have changed", api=row.name, applied=change.applied)

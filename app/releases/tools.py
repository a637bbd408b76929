"""The API documents of a release as tasks get them, parsed and cached, and the secrets that their calls name."""

import asyncio
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import msgspec
import structlog
from sqlalchemy import Row
from sqlalchemy.ext.asyncio import AsyncSession

from app.apis import store as apis
from app.apis.calls.arguments import bind_parameters
from app.apis.catalog import App, Catalog
from app.apis.credentials import store as credentials
from app.apis.documents.protocols import parse_document, read_document
from app.apis.listing import ListedApp
from app.apis.look_ups import index_of
from app.apis.presentation import AS_WRITTEN, Presentation, present
from app.apis.servers import CalledServers, server_of
from app.base.errors import HostError, NotFoundError, SettingError
from app.base.values import Json
from app.db import tables
from app.db.database import Handle, Sessions
from app.projects import secrets
from app.releases import manifest_store
from app.releases import store as releases
from app.releases.manifest_store import Tool

log = structlog.get_logger(__name__)

_KEPT = 3  # versions per API: releases that serve side by side may have different ones
_Version = tuple[str, str, str | None, bytes]


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
    digest: str  # of the document, see `apis.store.document`
    presentation: Presentation = AS_WRITTEN


async def api_documents(session: AsyncSession, release: tables.Release) -> Sequence[ApiDocument]:
    """Ordered by name. APIs removed since are missing: their tokens are gone."""
    rows = await apis.of_project(session, release.project_id)
    tools = await tools_of(session, release)
    secured = await credentials.secured_apis(session, release.project_id)
    return [document_of(session, row, tools[row.name], row.id in secured) for row in rows if row.name in tools]


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
        return await manifest_store.tool_set(session, release.tools)
    present = await releases.active(session, release.project_id)
    if present.tools is not None:
        return await manifest_store.tool_set(session, present.tools)
    return await manifest_store.api_tools(session, release.project_id)


def _token(handle: Handle, row: tables.Api | Row[Any]) -> str | SettingError | None:
    try:
        return apis.token_of(handle, row)
    except SettingError as error:
        return error


class Catalogs:
    """Parses each document once per version, and caches the last few versions of each API."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self._apps: dict[UUID, dict[_Version, App]] = {}
        self._parsing = asyncio.Lock()  # one thread at a time: several would keep the event loop waiting in turn

    async def of(self, apis: Sequence[ApiDocument]) -> Catalog:
        """Raises ApiDocumentError if a stored document can no longer be parsed."""
        return Catalog({api.name: await self._app(api) for api in apis})

    async def _app(self, api: ApiDocument) -> App:
        version = (
            api.digest,
            api.source,
            api.server,
            msgspec.json.encode([api.bind, api.secrets_for, api.token_origins, api.presentation]),
        )
        versions = self._apps.setdefault(api.id, {})
        if version in versions:
            return versions[version]
        async with self._parsing:
            if version not in versions:
                async with self._sessions() as session:
                    content = await apis.document(session, api.id, api.digest)
                versions[version] = await asyncio.to_thread(_parsed, api, content)
                if len(versions) > _KEPT:
                    del versions[next(iter(versions))]
            return versions[version]


def _parsed(api: ApiDocument, content: bytes) -> App:
    app = parse_document(api.name, read_document(content), source=apis.url_of(api.source), server=api.server)
    app = present(app, api.presentation)
    app = trusting(bind_parameters(app, api.bind), api)
    index_of(app)  # here, in a thread, as the next
    ListedApp.of(app)
    return app


class ProjectSecrets:
    """Fulfils `SecretStore` for one task. Each secret is read, and its use recorded, once."""

    def __init__(self, sessions: Sessions, project_id: UUID) -> None:
        self._sessions = sessions
        self._project_id = project_id
        self._values: dict[str, str] = {}

    async def value(self, name: str) -> str:
        if name not in self._values:
            self._values[name] = await self._read(name)
        return self._values[name]

    async def _read(self, name: str) -> str:
        try:
            async with self._sessions.begin() as session:
                return await secrets.use(session, self._project_id, name)
        except NotFoundError as error:
            raise HostError("ApiError", f"the secret {name!r} that this call needs is not stored") from error
        except SettingError as error:
            log.error("a secret cannot be read", secret=name, cause=str(error))
            raise HostError("ApiError", f"the server cannot read the secret {name!r}") from error

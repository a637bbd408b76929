"""Catalogs of projects, parsed from the documents in the database and cached until these change."""

import asyncio
from collections.abc import Sequence
from uuid import UUID

import msgspec

from app.apis.calls.arguments import bind_parameters
from app.apis.catalog import App, Catalog
from app.apis.documents.protocols import parse_document, read_document
from app.apis.listing import ListedApp
from app.apis.look_ups import index_of
from app.apis.presentation import present
from app.db import manifests
from app.db.database import Sessions
from app.release.tool_documents import ApiDocument, trusting

_KEPT = 3  # versions per API: releases that serve side by side may have different ones
_Version = tuple[str, str, str | None, bytes]


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
                    content = await manifests.document(session, api.id, api.digest)
                versions[version] = await asyncio.to_thread(_parsed, api, content)
                if len(versions) > _KEPT:
                    del versions[next(iter(versions))]
            return versions[version]


def _parsed(api: ApiDocument, content: bytes) -> App:
    source = None if api.source == "upload" else api.source
    app = parse_document(api.name, read_document(content), source=source, server=api.server)
    app = present(app, api.presentation)
    app = trusting(bind_parameters(app, api.bind), api)
    index_of(app)  # here, in a thread, as the next
    ListedApp.of(app)
    return app

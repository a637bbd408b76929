"""The catalogs of projects, made from the documents in the database and kept while these do not change."""

import asyncio
from collections.abc import Sequence
from uuid import UUID

from app.apis.catalog import App, Catalog
from app.apis.credentials import BearerTokens
from app.apis.openapi import parse_document
from app.db import models


class Catalogs:
    """Parses each document once per version; of each API the latest is kept."""

    def __init__(self) -> None:
        self._apps: dict[UUID, tuple[tuple[str, str, str | None], App]] = {}

    async def of(self, apis: Sequence[models.Api]) -> Catalog:
        """Raises ApiDocumentError where a stored document cannot be read any more."""
        return Catalog({api.name: await self._app(api) for api in apis})

    async def _app(self, api: models.Api) -> App:
        version = (api.digest, api.source, api.server)
        known = self._apps.get(api.id)
        if known is not None and known[0] == version:
            return known[1]
        source = None if api.source == "upload" else api.source
        app = await asyncio.to_thread(parse_document, api.name, api.document, source=source, server=api.server)
        self._apps[api.id] = (version, app)
        return app


def tokens_of(apis: Sequence[models.Api]) -> BearerTokens:
    return BearerTokens({api.name: api.secret for api in apis if api.secret})

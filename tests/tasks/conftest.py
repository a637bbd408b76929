"""The API, of an empty database."""

from collections.abc import AsyncIterator

import pytest

from app.db.database import Sessions
from tests.support.api_app import ApiApp, open_api_app


@pytest.fixture
async def api(committed: Sessions, database_url: str) -> AsyncIterator[ApiApp]:
    async with open_api_app(committed, database_url) as opened:
        yield opened

"""The console of a server whose project has grown large."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import text

from app.db.database import open_database
from tests.support.api_app import open_api_app
from tests.support.console_server import Console
from tests.support.encryption_keys import TEST_KEYS
from tests.support.grown_project import GrownProject, grow
from tests.support.http_server import served


@dataclass
class GrownConsole(Console):
    """Its only project is `project`. No runner and no worker are there."""

    project: GrownProject
    directory: Path  # of its data


@asynccontextmanager
async def grown_console(database_url: str, directory: Path) -> AsyncIterator[GrownConsole]:
    async with (
        open_database(database_url, keys=TEST_KEYS) as database,
        open_api_app(database.sessions, database_url, directory=directory) as api,
        served(api) as client,
    ):
        async with database.sessions.begin() as session:
            project = await grow(session, api.demo)
            await session.execute(text("ANALYZE"))
        yield GrownConsole(str(client.base_url).rstrip("/"), api, database_url, project, directory)

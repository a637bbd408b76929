"""An adapter loader on live servers, and release rows."""

from pathlib import Path

from app.db import tables
from app.db.database import Sessions
from app.db.tables import ReleaseState
from app.engine.client import HttpEngine
from app.releases import store as releases
from app.releases.adapter_store import AdapterDirectory
from app.releases.swap import AdapterLoader
from tests.integration.vllm.server import SEED_POLICY
from tests.support.rows import project_row


def open_loader(engine: HttpEngine, sessions: Sessions, directory: Path) -> AdapterLoader:
    return AdapterLoader(engine, sessions, AdapterDirectory(directory, SEED_POLICY, base="seed"))


async def release_row(sessions: Sessions, model: str, state: ReleaseState) -> tables.Release:
    """The only release of a new project."""
    async with sessions.begin() as session:
        release = await releases.active(session, (await project_row(session)).id)
        release.model, release.state = model, state
    return release

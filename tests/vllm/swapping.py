"""Hot swap before live servers, and the rows that it goes by."""

from pathlib import Path

from app.db import models, releases
from app.db.database import Sessions
from app.db.models import ReleaseState
from app.engine.http_engine import HttpEngine
from app.hot_swap.adapter_directory import AdapterDirectory
from app.hot_swap.loader import HotSwap
from tests.rows import project_row
from tests.vllm.server import SEED_POLICY


def open_swap(engine: HttpEngine, sessions: Sessions, directory: Path) -> HotSwap:
    return HotSwap(engine, sessions, AdapterDirectory(directory, SEED_POLICY, base="seed"))


async def release_row(sessions: Sessions, model: str, state: ReleaseState) -> models.Release:
    """The only one of a project of its own."""
    async with sessions.begin() as session:
        release = await releases.active(session, (await project_row(session)).id)
        release.model, release.state = model, state
    return release

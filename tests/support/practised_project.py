"""A project with APIs that can be practised, and one that cannot, and the seed policy."""

from collections.abc import Mapping
from pathlib import Path
from uuid import UUID

from app.apis import store as apis
from app.base.model_catalog import SEED
from app.base.settings import Settings
from app.base.values import Json
from app.db.database import Sessions
from tests.support.practice_documents import SENSORS, STORE
from tests.support.training_project import TrainingProject

NO_RECORDS = {
    "openapi": "3.1.0",
    "info": {"title": "Ping", "version": "1"},
    "paths": {"/ping": {"get": {"operationId": "ping", "responses": {"204": {"description": "Pong"}}}}},
}
_TOOL = {"name": "look", "inputSchema": {"type": "object"}}
MCP = {
    "mcp": "2025-06-18",
    "server": "https://tools.test/mcp",
    "tools": [_TOOL],
}
DOCUMENTS: Mapping[str, dict[str, Json]] = {
    "sensors": SENSORS,
    "store": STORE,
    "ping": NO_RECORDS,
    "tools": MCP,
}


async def practised_project(
    sessions: Sessions, database_url: str, directory: Path, **settings: object
) -> TrainingProject:
    given = {"model": SEED, "data_dir": directory, "database_url": database_url, "engine_device": "cpu"}
    project = await TrainingProject.open(sessions, Settings(**{**given, **settings}))  # type: ignore[arg-type]
    await add_apis(sessions, project.project_id)
    return project


async def add_apis(sessions: Sessions, project_id: UUID) -> None:
    async with sessions.begin() as session:
        for name, document in DOCUMENTS.items():
            await apis.put(
                session,
                project_id,
                name,
                source="upload",
                document=document,
                digest=name,
                server=f"http://{name}.test",
            )

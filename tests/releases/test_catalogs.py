"""Documents are parsed once per version, and kept for releases that serve side by side."""

from uuid import UUID

import pytest

from app.apis import store as apis
from app.apis.catalog import App
from app.base.values import Json
from app.db.database import Sessions
from app.releases.tools import ApiDocument, Catalogs
from tests.support.rows import project_row


class Project:
    """One API whose document changes."""

    def __init__(self, sessions: Sessions, project_id: UUID) -> None:
        self.sessions = sessions
        self.catalogs = Catalogs(sessions)
        self.project_id = project_id

    async def app(self, number: int, server: str | None = None, **more: Json) -> App:
        """That of a version, which is the registered one now."""
        path = {"get": {"operationId": f"v{number}"}}
        document = {"openapi": "3.1.0", "servers": [{"url": "http://mail.test"}], "paths": {f"/v{number}": path}}
        async with self.sessions.begin() as session:
            row = await apis.put(
                session, self.project_id, "mail", source="upload", document=document | more, digest=str(number)
            )
        api = ApiDocument(
            id=row.id, name="mail", source="upload", server=server, token=None, bind={}, digest=str(number)
        )
        return (await self.catalogs.of([api])).apps["mail"]


@pytest.fixture
async def project(committed: Sessions) -> Project:
    async with committed.begin() as session:
        return Project(committed, (await project_row(session)).id)


async def test_each_release_finds_its_own_version_parsed_once(project: Project) -> None:
    first, second = await project.app(1), await project.app(2)
    assert (list(first.operations), list(second.operations)) == (["v1"], ["v2"])
    assert await project.app(1) is first
    assert await project.app(2) is second
    assert (await project.app(2, "http://other.test")).server == "http://other.test"


async def test_no_more_than_three_versions_of_an_api_are_kept(project: Project) -> None:
    made = [await project.app(number) for number in range(4)]
    assert await project.app(3) is made[3]
    assert await project.app(1) is made[1]
    assert await project.app(0) is not made[0]

"""Documents are parsed once per version, and kept for releases that serve side by side."""

from uuid import UUID

from app.apis.catalog import App
from app.release.manifest import ApiDocument
from app.runner.catalogs import Catalogs


def version(number: int, server: str | None = None) -> ApiDocument:
    return ApiDocument(
        id=UUID(int=1),
        name="mail",
        source="http://mail.test/openapi.json",
        server=server,
        token=None,
        bind={},
        digest=str(number),
        document={"openapi": "3.1.0", "paths": {f"/v{number}": {"get": {"operationId": f"v{number}"}}}},
    )


async def app(catalogs: Catalogs, document: ApiDocument) -> App:
    return (await catalogs.of([document])).apps["mail"]


async def test_each_release_finds_its_own_version_parsed_once() -> None:
    catalogs = Catalogs()
    first, second = await app(catalogs, version(1)), await app(catalogs, version(2))
    assert (list(first.operations), list(second.operations)) == (["v1"], ["v2"])
    assert await app(catalogs, version(1)) is first
    assert await app(catalogs, version(2)) is second
    moved = await app(catalogs, version(2, "http://other.test"))
    assert moved.server == "http://other.test"


async def test_no_more_than_three_versions_of_an_api_are_kept() -> None:
    catalogs = Catalogs()
    made = [await app(catalogs, version(number)) for number in range(4)]
    assert await app(catalogs, version(3)) is made[3]
    assert await app(catalogs, version(1)) is made[1]
    assert await app(catalogs, version(0)) is not made[0]

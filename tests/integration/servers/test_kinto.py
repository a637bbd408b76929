"""Kinto, a document store from PyPI: its Swagger 2.0 document, and HTTP basic authentication."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from app.db.database import Sessions
from app.sandbox.forked_sandbox import ForkedSandbox
from tests.bench.record_tasks import KINTO
from tests.integration.servers.installed import pinned
from tests.integration.servers.tried_api import TriedApi, open_tried_api
from tests.integration.servers.tried_row import TriedRow
from tests.support.processes import free_ports


@pytest.fixture(scope="module")
def kinto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    place, (port,) = tmp_path_factory.mktemp("kinto"), free_ports(1)
    with KINTO.run(place, port):
        yield f"http://127.0.0.1:{port}"


@pytest.fixture
async def tried(
    kinto: str, committed: Sessions, database_url: str, sandbox: ForkedSandbox, tmp_path: Path
) -> AsyncIterator[TriedApi]:
    row = TriedRow(f"Kinto {pinned('kinto', 'kinto')} (PyPI)", "Swagger 2.0", "basic")
    async with open_tried_api("kinto", row, committed, database_url, sandbox, tmp_path) as opened:
        shown = await opened.register(url=f"{kinto}/v1/__api__")
        assert shown["base_url"] == f"{kinto}/v1"
        assert (shown["left_out"], shown["remarks"]) == ([], [])
        yield opened


@pytest.mark.slow
async def test_kinto_is_driven_by_its_swagger_document(tried: TriedApi) -> None:
    [asked] = tried.shown["credentials"]
    assert (asked["kind"], asked["state"], asked["send"]) == ("basic", "missing", "`username` and `password`")
    refused = await tried.test("GET", "/buckets")
    assert (refused["ok"], refused["status"]) == (False, 401)
    await tried.credentials(asked["scheme"], username="iris", password="pa55 w0rd")
    assert (await tried.test("GET", "/buckets"))["ok"]
    assert await tried.states() == {asked["scheme"]: "ready"}

    answer = await tried.task(
        "create, read, replace, patch and delete records",
        """
<PUT /buckets/{id}>(id="desk")
<PUT /buckets/{bucket_id}/collections/{id}>(bucket_id="desk", id="notes")
there = {"bucket_id": "desk", "collection_id": "notes"}
made = <POST /buckets/{bucket_id}/collections/{collection_id}/records>(**there, data={"title": "tea", "stars": 1})
one = {**there, "id": made["data"]["id"]}
""",
        """
replaced = <PUT /buckets/{bucket_id}/collections/{collection_id}/records/{id}>(**one, data={"title": "mint tea"})
patched = <PATCH /buckets/{bucket_id}/collections/{collection_id}/records/{id}>(**one, data={"stars": 2})
read = <GET /buckets/{bucket_id}/collections/{collection_id}/records/{id}>(**one)
gone = <DELETE /buckets/{bucket_id}/collections/{collection_id}/records/{id}>(**one)
seen = [[each["data"].get(name) for name in ("title", "stars")] for each in (made, replaced, patched, read)]
apis.supervisor.complete_task(answer=[*seen, gone["data"]["deleted"]])
""",
    )
    assert answer == [["tea", 1], ["mint tea", None], ["mint tea", 2], ["mint tea", 2], True]

    answer = await tried.task(
        "pages by the header `Next-Page`",
        """
there = {"bucket_id": "desk", "collection_id": "notes"}
for number in range(7):
    <POST /buckets/{bucket_id}/collections/{collection_id}/records>(**there, data={"number": number})
pages = <GET /buckets/{bucket_id}/collections/{collection_id}/records>.pages(**there, limit=3, sort=["number"])
apis.supervisor.complete_task(answer=[[each["number"] for each in page["data"]] for page in pages])
""",
    )
    assert answer == [[0, 1, 2], [3, 4, 5], [6]]

    answer = await tried.task(
        "`ETag` and `If-Match`; errors with their JSON",
        """
found = <GET /buckets/{id}>.response(id="desk")
changed = <PATCH /buckets/{id}>(id="desk", data={"owner": "iris"}, If_Match=found.headers["ETag"])
errors = []
for id in ("desk", "nowhere"):
    try:
        <PATCH /buckets/{id}>(id=id, data={"owner": "omar"}, If_Match=found.headers["ETag"])
    except ApiError as error:
        errors.append([error.status, error.body["error"]])
apis.supervisor.complete_task(answer=[changed["data"]["owner"], errors])
""",
    )
    assert answer == ["iris", [[412, "Precondition Failed"], [403, "Forbidden"]]]

    status = await tried.task(
        None,
        """
sent = <POST /batch>(requests=[{"method": "GET", "path": "/v1/buckets/desk"}])
apis.supervisor.complete_task(answer=sent["responses"][0]["status"])
""",
    )
    assert status == 401
    tried.row.not_done.append("`/batch`: its document says that it needs no credentials, so it gets none")
    tried.row.check()

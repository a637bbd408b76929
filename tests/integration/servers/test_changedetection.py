"""changedetection.io from PyPI: an API key in a header, and a document that names another server than its own."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from app.db.database import Sessions
from app.sandbox.forked_sandbox import ForkedSandbox
from tests.integration.servers.installed import pinned, python_server
from tests.integration.servers.server_process import server_process
from tests.integration.servers.tried_api import TriedApi, open_tried_api
from tests.integration.servers.tried_row import TriedRow
from tests.support.file_server import FileServer
from tests.support.ledger_project import until
from tests.support.processes import free_ports


class Watcher(NamedTuple):
    """The server, its key, and a site that it may watch."""

    url: str
    key: str
    site: FileServer


_RECHECK = "<GET /watch/{uuid}>"


@pytest.fixture
def watcher(tmp_path: Path) -> Iterator[Watcher]:
    commands = python_server("changedetection")
    (port,) = free_ports(1)
    url, data = f"http://127.0.0.1:{port}", tmp_path / "data"
    with FileServer().running() as site:
        site.files["/prices"] = b"<html><body><p>Tea costs 4</p></body></html>"
        site.types["/prices"] = "text/html"
        start = ("-C", "-d", data, "-h", "127.0.0.1", "-p", str(port), "-u", f"{site.url}/prices")
        local = {"ALLOW_IANA_RESTRICTED_ADDRESSES": "true"}
        with server_process((commands / "changedetection.io", *start), tmp_path / "cd", url, local):
            stored = json.loads((data / "changedetection.json").read_text())
            yield Watcher(url, stored["settings"]["application"]["api_access_token"], site)


@pytest.mark.slow
async def test_changedetection_is_driven_with_a_key_in_a_header(
    watcher: Watcher, committed: Sessions, database_url: str, sandbox: ForkedSandbox, tmp_path: Path
) -> None:
    version = pinned("changedetection", "changedetection.io")
    row = TriedRow(f"changedetection.io {version} (PyPI)", "OpenAPI 3.1", "API key in a header")
    async with open_tried_api("watcher", row, committed, database_url, sandbox, tmp_path) as tried:
        document = f"{watcher.url}/api/v1/full-spec"
        shown = await tried.register(url=document)
        [remark] = shown["remarks"]
        assert remark.endswith(f"send the document again with `server`: {watcher.url}/api/v1")
        shown = await tried.register(url=document, server=f"{watcher.url}/api/v1")
        assert shown["remarks"] == []
        [asked] = shown["credentials"]
        assert (asked["state"], asked["send"]) == ("missing", "`value`: the key for the header x-api-key")
        assert (await tried.test("GET", "/systeminfo"))["status"] == 403
        await tried.credentials(asked["scheme"], value=watcher.key)
        assert (await tried.test("GET", "/systeminfo"))["ok"]
        assert await tried.states() == {asked["scheme"]: "ready"}

        answer = await tried.task(
            "create, list, read, search, change and delete watches and tags",
            f"""
tag = <POST /tag>(title="drinks")["uuid"]
made = <POST /watch>(url="{watcher.site.url}/prices?tea", title="tea", tag="drinks", paused=True)["uuid"]
listed = {{uuid: each["title"] for uuid, each in <GET /watch>(tag="drinks").items()}}
found = <GET /search>(q="prices", partial="true")
""",
            """
<PUT /watch/{uuid}>(uuid=made, title="green tea", time_between_check={"hours": 3})
read = <GET /watch/{uuid}>(uuid=made)
<DELETE /watch/{uuid}>(uuid=made)
<DELETE /tag/{uuid}>(uuid=tag)
""",
            """
left = made in <GET /watch>()
apis.supervisor.complete_task(answer=[
    listed == {made: "tea"}, made in found, read["title"], read["tags"] == [tag],
    read["time_between_check"]["hours"], left,
])
""",
        )
        assert answer == [True, True, "green tea", True, 3, False]

        uuid = await tried.task(None, "[uuid] = <GET /watch>()\napis.supervisor.complete_task(answer=uuid)")
        await _snapshots(tried, uuid, 1)
        watcher.site.files["/prices"] = b"<html><body><p>Tea costs 5</p></body></html>"
        answer = await tried.task(
            "have a page checked again", f"{_RECHECK}({uuid=}, recheck='1')\napis.supervisor.complete_task()"
        )
        await _snapshots(tried, uuid, 2)
        answer = await tried.task(
            "read snapshots and their difference as text; errors",
            f"""
{uuid=}
first, second = sorted(map(int, <GET /watch/{{uuid}}/history>(uuid=uuid)))
texts = [<GET /watch/{{uuid}}/history/{{timestamp}}>(uuid=uuid, timestamp=each) for each in (first, second)]
between = {{"from_timestamp": first, "to_timestamp": second, "format": "text"}}
difference = <GET /watch/{{uuid}}/difference/{{from_timestamp}}/{{to_timestamp}}>(uuid=uuid, **between)
try:
    <GET /watch/{{uuid}}>(uuid="00000000-0000-0000-0000-000000000000")
except ApiError as error:
    missing = error.status
apis.supervisor.complete_task(answer=[list(map(str.strip, texts)), "Tea costs 5" in difference, missing])
""",
        )
        assert answer == [["Tea costs 4", "Tea costs 5"], True, 404]
        row.check()


async def _snapshots(tried: TriedApi, uuid: str, count: int) -> None:
    """Wait until the server has taken so many."""

    async def taken() -> bool:
        answer = (await tried.test("GET", "/watch/{uuid}/history", uuid=uuid))["answer"]
        return len(json.loads(answer)) == count

    await until(taken)

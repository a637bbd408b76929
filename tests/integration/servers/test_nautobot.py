"""Nautobot from PyPI: over a thousand operations, in a document that is shown to those who identify themselves."""

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from statistics import quantiles
from typing import Any

import pytest

from app.apis.look_ups import Room
from app.db.database import Sessions
from app.sandbox.forked_sandbox import ForkedSandbox
from tests.integration.servers.installed import pinned
from tests.integration.servers.nautobot_server import Nautobot, nautobot_server
from tests.integration.servers.tried_api import TriedApi, open_tried_api
from tests.integration.servers.tried_row import TriedRow
from tests.support.api_app import problem

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3_600)]


@pytest.fixture(scope="module")
def nautobot(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nautobot]:
    with nautobot_server(tmp_path_factory.mktemp("nautobot")) as served:
        yield served


@pytest.fixture
async def tried(
    committed: Sessions, database_url: str, sandbox: ForkedSandbox, tmp_path: Path
) -> AsyncIterator[TriedApi]:
    version = pinned("nautobot", "nautobot")
    row = TriedRow(f"Nautobot {version} (PyPI)", "OpenAPI 3.0, behind its log-in", "API key after a prefix")
    async with open_tried_api("nautobot", row, committed, database_url, sandbox, tmp_path) as opened:
        yield opened


async def test_nautobot_is_driven_by_a_document_that_it_shows_with_a_token(
    tried: TriedApi, nautobot: Nautobot
) -> None:
    document = f"{nautobot.url}/api/swagger.json"
    refused = await tried.api.client.post("/v1/apis", json={"name": "nautobot", "url": document})
    assert refused.status_code == 400
    assert "answered with status 403" in str(problem(refused)["detail"])
    token = {"value": nautobot.token, "place": "header", "name": "Authorization", "prefix": "Token"}
    await _register(tried, url=document, credentials={"tokenAuth": token})
    assert tried.row.operations > 1_000
    assert (tried.shown["left_out"], tried.shown["remarks"]) == ([], [])
    refreshed = await tried.api.client.post("/v1/apis/nautobot/refresh", timeout=300)
    assert refreshed.json() == {"change": None, "failure": None}

    found, listed = await tried.task(
        "find operations by a search, and list them in parts of limited length",
        """
queries = ("create a manufacturer", "list the locations", "delete a device", "change a VLAN")
found = [apis.api_docs.search(query=query)[0]["api_name"] for query in queries]
listed = apis.api_docs.show_signatures(app_name="nautobot")
apis.supervisor.complete_task(answer=[found, len(listed)])
""",
    )
    places = [("POST", "/dcim/manufacturers/"), ("GET", "/dcim/locations/"), ("DELETE", "/dcim/devices/{id}/")]
    assert found == [tried.operation(*each) for each in (*places, ("PUT", "/ipam/vlans/{id}/"))]
    assert listed <= Room().chars

    answer = await tried.task(
        "create, read, replace, patch and delete objects",
        """
made = <POST /dcim/manufacturers/>(name="Acme", description="of anvils")
one = {"id": made["id"]}
patched = <PATCH /dcim/manufacturers/{id}/>(**one, description="of rockets")
replaced = <PUT /dcim/manufacturers/{id}/>(**one, name="Acme Corp")
read = <GET /dcim/manufacturers/{id}/>(**one)
<DELETE /dcim/manufacturers/{id}/>(**one)
""",
        """
left = <GET /dcim/manufacturers/>(name=["Acme Corp"])["count"]
seen = [[each["name"], each["description"]] for each in (made, patched, replaced, read)]
apis.supervisor.complete_task(answer=[seen, left])
""",
    )
    renamed = ["Acme Corp", "of rockets"]
    assert answer == [[["Acme", "of anvils"], ["Acme", "of rockets"], renamed, renamed], 0]

    answer = await tried.task(
        "objects that refer to one another by name; filters",
        """
kind = <POST /dcim/location-types/>(name="Site", content_types=["dcim.device"], nestable=True)
active = {"name": "Active"}
def place(name, **more):
    return <POST /dcim/locations/>(name=name, location_type={"name": "Site"}, status=active, **more)
north = place("North")
for number in range(5):
    place(f"Hall {number}", parent={"id": north["id"]})
""",
        """
halls = <GET /dcim/locations/>(parent=["North"], name__isw=["Hall"], sort="-name")
few = <GET /dcim/locations/>(q="Hall 3")
apis.supervisor.complete_task(answer=[[each["name"] for each in halls["results"]], few["count"]])
""",
    )
    assert answer == [[f"Hall {number}" for number in (4, 3, 2, 1, 0)], 1]

    answer = await tried.task(
        "pages by the field `next`",
        """
pages = <GET /dcim/locations/>.pages(limit=2, location_type=["Site"], sort="name")
apis.supervisor.complete_task(answer=[[each["name"] for each in page["results"]] for page in pages])
""",
    )
    assert answer == [["Hall 0", "Hall 1"], ["Hall 2", "Hall 3"], ["Hall 4", "North"]]

    answer = await tried.task(
        "several objects by one call; errors with their JSON",
        """
halls = <GET /dcim/locations/>(name__isw=["Hall"])["results"]
changed = <PATCH /dcim/locations/>(body=[{"id": each["id"], "facility": "B2"} for each in halls])
<DELETE /dcim/locations/>(body=[{"id": each["id"]} for each in halls])
errors = []
roof = {"location_type": {"name": "Roof"}, "status": {"name": "Active"}}
for sent in (lambda: <POST /dcim/locations/>(name="Attic", **roof),
             lambda: <GET /dcim/locations/{id}/>(id=halls[0]["id"])):
    try:
        sent()
    except ApiError as error:
        errors.append([error.status, sorted(error.body)])
left = <GET /dcim/locations/>()["count"]
apis.supervisor.complete_task(answer=[[each["facility"] for each in changed], errors, left])
""",
    )
    assert answer == [["B2"] * 5, [[400, ["location_type"]], [404, ["detail"]]], 1]
    tried.row.check()


async def _register(tried: TriedApi, **fields: Any) -> None:
    """Others are answered meanwhile: `-s` shows how fast."""
    started, seconds = time.perf_counter(), list[float]()
    registering = asyncio.create_task(tried.register(**fields))
    while not registering.done():
        before = time.perf_counter()
        assert (await tried.api.client.get("/v1/apis")).status_code == 200
        seconds.append(time.perf_counter() - before)
    await registering
    whole, slowest = time.perf_counter() - started, quantiles(seconds, n=100)[98]
    others = f"{len(seconds)} other requests, 99 % of them within {slowest * 1e3:.0f} ms"
    sys.stderr.write(f"registered in {whole:.1f} s beside {others}\n")

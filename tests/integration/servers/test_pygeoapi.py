"""pygeoapi, a server of places from PyPI: a document whose references lead to other servers, and GeoJSON."""

import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import msgspec
import pytest

from app.db.database import Sessions
from app.sandbox.forked_sandbox import ForkedSandbox
from tests.integration.servers.installed import pinned, python_server
from tests.integration.servers.server_process import clean_environment, server_process
from tests.integration.servers.tried_api import TriedApi, open_tried_api
from tests.integration.servers.tried_row import TriedRow
from tests.support.processes import free_ports

_CREATIVE_COMMONS = "https://creativecommons.org/licenses/by/4.0/"
_OAK = {"externalId": "oak", "name": "oak", "city": "Basel", "height": 74}


def _config(url: str, port: int, data: Path) -> object:
    people = {"name": "tests", "url": url}
    desks = {
        "type": "collection",
        "title": "Desks",
        "description": "Where desks stand",
        "keywords": ["desks"],
        "extents": {"spatial": {"bbox": [-180, -90, 180, 90]}},
        "providers": [
            {"type": "feature", "name": "TinyDB", "editable": True, "data": str(data), "id_field": "externalId"}
        ],
    }
    return {
        "server": {
            "bind": {"host": "127.0.0.1", "port": port},
            "url": url,
            "mimetype": "application/json; charset=UTF-8",
            "encoding": "utf-8",
            "languages": ["en-US"],
            "limits": {"default_items": 2, "max_items": 50},
            "map": {"url": "https://tile.example/{z}/{x}/{y}.png", "attribution": "none"},
            "admin": False,
        },
        "logging": {"level": "ERROR"},
        "metadata": {
            "identification": {
                "title": "Desks",
                "description": "Where desks stand",
                "keywords": ["desks"],
                "keywords_type": "theme",
                "terms_of_service": _CREATIVE_COMMONS,
                "url": url,
            },
            "license": {"name": "CC-BY 4.0", "url": _CREATIVE_COMMONS},
            "provider": people,
            "contact": people,
        },
        "resources": {
            "desks": desks,
            "hello-world": {"type": "process", "processor": {"name": "HelloWorld"}},
        },
    }


@pytest.fixture(scope="module")
def pygeoapi(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    command = python_server("pygeoapi") / "pygeoapi"
    place, (port,) = tmp_path_factory.mktemp("pygeoapi"), free_ports(1)
    url, data = f"http://127.0.0.1:{port}", place / "desks.json"
    first = {"type": "Feature", "id": "oak", "geometry": _point(7.6, 47.6), "properties": _OAK}
    data.write_bytes(msgspec.json.encode({"_default": {"1": first}}))
    (place / "config.json").write_bytes(msgspec.json.encode(_config(url, port, data)))
    names = {"PYGEOAPI_CONFIG": "config.json", "PYGEOAPI_OPENAPI": "openapi.json"}
    options = ("config.json", "--format", "json", "--output-file", "openapi.json")
    subprocess.run(
        [str(command), "openapi", "generate", *options],
        cwd=place,
        env=clean_environment(place, names),
        check=True,
        capture_output=True,
    )
    with server_process((command, "serve"), place, f"{url}/", names):
        yield url


def _point(*coordinates: float) -> object:
    return {"type": "Point", "coordinates": coordinates}


@pytest.fixture
async def tried(
    pygeoapi: str, committed: Sessions, database_url: str, sandbox: ForkedSandbox, tmp_path: Path
) -> AsyncIterator[TriedApi]:
    row = TriedRow(f"pygeoapi {pinned('pygeoapi', 'pygeoapi')} (PyPI)", "OpenAPI 3.0", "none")
    async with open_tried_api("places", row, committed, database_url, sandbox, tmp_path) as opened:
        shown = await opened.register(url=f"{pygeoapi}/openapi?f=json")
        assert (shown["base_url"], shown["credentials"]) == (pygeoapi, [])
        [left] = shown["left_out"]
        assert left["operation"] == "GET /collections/desks/items"
        assert left["reason"].startswith("it is called without a parameter: ")
        yield opened


@pytest.mark.slow
async def test_pygeoapi_is_driven_though_its_document_refers_to_other_servers(tried: TriedApi) -> None:
    answer = await tried.task(
        "create, read, find, replace and delete places, as GeoJSON",
        """
def desk(id, city, height, *at):
    return {
        "type": "Feature",
        "geometry": {"type": "Point", "coordinates": list(at)},
        "properties": {"externalId": id, "name": id, "city": city, "height": height},
    }
made = [
    <POST /collections/desks/items>.response(body=desk(id, "Bern", height, 7.4, 46.9)).headers["Location"]
    for id, height in (("ash", 70), ("elm", 72), ("fir", 75))
]
ids = [each.rsplit("/", 1)[1] for each in made]
""",
        """
read = <GET /collections/desks/items/{featureId}>(featureId=ids[0])
elm = {**desk("elm", "Bern", 99, 7.4, 46.9), "id": ids[1]}
<PUT /collections/desks/items/{featureId}>(featureId=ids[1], body=elm)
<DELETE /collections/desks/items/{featureId}>(featureId=ids[2])
near = <GET /collections/desks/items>(bbox=[7.0, 46.5, 7.5, 47.0])
high = [[each["properties"]["name"], each["properties"]["height"]] for each in near["features"]]
try:
    gone = <GET /collections/desks/items/{featureId}>(featureId=ids[2])
except Exception as error:
    gone = str(error)
apis.supervisor.complete_task(answer=[read["properties"]["height"], sorted(high), gone])
""",
    )
    assert answer[:2] == [70, [["ash", 70], ["elm", 99]]]
    assert "404" in answer[2], "an error with its JSON"

    answer = await tried.task(
        "pages by `offset`",
        """
pages = <GET /collections/desks/items>.pages(limit=1)
names = [each["properties"]["name"] for page in pages for each in page["features"]]
apis.supervisor.complete_task(answer=sorted(names))
""",
    )
    assert answer == ["ash", "elm", "oak"]

    answer = await tried.task(
        "execute a process",
        """
inputs = {"name": "Iris", "message": "good morning"}
said = <POST /processes/hello-world/execution>(body={"inputs": inputs})
apis.supervisor.complete_task(answer=said)
""",
    )
    assert answer == {"id": "echo", "value": "Hello Iris! good morning"}
    tried.row.check()

"""Prefect from PyPI: basic authentication that its document, itself behind it, does not declare."""

from collections.abc import Iterator

import pytest

from app.db.database import Sessions
from app.sandbox.forked_sandbox import ForkedSandbox
from tests.integration.servers.installed import pinned, python_server
from tests.integration.servers.server_process import server_process
from tests.integration.servers.tried_api import open_tried_api
from tests.integration.servers.tried_row import TriedRow
from tests.support.processes import free_ports

_USER, _PASSWORD = "iris", "pa55-w0rd"


@pytest.fixture(scope="module")
def prefect(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    commands = python_server("prefect")
    place, (port,) = tmp_path_factory.mktemp("prefect"), free_ports(1)
    url = f"http://127.0.0.1:{port}/api"
    command = (commands / "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port))
    environment = {
        "PREFECT_HOME": str(place),
        "PREFECT_SERVER_API_AUTH_STRING": f"{_USER}:{_PASSWORD}",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_SERVER_UI_ENABLED": "false",
    }
    with server_process(command, place, f"{url}/health", environment):
        yield url


@pytest.mark.slow
async def test_prefect_is_driven_with_credentials_that_it_does_not_declare(
    prefect: str,
    committed: Sessions,
    database_url: str,
    sandbox: ForkedSandbox,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    row = TriedRow(
        f"Prefect {pinned('prefect', 'prefect')} (PyPI)", "OpenAPI 3.1, behind its log-in", "basic, not declared"
    )
    place = tmp_path_factory.mktemp("tokenizer")
    async with open_tried_api("prefect", row, committed, database_url, sandbox, place) as tried:
        user = {"username": _USER, "password": _PASSWORD}
        shown = await tried.register(url=f"{prefect}/openapi.json", credentials={"basic": user})
        assert (shown["base_url"], shown["left_out"], shown["remarks"]) == (prefect, [], [])
        assert [(each["scheme"], each["state"]) for each in shown["credentials"]] == [("basic", "ready")]

        answer = await tried.task(
            "create, read, change, filter and delete flows and variables",
            """
flow = <POST /flows/>(name="brew", tags=["tea"])
<POST /flows/>(name="wash")
<PATCH /flows/{id}>(id=flow["id"], tags=["tea", "hot"])
found = <POST /flows/filter>(flows={"tags": {"all_": ["hot"]}})
<POST /variables/>(name="cups", value={"red": 3}, tags=["kitchen"])
<PATCH /variables/name/{name}>(name="cups", value={"red": 4})
cups = <GET /variables/name/{name}>(name="cups")["value"]
<DELETE /variables/name/{name}>(name="cups")
""",
            """
left = <POST /variables/count>()
apis.supervisor.complete_task(answer=[[[each["name"], each["tags"]] for each in found], cups, left])
""",
        )
        assert answer == [[["brew", ["tea", "hot"]]], {"red": 4}, 0]

        answer = await tried.task(
            "runs of flows and their states; errors with their JSON",
            """
flow = <GET /flows/name/{name}>(name="brew")
run = <POST /flow_runs/>(flow_id=flow["id"], name="first", parameters={"minutes": 3}, state={"type": "SCHEDULED"})
moved = <POST /flow_runs/{id}/set_state>(id=run["id"], state={"type": "RUNNING"})
seen = <GET /flow_runs/{id}>(id=run["id"])
<DELETE /flow_runs/{id}>(id=run["id"])
try:
    <GET /flow_runs/{id}>(id=run["id"])
except ApiError as error:
    gone = [error.status, error.body["detail"]]
apis.supervisor.complete_task(answer=[moved["status"], seen["state_type"], seen["parameters"], gone])
""",
        )
        assert answer == ["ACCEPT", "RUNNING", {"minutes": 3}, [404, "Flow run not found"]]

        answer = await tried.task(
            "pages by `offset`",
            """
for name in ("pour", "sip"):
    <POST /flows/>(name=name)
pages = <POST /flows/filter>.pages(limit=3, sort="NAME_ASC")
apis.supervisor.complete_task(answer=[[each["name"] for each in page] for page in pages])
""",
        )
        assert answer == [["brew", "pour", "sip"], ["wash"]]
        row.check()

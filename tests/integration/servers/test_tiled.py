"""Tiled, a data server from PyPI: OAuth 2 by a password, whose tokens expire and are not refreshed."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import msgspec
import pytest

from app.db.database import Sessions
from app.sandbox.forked_sandbox import ForkedSandbox
from tests.integration.servers.installed import pinned, python_server
from tests.integration.servers.server_process import server_process
from tests.integration.servers.tried_api import TriedApi, open_tried_api
from tests.integration.servers.tried_row import TriedRow
from tests.support.processes import free_ports

_TOKEN_SECONDS = 32  # credentials are renewed half a minute before


@pytest.fixture(scope="module")
def tiled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """Its address, and its log."""
    commands = python_server("tiled")
    place, (port,) = tmp_path_factory.mktemp("tiled"), free_ports(1)
    (place / "config.json").write_bytes(msgspec.json.encode(_config(place)))
    command = (commands / "tiled", "serve", "config", "config.json", "--port", str(port))
    with server_process(command, place, f"http://127.0.0.1:{port}/healthz"):
        yield f"http://127.0.0.1:{port}", place / "server.log"


def _config(place: Path) -> object:
    catalog = {
        "uri": f"sqlite:///{place}/catalog.db",
        "writable_storage": [f"{place}/data"],
        "init_if_not_exists": True,
    }
    people = {
        "provider": "toy",
        "authenticator": "tiled.authenticators:DictionaryAuthenticator",
        "args": {"users_to_passwords": {"iris": "pa55 w0rd"}},
    }
    return {
        "trees": [{"path": "/", "tree": "catalog", "args": catalog}],
        "authentication": {
            "providers": [people],
            "secret_keys": ["for tests alone, and long enough"],
            "tiled_admins": [{"provider": "toy", "id": "iris"}],
            "access_token_max_age": _TOKEN_SECONDS,
        },
        "database": {"uri": f"sqlite:///{place}/people.db", "init_if_not_exists": True},
    }


@pytest.fixture
async def tried(
    tiled: tuple[str, Path], committed: Sessions, database_url: str, sandbox: ForkedSandbox, tmp_path: Path
) -> AsyncIterator[TriedApi]:
    row = TriedRow(f"Tiled {pinned('tiled', 'tiled')} (PyPI)", "OpenAPI 3.1", "OAuth 2 by a password")
    async with open_tried_api("tiled", row, committed, database_url, sandbox, tmp_path) as opened:
        shown = await opened.register(url=f"{tiled[0]}/openapi.json")
        assert (shown["base_url"], shown["left_out"], shown["remarks"]) == (tiled[0], [], [])
        yield opened


@pytest.mark.slow
async def test_tiled_is_called_with_tokens_that_are_renewed(tried: TriedApi, tiled: tuple[str, Path]) -> None:
    [asked] = [each for each in tried.shown["credentials"] if each["kind"] == "oauth2"]
    assert (asked["state"], asked["send"]) == ("missing", "`username` and `password`; or a token as `value`")
    assert (await tried.test("GET", "/api/v1/search/{path}", path="/"))["status"] == 401
    await tried.credentials(asked["scheme"], username="iris", password="wrong")
    refused = await tried.test("GET", "/api/v1/search/{path}", path="/")
    assert not refused["ok"]
    assert (await tried.states())[asked["scheme"]] == "failing", refused
    await tried.credentials(asked["scheme"], username="iris", password="pa55 w0rd")
    assert (await tried.test("GET", "/api/v1/search/{path}", path="/"))["ok"]
    assert (await tried.states())[asked["scheme"]] == "ready"

    answer = await tried.task(
        "create, find, change and delete nodes in nodes",
        """
def make(where, id, **metadata):
    return <POST /api/v1/metadata/{path}>(
        path=where, id=id, structure_family="container", metadata=metadata, specs=[], data_sources=[]
    )["id"]
made = [make("/", "desk"), make("desk", "lamp", colour="red", watts=7), make("desk", "cup", colour="red")]
""",
        """
<PATCH /api/v1/metadata/{path}>(
    path="desk/cup", content_type="application/merge-patch+json", metadata={"colour": "blue"}, specs=[]
)
found = <GET /api/v1/search/{path}>(path="desk")
colours = sorted([each["id"], each["attributes"]["metadata"]["colour"]] for each in found["data"])
revisions = <GET /api/v1/revisions/{path}>(path="desk/cup")
<DELETE /api/v1/metadata/{path}>(path="desk/lamp")
left = <GET /api/v1/search/{path}>(path="desk")["meta"]["count"]
try:
    root = <GET /api/v1/search/{path}>(path="")
except Exception as error:
    root = str(error)
apis.supervisor.complete_task(answer=[made, colours, len(revisions["data"]), left, root])
""",
    )
    assert answer[:4] == [["desk", "lamp", "cup"], [["cup", "blue"], ["lamp", "red"]], 1, 1]
    assert answer[4].endswith("'' cannot be part of an address")
    tried.row.not_done.append("the root as an empty `path`, which no address may have here: `/` names it as well")

    before = _tokens(tiled[1])
    await asyncio.sleep(_TOKEN_SECONDS - 30 + 1)
    answer = await tried.task(
        "tokens got again by the password, since it takes no refresh token",
        """
apis.supervisor.complete_task(answer=<GET /api/v1/auth/whoami>()["identities"][0]["id"])
""",
    )
    assert answer == "iris"
    assert _tokens(tiled[1]) == before + 1
    tried.row.check()


def _tokens(log: Path) -> int:
    """That it gave."""
    return sum("/token HTTP" in line and "200 OK" in line for line in log.read_text().splitlines())

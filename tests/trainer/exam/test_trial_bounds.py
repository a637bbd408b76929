"""No call of a trial reaches a server of production, whatever the document, a redirect or a variable says."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
from litestar import get
from litestar.response import Redirect

from app.apis import store as apis
from app.apis.calls.network import open_client
from app.base.errors import InvalidError
from app.base.values import Json
from app.db.tables import ExamSource
from app.projects import store as projects
from app.releases.exams import store as exams
from app.releases.exams.store import NewExamTask
from tests.support.examined import examined
from tests.support.ledger import Entry, Ledger
from tests.support.ledger_project import LedgerProject
from tests.support.scripted_engine import block
from trainer.evaluation.metrics import TaskResult

CHECK = "score = float([each['text'] for each in apis.ledger.list_entries()] == ['hello'])"


class Elsewhere(Ledger):
    """It redirects to another server."""

    def __init__(self) -> None:
        self.target = ""
        super().__init__()

    def _routes(self) -> list[Any]:
        @get("/moved", operation_id="follow", summary="entries that are elsewhere")
        async def follow() -> Redirect:
            return Redirect(f"{self.target}/entries", status_code=307)

        return [*super()._routes(), follow]


@dataclass
class Servers:
    """Two ledgers of production: one of the API, one of some of its operations; and the one for trials."""

    project: LedgerProject
    live: Ledger = field(default_factory=Ledger)
    reports: Ledger = field(default_factory=Ledger)
    staging: Elsewhere = field(default_factory=Elsewhere)
    urls: dict[str, str] = field(default_factory=dict)

    async def put(self, reading: str, **document: Json) -> None:
        """The API, whose entries are read at another server."""
        described: dict[str, Any] = {**self.staging.document(self.urls["live"]), **document}
        described["paths"]["/entries"]["get"]["servers"] = [{"url": reading}]
        async with self.project.sessions.begin() as session:
            await apis.put(session, self.project.id, "ledger", source="upload", document=described, digest=reading)

    async def tried(self, code: str, server: str, variables: dict[str, str] | None = None) -> TaskResult:
        task = NewExamTask(instruction="write hello", check_code=CHECK, variables=variables or {})
        async with self.project.sessions.begin() as session:
            staging = {"ledger": {"server": server, "stateless": True}}
            await projects.change_settings(session, self.project.id, {"staging": staging})
            await exams.put(session, self.project.id, "mine", ExamSource.SUBMITTED, [task])
        [result] = await examined(self.project, "staging", lambda *_: block(code))
        return result

    @property
    def production_was_called(self) -> bool:
        return any((each.entries, each.reads) != ([], 0) for each in (self.live, self.reports))


@pytest.fixture
async def servers(project: LedgerProject) -> AsyncIterator[Servers]:
    opened = Servers(project)
    async with AsyncExitStack() as stack:
        for name in ("live", "reports", "staging"):
            opened.urls[name] = await stack.enter_async_context(getattr(opened, name).listening())
        await opened.put(opened.urls["reports"])
        yield opened


WRITE = "apis.ledger.add_entry(text='hello')\napis.supervisor.complete_task()"


async def test_an_operation_with_a_server_of_its_own_is_called_on_staging(servers: Servers) -> None:
    result = await servers.tried(WRITE, servers.urls["staging"])
    assert (result.known, result.success) == (True, True)
    assert (servers.staging.entries, servers.staging.reads) == ([Entry("hello")], 1)
    assert not servers.production_was_called


async def test_the_server_of_one_operation_is_production_too(servers: Servers) -> None:
    with pytest.raises(InvalidError, match=r"staging\.ledger\.server is at a server that tasks call, http"):
        await servers.tried(WRITE, servers.urls["reports"])
    assert not servers.production_was_called


async def test_another_scheme_of_the_same_host_and_port_is_production_too(servers: Servers) -> None:
    with pytest.raises(InvalidError, match="name one with another host or port"):
        await servers.tried(WRITE, servers.urls["live"].replace("http:", "https:"))


async def test_another_name_of_the_same_machine_is_production_too(servers: Servers) -> None:
    with pytest.raises(InvalidError, match="name one with another host or port"):
        await servers.tried(WRITE, servers.urls["live"].replace("127.0.0.1", "localhost"))


async def test_a_server_that_tasks_may_choose_is_production_whether_or_not_one_did(servers: Servers) -> None:
    await servers.put("https://{tenant}.shop.test/v1")
    for variables in ({"tenant": "acme"}, {"tenant": "other"}, {}):
        with pytest.raises(InvalidError, match=r"tasks call, https://\{tenant\}\.shop\.test/v1: .* as `server`"):
            await servers.tried(WRITE, "http://acme.shop.test", variables)


async def test_a_redirect_to_production_is_not_followed(servers: Servers) -> None:
    servers.staging.target = servers.urls["live"]
    follow = "try:\n    apis.ledger.follow()\nexcept ApiError:\n    apis.ledger.add_entry(text='hello')"
    result = await servers.tried(f"{follow}\napis.supervisor.complete_task()", servers.urls["staging"])
    assert result.success
    assert not servers.production_was_called


async def test_the_client_of_trials_reaches_no_other_server(servers: Servers) -> None:
    servers.staging.target = servers.urls["live"]
    staging = servers.urls["staging"]
    async with open_client(allow_private_hosts=True, only=[f"{staging}/v1"]) as client:
        assert (await client.get(f"{staging}/entries")).json() == []
        for url in (f"{servers.urls['live']}/entries", f"{staging}/moved"):
            with pytest.raises(httpx.ConnectError, match=r"a trial may not reach 127\.0\.0\.1"):
                await client.get(url, follow_redirects=True)
    assert not servers.production_was_called

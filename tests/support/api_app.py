"""The real HTTP application on a real database, without a runner: tests write the rows that it would write."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast
from uuid import UUID

import httpx
import msgspec
from litestar import Litestar

from app.apis.documents.reader import DocumentReader
from app.apis.mcp.connection import McpCommand
from app.base.settings import Settings
from app.base.values import Offer
from app.db import tables
from app.db.database import Sessions
from app.db.disk_space import DiskSpace
from app.db.notify import NotificationListener
from app.engine.client import ModelServer
from app.engine.dispatch import Occupancy
from app.engine.model_scope import ModelScope
from app.engine.replica import ReplicaState
from app.engine.tokenizer import ChatTokenizer
from app.machine.routes import ReadinessCheck
from app.processes.api import OpenDependencies, console_router, create_app
from app.processes.dependencies import Dependencies
from app.projects import keys
from app.projects import store as projects
from app.releases.adapter_store import AdapterDirectory, AdapterStore
from app.releases.promotion import FirstRelease, Promoter
from app.runs.datasets import DataRules, DatasetStore
from tests.support.recording_swapper import RecordingSwapper
from tests.support.shared_reader import shared_reader

BUSY = Occupancy({ReplicaState.LIVE: 2, ReplicaState.OUT: 1}, in_flight=3, waiting=4)
_SERVER = ModelServer(
    url="http://gpu-1:8000",
    state=ReplicaState.LIVE,
    cause="",
    in_flight=3,
    max_in_flight=64,
    adapters=("a" * 64,),
    most_adapters=4,
    version="0.19.1",
)
_LOST = "no connection to http://gpu-2:8000: is it running?"
SERVERS = (
    _SERVER,
    msgspec.structs.replace(
        _SERVER, url="http://gpu-2:8000", state=ReplicaState.OUT, cause=_LOST, in_flight=0, adapters=()
    ),
)
PROMPT = "the prompt's hash"
BASE_ALONE = FirstRelease(None, Path("model"), AdapterStore(Path("adapters")), base="seed")


class WakeRecorder:
    """Stands in for the broker: keeps the announced runs."""

    def __init__(self) -> None:
        self.runs: list[UUID] = []

    async def notify_workers(self, run_id: UUID) -> None:
        self.runs.append(run_id)


class StubSkillSearch:
    """Stands in for the skill library: finds the `offers` that the test has set."""

    def __init__(self) -> None:
        self.offers: list[Offer] = []

    async def find(
        self,
        project_id: UUID,  # noqa: ARG002
        instruction: str,  # noqa: ARG002
        scenario: str | None,  # noqa: ARG002
        limit: int,
        *,
        principal: str,  # noqa: ARG002
    ) -> list[Offer]:
        return self.offers[:limit]


class ApiApp(msgspec.Struct, frozen=True, kw_only=True):
    """`client` sends an administrator's key; `demo` is the only project."""

    app: Litestar
    client: httpx.AsyncClient
    sessions: Sessions
    demo: tables.Project
    wakes: WakeRecorder
    search: StubSkillSearch
    loads: RecordingSwapper

    async def key(self, *scopes: str, project_id: UUID | None = None) -> dict[str, str]:
        """Headers with a new key that has these scopes."""
        async with self.sessions.begin() as session:
            _, secret = await keys.create(session, "test", scopes, project_id)
        return {"Authorization": f"Bearer {secret}"}

    def reached_at(self, url: str) -> None:
        """As SAGE_PUBLIC_URL says it."""
        known = self.app.state["dependencies"]
        self.app.state["dependencies"] = msgspec.structs.replace(known, public_url=url.rstrip("/"))

    async def project(self, name: str) -> tables.Project:
        async with self.sessions.begin() as session:
            return await projects.create(session, name)

    async def submit(self, instruction: str = "tidy up", **fields: object) -> UUID:
        answer = await self.client.post("/v1/tasks", json={"instruction": instruction, **fields})
        assert answer.status_code == 202, answer.text
        return UUID(answer.json()["id"])


class _ReusableApp:
    """Its dependencies change from test to test: to build it takes longer than most tests."""

    def __init__(self) -> None:
        self.open: OpenDependencies
        self.app = create_app(lambda: self.open(), [console_router()])


_idle = list[_ReusableApp]()
_tls = httpx.create_ssl_context()


@asynccontextmanager
async def _running_app(open_dependencies: OpenDependencies) -> AsyncIterator[Litestar]:
    one = _idle.pop() if _idle else _ReusableApp()
    one.open = open_dependencies
    async with running(one.app):
        yield one.app
    _idle.append(one)


@asynccontextmanager
async def open_api_app(  # noqa: PLR0913  what a test replaces
    sessions: Sessions,
    database_url: str,
    checks: Mapping[str, ReadinessCheck] | None = None,
    directory: Path | None = None,
    data_rules: DataRules = DataRules(),  # noqa: B008  frozen
    http_client: httpx.AsyncClient | None = None,
    document_reader: DocumentReader | None = None,
    first_release: FirstRelease = BASE_ALONE,
    model_scope: ModelScope = ModelScope(),  # noqa: B008  frozen
    tokenizer: ChatTokenizer | None = None,
    chat_wait_seconds: float = 60.0,
    mcp_commands: Mapping[str, McpCommand] = MappingProxyType({}),
) -> AsyncIterator[ApiApp]:
    wakes, search, loads = WakeRecorder(), StubSkillSearch(), RecordingSwapper()
    async with sessions.begin() as session:
        demo = await projects.create(session, "demo")
        _, secret = await keys.create(session, "test admin", ["admin"])

    @asynccontextmanager
    async def open_dependencies() -> AsyncIterator[Dependencies]:
        async with (
            NotificationListener(database_url, ping_seconds=1.0) as listener,
            httpx.AsyncClient(verify=_tls, timeout=300) as own_client,
        ):
            yield Dependencies(
                sessions=sessions,
                listener=listener,
                library=search,
                promoter=Promoter(sessions, loads, PROMPT),
                first_release=first_release,
                adapters=AdapterDirectory(directory or Path("adapters"), base="seed"),
                notify_workers=wakes.notify_workers,
                http_client=http_client or own_client,
                document_reader=document_reader or shared_reader(),
                readiness_checks=checks or {},
                occupancy=lambda: BUSY,
                model_servers=lambda: SERVERS,
                disks=DiskSpace(sessions, Settings(data_dir=directory or Path(), database_url=database_url)).disks,
                datasets=DatasetStore((directory or Path("data")) / "datasets"),
                data_rules=data_rules,
                model_scope=model_scope,
                tokenizer=tokenizer,
                chat_wait_seconds=chat_wait_seconds,
                mcp_commands=mcp_commands,
                public_url="http://test",
            )

    headers = {"Authorization": f"Bearer {secret}"}
    async with _running_app(open_dependencies) as app, asgi_client(app, headers) as client:
        yield ApiApp(
            app=app,
            client=client,
            sessions=sessions,
            demo=demo,
            wakes=wakes,
            search=search,
            loads=loads,
        )


@asynccontextmanager
async def running(app: Litestar) -> AsyncIterator[None]:
    """Runs the lifespan in a task of its own: pytest may leave a fixture in another task than it entered it."""
    up, down = asyncio.Event(), asyncio.Event()

    async def live() -> None:
        async with app.lifespan():
            up.set()
            await down.wait()

    living = asyncio.create_task(live())
    await asyncio.wait([living, asyncio.create_task(up.wait())], return_when=asyncio.FIRST_COMPLETED)
    if not living.done():
        yield
    down.set()
    await living


def asgi_client(app: Litestar, headers: dict[str, str], base_url: str = "http://test") -> httpx.AsyncClient:
    transport = httpx.ASGITransport(cast("Any", app))
    return httpx.AsyncClient(transport=transport, base_url=base_url, headers=headers)


def problem(answer: httpx.Response) -> dict[str, object]:
    """The body of an error response, after checking its form."""
    assert answer.headers["content-type"].startswith("application/problem+json"), answer.text
    body: dict[str, object] = answer.json()
    assert body["status"] == answer.status_code
    assert {"type", "title", "detail", "error"} <= body.keys()
    return body

"""Everything that a deployment consists of, as `sage up` and its services run it, with a proxy on each connection.

PostgreSQL is the embedded one under its own watcher, so that a proxy fits before it; the model server, under the
supervisor of `sage up`, is scripted, and the live API counts the writes that arrive.
"""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
import msgspec
from sqlalchemy import make_url

from app.base.settings import Settings
from app.db.database import Sessions, open_database
from app.machine.local_database import run_database
from app.machine.supervise import ChildProcess, Supervisor
from tests.support.cut_proxy import Address, CutProxy
from tests.support.encryption_keys import TEST_KEY, TEST_KEYS
from tests.support.ledger import Ledger
from tests.support.ledger_project import ledger_key
from tests.support.processes import command_of, descendants, free_ports
from tests.support.scripted_engine import byte_tokenizer

RUNNERS = 2
LEASE_SECONDS = 2.0
_HANG_SECONDS = 6.0


class Deployment(msgspec.Struct, frozen=True):
    """A running one. `proxies` are those to the `database`, the `engine` and the `api`."""

    ledger: Ledger
    client: httpx.AsyncClient
    sessions: Sessions
    """Not through the proxy."""
    proxies: Mapping[str, CutProxy]
    disk: Path
    up: asyncio.subprocess.Process

    def pids(self, command: str) -> list[int]:
        """Of processes of `sage up` and of the model server, oldest first."""
        return sorted(pid for pid in descendants(os.getpid()) if command in command_of(pid))

    def postgres(self) -> list[int]:
        """The server, and its processes; none while it is down."""
        try:
            server = int((self.disk / "db" / "postgres" / "postmaster.pid").read_text().split()[0])
        except (OSError, ValueError, IndexError):
            return []
        return [server, *sorted(descendants(server))]

    async def ready(self) -> str:
        """What is not, "" if nothing."""
        try:
            answer = await self.client.get("/readyz", timeout=10)
        except httpx.HTTPError as error:
            return type(error).__name__
        return "" if answer.status_code == httpx.codes.OK else answer.text


@asynccontextmanager
async def deployed(directory: Path, disk: Path, **env: str) -> AsyncIterator[Deployment]:
    """Start it, with what it keeps on `disk`, and wait until it is ready. `env` are settings of `sage up`."""
    ledger, model = Ledger(pause=0.02), directory / "model"
    byte_tokenizer(model)
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        url = await enter(run_database(Settings(data_dir=disk / "db", secret_key=TEST_KEY)))
        sockets = Path(stack.enter_context(TemporaryDirectory(prefix="sage-chaos-")))
        sockets.chmod(0o755)  # noqa: ASYNC240  PostgreSQL has a user of its own
        target = Path(str(make_url(url).query["host"])) / ".s.PGSQL.5432"
        engine_port, port = free_ports(2)
        proxies = {
            "database": await enter(CutProxy(Address(target), sockets / ".s.PGSQL.5432")),
            "engine": await enter(CutProxy(Address(engine_port))),
        }
        services = await enter(ledger.listening())
        proxies["api"] = await enter(CutProxy(Address(int(services.rpartition(":")[2]))))
        supervisor = Supervisor(directory / "services", hang_seconds=_HANG_SECONDS)
        stack.push_async_callback(supervisor.stop)
        await supervisor.start([_engine(engine_port, model)])
        database = await enter(open_database(url, keys=TEST_KEYS))
        key = await ledger_key(database.sessions, ledger, proxies["api"].url, "admin")
        proxied = make_url(url).update_query_dict({"host": str(sockets)}).render_as_string()
        given = _settings(disk / "data", proxied, port, proxies["engine"].url, model) | env
        up = await enter(_up(given, directory / "up.log"))
        client = httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=10, trust_env=False)
        client.headers["Authorization"] = f"Bearer {key}"
        deployment = Deployment(ledger, await enter(client), database.sessions, proxies, disk, up)
        await _until_ready(deployment)
        yield deployment


def _engine(port: int, model: Path) -> ChildProcess:
    health = f"http://127.0.0.1:{port}/health"
    argv = (sys.executable, "-m", "tests.support.chaos_engine", str(port), str(model))
    return ChildProcess(name="engine", argv=argv, env=dict(os.environ), ready=health, alive=health)


def _settings(data: Path, database: str, port: int, engine: str, model: Path) -> dict[str, str]:
    return {
        **os.environ,
        "DATABASE_URL": database,
        "ENGINE_URLS": engine,
        "SAGE_DATA_DIR": str(data),
        "SAGE_DEMO_PORT": "0",
        "SAGE_HANG_SECONDS": str(_HANG_SECONDS),
        "SAGE_LEASE_SECONDS": str(LEASE_SECONDS),
        "SAGE_MODEL": str(model),
        "SAGE_PORT": str(port),
        "SAGE_PROMPT_PROFILE": "compact",
        "SAGE_RETRIEVAL": "query_ngram",
        "SAGE_RUNNERS": str(RUNNERS),
        "SAGE_SECRET_KEY": TEST_KEY,
    }


@asynccontextmanager
async def _up(env: Mapping[str, str], log: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    with log.open("ab") as output:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "app.cli", "up", env=env, stdout=output, stderr=output
        )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def _until_ready(deployment: Deployment) -> None:
    while await deployment.ready():
        assert deployment.up.returncode is None, "`sage up` ended: its log says why"
        await asyncio.sleep(0.2)

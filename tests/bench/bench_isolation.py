"""Response times of the API while tasks try to stop the server, beside those without.

    python -m tests.bench.bench_isolation [--seconds 15] [--runners 2] [--only WORD] [--apart]

The API, the runners and an embedded PostgreSQL as in production, a model server with scripted answers, and live
APIs of which one is hostile. The response time is that of `GET /v1/tasks`, from a process of its own: idle, under
honest tasks, twice, and under each kind of attack. Give it a machine of its own. With `--apart` the API and that
process have one core, and all else the others, as on hosts of their own.
"""

import asyncio
import json
import os
import statistics
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
import httpx
import msgspec
import uvicorn
from litestar import Litestar

from app.db import postgres
from app.db.database import open_database
from app.db.migrate import migrate
from app.machine.supervise import ChildProcess, Supervisor
from app.projects import keys
from app.projects import store as projects
from tests.bench.isolation_attacks import Attack, attacks, hostile_services
from tests.bench.results_file import write_results
from tests.processes.test_asgi import environment
from tests.support.encryption_keys import TEST_KEYS
from tests.support.ledger import Ledger
from tests.support.processes import free_ports
from tests.support.scripted_engine import Answer, ScriptedEngine, block, byte_tokenizer
from tests.support.scripted_server import scripted_server

_TASKS = 48  # of an attack, so that there are always some
_API_CORE = 0
_ON_API_CORE = list[str]()  # before a command: it runs on the API's core
_HONEST = "print(len(apis.ledger.list_entries()))\napis.supervisor.complete_task()"


class Phase(msgspec.Struct, frozen=True):
    """Milliseconds of `GET /v1/tasks` in one phase."""

    name: str
    requests: int
    p50: float
    p99: float
    worst: float


@click.command()
@click.option("--seconds", default=15.0, show_default=True, help="of each phase")
@click.option("--runners", default=len(os.sched_getaffinity(0)), show_default=True)
@click.option("--only", default="", help="attacks whose name has this word")
@click.option("--apart", is_flag=True, help="a core for the API alone")
def main(seconds: float, runners: int, only: str, *, apart: bool) -> None:
    """Measure how flat the API's response times stay."""
    if apart:
        os.sched_setaffinity(0, os.sched_getaffinity(0) - {_API_CORE})
        _ON_API_CORE.extend(("taskset", "--cpu-list", str(_API_CORE)))
    with TemporaryDirectory(prefix="sage-isolation-") as directory:
        phases = asyncio.run(_measure(Path(directory), seconds, runners, only))
    idle, honest = phases[0], max(each.p99 for each in phases[1:3])
    for each in phases:
        print(f"{each.name:45} p50 {each.p50:7.1f}  p99 {each.p99:7.1f}  worst {each.worst:7.1f} ms", end="")
        print(f"  p99: {each.p99 / idle.p99:4.1f} x idle, {each.p99 / honest:4.1f} x honest")
    write_results(
        "isolation_apart" if apart else "isolation",
        {"seconds": seconds, "runners": runners, "phases": msgspec.to_builtins(phases)},
    )


async def _measure(directory: Path, seconds: float, runners: int, only: str) -> list[Phase]:
    async with AsyncExitStack() as stack:
        codes: dict[str, str] = {"honest": _HONEST}
        stage = await stack.enter_async_context(open_stage(directory, codes, runners))
        phases = [await stage.phase("idle", seconds)]
        phases.append(await stage.under_tasks("honest load", "honest", seconds))
        phases.append(await stage.under_tasks("honest load again", "honest", seconds))
        for attack in attacks(stage.hostile):
            if only in attack.name:
                codes["attack"] = attack.code
                phases.append(await stage.under_attack(attack, seconds))
                print(phases[-1], flush=True)
    return phases


class Stage(msgspec.Struct):
    """The running server and a client of it."""

    client: httpx.AsyncClient
    key: str
    hostile: str

    async def phase(self, name: str, seconds: float) -> Phase:
        url = f"{self.client.base_url}v1/tasks"
        command = (*_ON_API_CORE, sys.executable, "-m", "tests.bench.latency_probe", url, self.key, str(seconds))
        probe = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        times: list[float] = sorted(json.loads((await probe.communicate())[0]))
        return Phase(name, len(times), statistics.median(times), times[int(0.99 * len(times))], times[-1])

    async def under_tasks(self, name: str, word: str, seconds: float) -> Phase:
        """While tasks of the script `word` are executed."""
        load = asyncio.create_task(self._keep_submitting(word))
        await asyncio.sleep(1)
        measured = await self.phase(name, seconds)
        load.cancel()
        await self._end_tasks()
        return measured

    async def under_attack(self, attack: Attack, seconds: float) -> Phase:
        if attack.document is not None:
            accepted = await self._register(attack.document)
            if not attack.code or not accepted:
                return await self._under_registrations(attack, seconds)
        return await self.under_tasks(attack.name, "attack", seconds)

    async def _under_registrations(self, attack: Attack, seconds: float) -> Phase:
        async def keep_registering() -> None:
            while True:
                await self._register(attack.document or {})

        load = asyncio.create_task(keep_registering())
        await asyncio.sleep(1)
        measured = await self.phase(f"{attack.name}, registered", seconds)
        load.cancel()
        return measured

    async def _register(self, document: dict[str, Any]) -> bool:
        body = {"project": "demo", "name": "hostile", "document": document}
        return (await self.client.post("/v1/apis", json=body)).is_success

    async def _keep_submitting(self, word: str) -> None:
        while True:
            if len(await self._open_tasks()) < _TASKS // 2:
                body = {"tasks": [{"instruction": f"{word} now", "use_skills": False}] * _TASKS}
                (await self.client.post("/v1/tasks", json=body)).raise_for_status()
            await asyncio.sleep(0.5)

    async def _open_tasks(self) -> Sequence[str]:
        found: list[str] = []
        for state in ("accepted", "running"):
            answer = await self.client.get("/v1/tasks", params={"state": state, "limit": 100})
            found += [task["id"] for task in answer.json()["tasks"]]
        return found

    async def _end_tasks(self) -> None:
        """Cancel them, so that the next phase starts with an idle server."""
        async with asyncio.timeout(300):
            while ids := await self._open_tasks():
                for task_id in ids:
                    await self.client.post(f"/v1/tasks/{task_id}/cancel")
                await asyncio.sleep(0.5)


@asynccontextmanager
async def open_stage(directory: Path, codes: dict[str, str], runners: int) -> AsyncIterator[Stage]:
    """`codes`: what the tasks whose instruction begins with a word execute in each turn."""

    def script(prompt: str, _: int) -> Answer:
        word = "attack" if "attack now" in prompt else "honest"
        return block(codes[word])

    [port] = free_ports(1)
    database = directory / "postgres"
    async with AsyncExitStack() as stack:
        url = postgres.start(database)
        stack.callback(postgres.stop, database)
        migrate(url)
        ledger = Ledger()
        engine = ScriptedEngine(byte_tokenizer(directory / "model"), script=script)
        env = environment(directory / "model", url, port) | {
            "ENGINE_URLS": await stack.enter_async_context(scripted_server(engine)),
            "SAGE_DATA_DIR": str(directory),
            "SAGE_ALLOW_PRIVATE_HOSTS": "true",
            "SAGE_PROMPT_PROFILE": "compact",
            "SAGE_RETRIEVAL": "query_ngram",
        }
        services = await stack.enter_async_context(ledger.listening())
        hostile = await stack.enter_async_context(listening(hostile_services()))
        key = await _prepare(url)
        base = f"http://127.0.0.1:{port}/"
        supervisor = Supervisor(directory / "logs")
        stack.push_async_callback(supervisor.stop)
        await supervisor.start(_processes(env, f"{base}readyz", runners))
        await supervisor.ready()
        headers = {"Authorization": f"Bearer {key}"}
        client = httpx.AsyncClient(base_url=base, headers=headers, timeout=300, trust_env=False)
        stage = Stage(await stack.enter_async_context(client), key, hostile)
        body = {"project": "demo", "name": "ledger", "document": ledger.document(services)}
        (await stage.client.post("/v1/apis", json=body)).raise_for_status()
        yield stage


async def _prepare(url: str) -> str:
    async with open_database(url, keys=TEST_KEYS) as database, database.sessions.begin() as session:
        await projects.create(session, "demo")
        return (await keys.create(session, "bench", ["admin"]))[1]


def _processes(env: dict[str, str], ready: str, runners: int) -> Iterator[ChildProcess]:
    """As `sage up` starts them."""
    sage = (sys.executable, "-m", "app.cli")
    yield ChildProcess(name="api", argv=(*_ON_API_CORE, *sage, "serve"), env=env, ready=ready)
    for number in range(runners):
        yield ChildProcess(name=f"runner-{number + 1}", argv=(*sage, "runner"), env=env)


@asynccontextmanager
async def listening(app: Litestar) -> AsyncIterator[str]:
    [port] = free_ports(1)
    server = uvicorn.Server(uvicorn.Config(app, port=port, lifespan="off", ws="none", log_level="critical"))
    serving = asyncio.create_task(server.serve())
    yield f"http://127.0.0.1:{port}"
    server.should_exit = True
    await serving


if __name__ == "__main__":
    main()

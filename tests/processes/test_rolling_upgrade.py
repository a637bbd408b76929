"""Processes of two versions, whose prompts differ, while one replaces the other under load."""

import asyncio
import re
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.db.database import Sessions
from app.engine.tokenizer import ChatTokenizer
from tests.processes.test_asgi import environment, sage_process, until_up
from tests.support.ledger import Ledger
from tests.support.ledger_project import ledger_key, until
from tests.support.processes import free_ports
from tests.support.scripted_engine import Answer, ScriptedEngine, block, byte_tokenizer
from tests.support.scripted_server import scripted_server

WRITES, USERS = 3, 6
OLD, NEW = {"SAGE_PROMPT_PROFILE": "compact"}, {"SAGE_PROMPT_PROFILE": "full"}


def script(prompt: str, turn: int) -> Answer:
    """A write in each turn, under either prompt."""
    words = re.findall(r"write (t\w+) now", prompt)
    if turn < WRITES:
        return block(f"mine = apis.ledger.add_entry(text='{words[-1]} {turn}')['id']")
    return block("apis.supervisor.complete_task(answer=mine)")


class Slow(ScriptedEngine):
    """Takes so long that a restart meets tasks in all their turns."""

    async def _next(self, prompt: str) -> Answer:
        await asyncio.sleep(0.3)
        return await super()._next(prompt)


class Held(Slow):
    """Lets no task go beyond its first turn until `gate` is open."""

    def __init__(self, tokenizer: ChatTokenizer, **given: Any) -> None:
        super().__init__(tokenizer, **given)
        self.gate = asyncio.Event()

    async def _next(self, prompt: str) -> Answer:
        if prompt.count("<|im_start|>assistant") > 1:
            await self.gate.wait()
        return await super()._next(prompt)


class Balancer:
    """Sends each request to the next API that was ready when it was last asked, as a load balancer does.

    It drops idle connections before the API does, and holds a request back while no API is ready.
    """

    def __init__(self, key: str) -> None:
        self.failed: list[str] = []
        self.sent = 0
        self._key = key
        self._ready: dict[str, httpx.AsyncClient] = {}

    @asynccontextmanager
    async def checking(self, *ports: int) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            headers = {"Authorization": f"Bearer {self._key}"}
            urls = [f"http://127.0.0.1:{port}" for port in ports]
            limits = httpx.Limits(keepalive_expiry=2)
            options: dict[str, Any] = {"headers": headers, "limits": limits, "timeout": 30, "trust_env": False}
            apis = [httpx.AsyncClient(base_url=url, **options) for url in urls]
            checks = [asyncio.create_task(self._check(await stack.enter_async_context(api))) for api in apis]
            yield
            for check in checks:
                check.cancel()
            await asyncio.wait(checks)  # before their clients are closed

    async def ready(self, port: int) -> bool:
        return f"http://127.0.0.1:{port}" in self._ready

    async def send(self, method: str, path: str, **more: Any) -> Any:
        self.sent += 1
        try:
            await until(lambda: bool(self._ready))
            apis = list(self._ready.values())
            answer = await apis[self.sent % len(apis)].request(method, path, **more)
            answer.raise_for_status()
        except (httpx.HTTPError, TimeoutError) as error:
            self.failed.append(f"{method} {path}: {type(error).__name__} {error}")
            return None
        return answer.json()

    async def _check(self, api: httpx.AsyncClient) -> None:
        while True:
            url, ready = str(api.base_url).rstrip("/"), False
            with suppress(httpx.HTTPError):
                ready = (await api.get("/readyz")).status_code == httpx.codes.OK
            self._ready.pop(url, None)
            if ready:
                self._ready[url] = api
            await asyncio.sleep(0.2)


async def use(balancer: Balancer, name: str, ended: list[dict[str, Any]], stop: asyncio.Event) -> None:
    """Submits one task after the other, each when the one before has ended, up to one that is refused."""
    count = 0
    while not stop.is_set():
        new = {"instruction": f"write {name}x{count} now", "use_skills": False}
        task = await balancer.send("POST", "/v1/tasks", json=new)
        while task and not task.get("finished_at"):
            await asyncio.sleep(0.2)
            task = await balancer.send("GET", f"/v1/tasks/{task['id']}")
        if task is None:
            ended.append({"state": "refused"})
            return
        ended.append(task)
        count += 1


async def leave(process: asyncio.subprocess.Process) -> None:
    process.send_signal(signal.SIGTERM)
    assert await process.wait() == 0


@pytest.mark.slow
async def test_a_rolling_upgrade_loses_no_task_repeats_no_write_and_refuses_no_request(
    committed: Sessions, database_url: str, tmp_path: Path
) -> None:
    ledger, engine = Ledger(pause=0.01), Slow(byte_tokenizer(tmp_path), script=script)
    old_port, new_port = free_ports(2)
    tasks, stop = list[dict[str, Any]](), asyncio.Event()
    async with AsyncExitStack() as stack:
        services = await stack.enter_async_context(ledger.listening())
        balancer = Balancer(await ledger_key(committed, ledger, services, "tasks"))
        env = environment(tmp_path, database_url) | {
            "ENGINE_URLS": await stack.enter_async_context(scripted_server(engine)),
            "SAGE_LEASE_SECONDS": "20",
            "SAGE_DRAIN_SECONDS": "1",
            "SAGE_SHUTDOWN_DELAY_SECONDS": "6",
        }

        async def start(command: str, version: dict[str, str], port: int = 0) -> asyncio.subprocess.Process:
            own = env | version | ({"SAGE_PORT": str(port)} if port else {})
            return await stack.enter_async_context(sage_process(command, own))

        old = [await start("runner", OLD), await start("runner", OLD), await start("serve", OLD, old_port)]
        await stack.enter_async_context(balancer.checking(old_port, new_port))
        await until(lambda: balancer.ready(old_port))
        load = asyncio.gather(*(use(balancer, f"t{user}", tasks, stop) for user in range(USERS)))
        await until(lambda: len(ledger.entries) > 10)
        await start("runner", NEW)
        await start("serve", NEW, new_port)
        await until(lambda: balancer.ready(new_port))
        for process in old:
            await leave(process)
        seen = len(ledger.entries)
        await until(lambda: len(ledger.entries) > seen + 10 and len(tasks) > 2 * USERS)
        stop.set()
        await load
        failures = [each for task in tasks for each in await failures_of(balancer, task)]
    assert failures == []
    assert balancer.failed == []
    assert {task["state"] for task in tasks} == {"done"}
    written = Counter(entry.text for entry in ledger.entries)
    assert written == Counter(f"{word_of(task)} {turn}" for task in tasks for turn in range(WRITES))
    assert len(tasks) > 2 * USERS
    assert len({task["prompt_hash"] for task in tasks}) == 2


def word_of(task: dict[str, Any]) -> str:
    return str(task["instruction"]).split()[1]


async def failures_of(balancer: Balancer, task: dict[str, Any]) -> list[str]:
    """What went wrong in its turns."""
    if "id" not in task:
        return [f"{task}"]
    shown = await balancer.send("GET", f"/v1/tasks/{task['id']}/trajectory", params={"tokens": "false"})
    return [turn["observation"] for turn in shown["turns"] if turn["outcome"] != "ok"]


async def test_a_runner_that_drains_is_not_ready_at_once_and_lets_its_task_end(
    committed: Sessions, database_url: str, tmp_path: Path
) -> None:
    ledger, engine = Ledger(), Held(byte_tokenizer(tmp_path), script=script)
    (port,) = free_ports(1)
    async with (
        ledger.listening() as services,
        scripted_server(engine) as model,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=300, trust_env=False) as client,
    ):
        client.headers["Authorization"] = f"Bearer {await ledger_key(committed, ledger, services, 'tasks')}"
        env = environment(tmp_path, database_url, port) | OLD
        env |= {"ENGINE_URLS": model, "SAGE_DRAIN_SECONDS": "60"}
        async with sage_process("serve", env) as api, sage_process("runner", env) as runner:
            await until_up(client, api)
            answer = await client.post("/v1/tasks", json={"instruction": "write t0 now", "use_skills": False})
            await until(lambda: len(ledger.entries) == 1)
            runner.send_signal(signal.SIGTERM)
            await until(lambda: shutting_down(client))
            assert runner.returncode is None
            engine.gate.set()
            assert await runner.wait() == 0
            task = (await client.get(f"/v1/tasks/{answer.json()['id']}")).json()
    assert (task["state"], task["attempt"]) == ("done", 1)


async def shutting_down(client: httpx.AsyncClient) -> bool:
    return "shutting down" in (await client.get("/readyz")).json()["components"]["runners"]

"""Killing the API and its runner while tasks run loses no task and repeats no write."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from app.db.database import Sessions
from tests.processes.test_asgi import environment, sage_process, until_up
from tests.support.ledger import Ledger
from tests.support.ledger_project import ledger_key, until
from tests.support.processes import free_ports
from tests.support.runner_process import CONCURRENCY, script
from tests.support.scripted_engine import ScriptedEngine, byte_tokenizer
from tests.support.scripted_server import scripted_server

TASKS = 20
WRITES = 5


@asynccontextmanager
async def server(env: Mapping[str, str]) -> AsyncIterator[asyncio.subprocess.Process]:
    """The API, and one runner with it. Both are killed with SIGKILL at the end of the block."""
    async with sage_process("serve", env) as api, sage_process("runner", env):
        yield api


async def test_after_two_kills_every_task_ends_and_no_write_is_repeated(
    committed: Sessions, database_url: str, tmp_path: Path
) -> None:
    ledger, engine = Ledger(pause=0.02), ScriptedEngine(byte_tokenizer(tmp_path), script=script)
    (port,) = free_ports(1)
    async with (
        ledger.listening() as services,
        scripted_server(engine) as model,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=300, trust_env=False) as client,
    ):
        client.headers["Authorization"] = f"Bearer {await ledger_key(committed, ledger, services, 'tasks')}"
        env = environment(tmp_path, database_url, port) | {
            "ENGINE_URLS": model,
            "SAGE_PROMPT_PROFILE": "compact",
            "SAGE_LEASE_SECONDS": "2",
            "SAGE_MAX_TASKS_IN_FLIGHT": str(CONCURRENCY),
        }
        async with server(env) as api:
            await until_up(client, api)
            new = [{"instruction": f"write t{n} now", "use_skills": False} for n in range(TASKS)]
            (await client.post("/v1/tasks", json={"tasks": new})).raise_for_status()
            await until(lambda: _written(ledger, 15))
        async with server(env):
            await until(lambda: _written(ledger, 45))
        async with server(env) as api:
            await until_up(client, api)
            await until(lambda: _all_ended(client))
            ended = await _tasks(client)
    assert len(ended) == TASKS
    _check_nothing_was_lost(ended, ledger)


def _check_nothing_was_lost(ended: list[dict[str, Any]], ledger: Ledger) -> None:
    written = Counter(" ".join(entry.text.split()[:2]) for entry in ledger.entries)
    assert set(written.values()) == {1}, "no write was repeated"
    assert {task["stop_reason"] for task in ended} <= {"completed", "in_doubt", "crashed"}
    crashed = [task for task in ended if task["state"] != "done"]
    assert len(crashed) <= 1, "only one that ran alone when its second runner was killed"
    completed = [task for task in ended if task["stop_reason"] == "completed"]
    assert len(completed) >= TASKS - 2 * CONCURRENCY
    for task in completed:
        word = task["instruction"].split()[1]
        mine = [number for number, entry in enumerate(ledger.entries, 1) if entry.text.startswith(f"{word} ")]
        assert task["answer"] == mine, "its answer is the numbers that the ledger returned, one per write"
        assert len(mine) == WRITES


async def _written(ledger: Ledger, count: int) -> bool:
    return len(ledger.entries) >= count


async def _tasks(client: httpx.AsyncClient) -> list[dict[str, Any]]:
    answer = await client.get("/v1/tasks", params={"limit": 100})
    answer.raise_for_status()
    listed: list[dict[str, Any]] = answer.json()["tasks"]
    return listed


async def _all_ended(client: httpx.AsyncClient) -> bool:
    return all(task["state"] not in ("accepted", "running") for task in await _tasks(client))

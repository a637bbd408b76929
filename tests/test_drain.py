"""A runner that is told to end lets its tasks go on for a while."""

import asyncio
import re
import signal
from pathlib import Path

import httpx

from app.db.database import Sessions
from tests.ledger import Ledger
from tests.ledger_project import ledger_key, until
from tests.processes import free_ports
from tests.scripted_engine import Answer, ScriptedEngine, block, byte_tokenizer
from tests.scripted_server import scripted_server
from tests.test_asgi import environment, sage_process, until_up

WRITES = 3


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


async def test_a_runner_that_drains_is_not_ready_at_once_and_lets_its_task_end(
    committed: Sessions, database_url: str, tmp_path: Path
) -> None:
    ledger, engine = Ledger(), Slow(byte_tokenizer(tmp_path), script=script)
    (port,) = free_ports(1)
    async with (
        ledger.listening() as services,
        scripted_server(engine) as model,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=30, trust_env=False) as client,
    ):
        client.headers["Authorization"] = f"Bearer {await ledger_key(committed, ledger, services, 'tasks')}"
        env = environment(tmp_path, database_url, port)
        env |= {"ENGINE_URLS": model, "SAGE_DRAIN_SECONDS": "60"}
        async with sage_process("serve", env) as api, sage_process("runner", env) as runner:
            await until_up(client, api)
            answer = await client.post("/v1/tasks", json={"instruction": "write t0 now", "use_skills": False})
            await until(lambda: len(ledger.entries) == 1, 150)
            runner.send_signal(signal.SIGTERM)
            await until(lambda: shutting_down(client), 10)
            assert runner.returncode is None
            assert await runner.wait() == 0
            task = (await client.get(f"/v1/tasks/{answer.json()['id']}")).json()
    assert (task["state"], task["attempt"]) == ("done", 1)


async def shutting_down(client: httpx.AsyncClient) -> bool:
    return "shutting down" in (await client.get("/readyz")).json()["components"]["runners"]

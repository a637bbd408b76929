"""The server through a PgBouncer in transaction mode: two transactions may be on two of its connections."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest
from sqlalchemy import text

from app.base.errors import ConflictError
from app.base.loop import faults_by_part
from app.base.settings import Settings
from app.db.database import Database, Sessions, open_database
from app.db.lease import swap_lock
from app.db.notify import NotificationListener
from app.machine.doctor import check_addresses
from app.projects import store as projects
from tests.processes.test_asgi import environment, run, sage_process, until_up
from tests.support.ledger import Ledger
from tests.support.ledger_project import ledger_key, until
from tests.support.pgbouncer import pooled
from tests.support.processes import free_ports
from tests.support.runner_process import script
from tests.support.scripted_engine import ScriptedEngine, byte_tokenizer
from tests.support.scripted_server import scripted_server

TASKS, WRITES = 8, 5


@pytest.fixture(scope="module")
def pooled_url(database_url: str) -> Iterator[str]:
    with pooled(database_url) as url:
        yield url


@pytest.fixture
async def database(database_url: str, pooled_url: str) -> AsyncIterator[Database]:
    async with open_database(pooled_url, direct_url=database_url) as opened:
        yield opened


async def test_statements_are_never_found_missing_on_another_server_connection(database: Database) -> None:
    async def repeat(number: int) -> int:
        total = 0
        for _ in range(30):  # more often than the driver takes to prepare a statement
            async with database.sessions() as session:
                total += await session.scalar(text("SELECT CAST(:n AS int)"), {"n": number}) or 0
        return total

    assert await asyncio.gather(*map(repeat, range(15))) == [30 * number for number in range(15)]


async def test_a_swap_excludes_others_until_it_ends(committed: Sessions, database: Database) -> None:
    async with committed.begin() as session:
        project_id = (await projects.create(session, "swapped")).id
    async with swap_lock(database.sessions, project_id, 2):
        for _ in range(10):
            with pytest.raises(ConflictError, match="release 2 is being activated"):
                async with swap_lock(database.sessions, project_id, 3):
                    pass
    async with swap_lock(database.sessions, project_id, 3):
        pass


async def test_without_a_direct_address_a_server_refuses_to_start_and_names_the_setting(
    pooled_url: str, tmp_path: Path
) -> None:
    for command in ("serve", "runner"):
        status, out, err = await run("-m", "app.cli", command, env=environment(tmp_path, pooled_url))
        assert status != 0
        assert "set DATABASE_DIRECT_URL" in out + err
        assert "Traceback" not in out + err


async def test_a_pooler_found_after_the_start_is_not_ready_and_names_the_setting(
    database_url: str, pooled_url: str
) -> None:
    async with NotificationListener(pooled_url):
        await until(lambda: "DATABASE_DIRECT_URL" in faults_by_part().get("notifications", ""))
    async with NotificationListener(database_url) as listener:
        await asyncio.sleep(0.3)
        assert "notifications" not in faults_by_part()
        assert listener is not None


@pytest.mark.parametrize(
    ("through", "direct", "verdict"),
    [
        (False, None, "ok"),
        (True, None, "fault"),
        (True, False, "ok"),
        (True, True, "warning"),
        (False, True, "warning"),
    ],
)
def test_the_doctor_says_which_address_is_missing(
    database_url: str, pooled_url: str, through: bool, direct: bool | None, verdict: str
) -> None:
    urls = {False: database_url, True: pooled_url, None: ""}
    finding = check_addresses(Settings(database_url=urls[through], database_direct_url=urls[direct]))
    assert (finding.part, finding.verdict) == ("pooler", verdict)
    assert verdict == "ok" or "DATABASE_DIRECT_URL" in finding.text


async def test_tasks_events_and_locks_work_through_the_pooler(
    committed: Sessions, database_url: str, pooled_url: str, tmp_path: Path
) -> None:
    ledger, engine = Ledger(), ScriptedEngine(byte_tokenizer(tmp_path), script=script)
    (port,) = free_ports(1)
    async with (
        ledger.listening() as services,
        scripted_server(engine) as model,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=300, trust_env=False) as client,
    ):
        client.headers["Authorization"] = f"Bearer {await ledger_key(committed, ledger, services, 'admin')}"
        env = environment(tmp_path, pooled_url, port)
        env |= {"DATABASE_DIRECT_URL": database_url, "ENGINE_URLS": model, "SAGE_PROMPT_PROFILE": "compact"}
        async with sage_process("serve", env) as api, sage_process("runner", env):
            await until_up(client, api)
            new = [{"instruction": f"write t{n} now", "use_skills": n % 2 == 0} for n in range(TASKS)]
            accepted = (await client.post("/v1/tasks", json={"tasks": new})).raise_for_status().json()["tasks"]
            kinds = await asyncio.gather(*(streamed(client, task["id"]) for task in accepted))
            ended = [(await client.get(f"/v1/tasks/{task['id']}")).json() for task in accepted]
            released = (await client.get("/v1/releases")).raise_for_status().json()
            readiness = (await client.get("/readyz")).json()
    assert {task["stop_reason"] for task in ended} == {"completed"}
    assert len(ledger.entries) == TASKS * WRITES
    assert all(each[-1] == "done" and each.count("call") == WRITES + 1 for each in kinds)
    assert [release["state"] for release in released] == ["active"]
    assert readiness["ready"], readiness


async def streamed(client: httpx.AsyncClient, task_id: str) -> list[str]:
    """The kinds of a task's events, as they came."""
    kinds = []
    async with client.stream("GET", f"/v1/tasks/{task_id}/events", timeout=300) as stream:
        async for line in stream.aiter_lines():
            if line.startswith("event: "):
                kinds.append(line.removeprefix("event: "))
    return kinds

"""Approvals and webhooks of the deployed application, which is killed while a task waits."""

from pathlib import Path

import httpx
import pytest

from app.db.database import Sessions
from tests.processes.test_asgi import environment, until_up
from tests.processes.test_killed_api import server
from tests.support.approving import COMPLETE, WRITES
from tests.support.ledger import Ledger
from tests.support.ledger_project import ledger_key, until
from tests.support.processes import free_ports
from tests.support.scripted_engine import ScriptedEngine, block, byte_tokenizer
from tests.support.scripted_server import scripted_server
from tests.support.webhook_receiver import SECRET, WebhookReceiver, is_signed

WRITE = block("print(apis.ledger.add_entry(text='one'))")


@pytest.mark.slow
async def test_a_task_that_waits_outlives_its_processes_and_people_are_told_of_it(
    committed: Sessions, database_url: str, tmp_path: Path
) -> None:
    ledger, receiver = Ledger(), WebhookReceiver()
    engine = ScriptedEngine(byte_tokenizer(tmp_path), script=lambda _, turn: COMPLETE if turn else WRITE)
    (port,) = free_ports(1)
    async with (
        ledger.listening() as services,
        scripted_server(engine) as model,
        receiver.listening() as hook,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=300, trust_env=False) as client,
    ):
        client.headers["Authorization"] = f"Bearer {await ledger_key(committed, ledger, services, 'admin')}"
        env = environment(tmp_path, database_url, port) | {
            "ENGINE_URLS": model,
            "SAGE_PROMPT_PROFILE": "compact",
            "SAGE_LEASE_SECONDS": "2",
        }
        async with server(env) as api:
            await until_up(client, api)
            settings = {"approvals": WRITES, "webhook": {"url": hook, "secret": SECRET}}
            (await client.patch("/v1/projects/demo", json={"settings": settings})).raise_for_status()
            (await client.post("/v1/tasks", json={"instruction": "write one"})).raise_for_status()
            await until(lambda: receiver.count(1))
        async with server(env) as api:
            await until_up(client, api)
            [approval] = (await client.get("/v1/approvals?state=waiting")).json()["approvals"]
            path = f"/v1/approvals/{approval['id']}"
            (await client.post(path, json={"decision": "approve"})).raise_for_status()
            await until(lambda: _ended(receiver))
            task = (await client.get(f"/v1/tasks/{approval['task_id']}")).json()
    told = {each.headers["webhook-id"]: each.event for each in receiver.received}  # a kill may repeat a message
    assert [*told.values()] == ["approval.wanted", "task.done"]
    assert all(map(is_signed, receiver.received))
    assert (task["state"], task["stop_reason"]) == ("done", "completed")
    assert [entry.text for entry in ledger.entries] == ["one"]


async def _ended(receiver: WebhookReceiver) -> bool:
    return any(each.event == "task.done" for each in receiver.received)

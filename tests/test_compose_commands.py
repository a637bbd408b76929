"""The deployment of docker/compose.yaml without Docker: every command of ours is started, and a task is done.

Not started here: postgres and redis, whose place the tests' own PostgreSQL and folders take, and vLLM, which
tests/vllm starts with the same flags.
"""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.compose import PASSWORDS, read, service
from tests.composed import Composed, grace_of

OURS = {"migrate", "api", "worker", "model-server", "demo-apis"}
THE_SAME = {"worker-gpu": "worker", "embeddings": "model-server"}
ELSEWHERE = {"postgres", "redis", "vllm", "vllm-cpu"}
APPS = ("calendar", "contacts", "files", "mail", "music", "notes", "payments", "supervisor", "todo")


@pytest.fixture
async def composed(empty_database_url: str, tmp_path: Path) -> AsyncIterator[Composed]:
    composed = Composed(tmp_path, {**PASSWORDS, "DATABASE_URL": empty_database_url})
    try:
        yield composed
    finally:
        for name in list(composed.running):
            await composed.stop(name)


def test_every_service_is_either_started_below_or_is_said_to_be_tried_elsewhere() -> None:
    assert set(read()["services"]) == OURS | set(THE_SAME) | ELSEWHERE
    assert service("worker-gpu").argv == service("worker").argv
    module = ["python", "-m", "app.engine.embedded"]
    assert service("embeddings").argv[:3] == service("model-server").argv[:3] == module


async def test_the_commands_of_the_file_bring_up_a_server_that_does_a_task_and_attends_to_a_run(
    composed: Composed,
) -> None:
    ports = composed.ports
    assert "up to date" in await composed.run("migrate")
    await composed.start("model-server", ports["engine"])
    await composed.start("demo-apis", ports["demo-apis"])
    await composed.start("api", ports["api"])
    await composed.start("worker")
    await composed.healthy("model-server", ports["engine"])
    await composed.healthy("demo-apis", ports["demo-apis"])
    await composed.healthy("api", ports["api"])
    key = (await composed.run("api", "sage", "keys", "create", "admin")).strip()
    async with _client(ports["api"], key) as client:
        await _register(client, f"http://127.0.0.1:{ports['demo-apis']}")
        body = {"instruction": "archive every one of my mails from iris", "project": "demo"}
        task = await _ended(client, f"/v1/tasks/{(await _post(client, '/v1/tasks', body))['id']}")
        assert (task["state"], task["stop_reason"]) == ("done", "completed")
        run = await _post(client, "/v1/training-runs", {"project": "demo", "settings": {"kind": "logged"}})
        ended = await _ended(client, f"/v1/training-runs/{run['id']}")
        assert "no scored tasks" in ended["failure"], "the worker took it up, and found nothing to learn from"
    for name in list(composed.running):
        assert await composed.stop(name) < grace_of(name), f"Docker would kill {name}"


async def test_embeddings_come_from_the_command_that_serves_them_beside_vllm(composed: Composed) -> None:
    port = composed.ports["engine"]
    await composed.start("embeddings", port)
    await composed.healthy("embeddings", port)
    async with _client(port, "none is asked for") as client:
        answer = await _post(client, "/v1/embeddings", {"model": "all-MiniLM-L6-v2", "input": ["a mail"]})
    assert len(answer["data"][0]["embedding"]) == 384


def _client(port: int, key: str) -> httpx.AsyncClient:
    headers = {"Authorization": f"Bearer {key}"}
    return httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=60, trust_env=False)


async def _post(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> dict[str, Any]:
    answer = await client.post(path, json=body)
    assert answer.is_success, answer.text
    made: dict[str, Any] = answer.json()
    return made


async def _register(client: httpx.AsyncClient, services: str) -> None:
    await _post(client, "/v1/projects", {"name": "demo"})
    for app in APPS:
        url = f"{services}/sites/0/{app}/openapi.json"
        await _post(client, "/v1/apis", {"project": "demo", "name": app, "url": url})


async def _ended(client: httpx.AsyncClient, path: str) -> dict[str, Any]:
    async with asyncio.timeout(120):
        while True:
            found: dict[str, Any] = (await client.get(path)).json()
            if found["state"] not in ("accepted", "queued", "running"):
                return found
            await asyncio.sleep(0.2)

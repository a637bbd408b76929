"""The deployment of docker/compose.yaml without Docker: runs our commands from the file, and executes a task.

Not started here: postgres and redis, replaced by the tests' own PostgreSQL and by folders, and vLLM, which
tests/integration/vllm starts with the same flags.
"""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.compose_file import PASSWORDS, read, service
from tests.support.compose_processes import ComposeProcesses, grace_seconds
from tests.support.odd_endpoint import OddEndpoint, said

STARTED = {"migrate", "api", "runner", "worker", "model-server", "demo-apis"}
SAME_COMMAND = {"worker-gpu": "worker", "embeddings": "model-server"}
TESTED_ELSEWHERE = {"postgres", "redis", "vllm", "vllm-cpu"}
_CODE = "```python\napis.supervisor.complete_task(answer=42)\n```\n"
APPS = ("calendar", "contacts", "files", "mail", "music", "notes", "payments", "supervisor", "todo")


@pytest.fixture
async def composed(empty_database_url: str, tmp_path: Path) -> AsyncIterator[ComposeProcesses]:
    composed = ComposeProcesses(tmp_path, {**PASSWORDS, "DATABASE_URL": empty_database_url})
    try:
        yield composed
    finally:
        for name in list(composed.running):
            await composed.stop(name)


def test_every_service_is_started_below_or_listed_as_tested_elsewhere() -> None:
    assert set(read()["services"]) == STARTED | set(SAME_COMMAND) | TESTED_ELSEWHERE
    assert service("worker-gpu").argv == service("worker").argv
    module = ["python", "-m", "app.model_server"]
    assert service("embeddings").argv[:3] == service("model-server").argv[:3] == module


@pytest.mark.slow
async def test_the_commands_start_a_server_that_executes_a_task_and_a_run(
    composed: ComposeProcesses,
) -> None:
    ports = composed.ports
    assert "up to date" in await composed.run("migrate")
    await composed.start("model-server", ports["engine"])
    await composed.start("demo-apis", ports["demo-apis"])
    await composed.start("api", ports["api"])
    await composed.start("runner")
    await composed.start("worker")
    await composed.until_healthy("model-server", ports["engine"])
    await composed.until_healthy("demo-apis", ports["demo-apis"])
    await composed.until_healthy("api", ports["api"])
    key = (await composed.run("api", "sage", "keys", "create-admin")).strip()
    async with _client(ports["api"], key) as client:
        await _register(client, f"http://127.0.0.1:{ports['demo-apis']}")
        body = {"instruction": "archive every one of my mails from iris", "project": "demo"}
        task = await _ended(client, f"/v1/tasks/{(await _post(client, '/v1/tasks', body))['id']}")
        assert (task["state"], task["stop_reason"]) == ("done", "completed")
        run = await _post(client, "/v1/training-runs", {"project": "demo", "settings": {"kind": "exam"}})
        ended = await _ended(client, f"/v1/training-runs/{run['id']}")
        assert "own work is no exam" in ended["failure"], "the worker claimed it, and found nothing to examine on"
    for name in list(composed.running):
        assert await composed.stop(name) < grace_seconds(name), f"Docker would kill {name}"


@pytest.mark.slow
async def test_a_hosted_model_is_named_in_the_file_and_executes_a_task(composed: ComposeProcesses) -> None:
    ports, endpoint = composed.ports, OddEndpoint(lambda _: said(_CODE))
    async with endpoint.listening() as url:
        composed.values |= {"SAGE_MODEL_URL": url, "SAGE_MODEL": "wise-1", "SAGE_MODEL_KEY": "sk-of-the-endpoint"}
        await composed.run("migrate")
        await composed.start("model-server", ports["engine"])
        await composed.start("api", ports["api"])
        await composed.start("runner")
        await composed.until_healthy("model-server", ports["engine"])
        await composed.until_healthy("api", ports["api"])
        key = (await composed.run("api", "sage", "keys", "create-admin")).strip()
        async with _client(ports["api"], key) as client:
            await _post(client, "/v1/projects", {"name": "demo"})
            body = {"instruction": "say what it is", "project": "demo"}
            task = await _ended(client, f"/v1/tasks/{(await _post(client, '/v1/tasks', body))['id']}")
    assert (task["state"], task["answer"], task["release"]["model"]) == ("done", 42, "wise-1")
    assert endpoint.requests[-1]["model"] == "wise-1"
    assert endpoint.headers[-1]["authorization"] == "Bearer sk-of-the-endpoint"


async def test_the_embeddings_service_serves_embeddings(composed: ComposeProcesses) -> None:
    port = composed.ports["engine"]
    await composed.start("embeddings", port)
    await composed.until_healthy("embeddings", port)
    async with _client(port, "no key is needed") as client:
        answer = await _post(client, "/v1/embeddings", {"model": "all-MiniLM-L6-v2", "input": ["a mail"]})
    assert len(answer["data"][0]["embedding"]) == 384


def _client(port: int, key: str) -> httpx.AsyncClient:
    headers = {"Authorization": f"Bearer {key}"}
    return httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=300, trust_env=False)


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
    while True:
        found: dict[str, Any] = (await client.get(path)).json()
        if found["state"] not in ("accepted", "queued", "running"):
            return found
        await asyncio.sleep(0.2)

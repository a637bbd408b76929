"""The deployed application: in a process of its own, configured by settings only."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from app.db.database import Sessions
from app.projects import keys
from app.projects import store as projects
from tests.support.encryption_keys import TEST_KEY
from tests.support.faulty_proxy import Reply, faulty_proxy
from tests.support.processes import free_ports
from tests.support.scripted_engine import byte_tokenizer

READYZ_PROGRAM = """
import asyncio, sys, httpx
from app.processes.api import app
HEAVY = ("torch", "transformers", "peft", "sentence_transformers", "accelerate", "trainer")
assert not [name for name in HEAVY if name in sys.modules], "imported with the application"

async def main():
    application = app()
    async with application.lifespan():
        transport = httpx.ASGITransport(application)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            print((await client.get("/readyz")).text)
            assert (await client.get("/v1/tasks")).status_code == 401
asyncio.run(main())
assert not [name for name in HEAVY if name in sys.modules], "imported by a request"
print("light")
"""


def environment(directory: Path, database_url: str, port: int = 0) -> dict[str, str]:
    byte_tokenizer(directory)
    return {
        **os.environ,
        "DATABASE_URL": database_url,
        "ENGINE_URLS": "http://127.0.0.1:9",
        "SAGE_MODEL": str(directory),
        "SAGE_SECRET_KEY": TEST_KEY,
        "SAGE_PORT": str(port or free_ports(1)[0]),
    }


async def run(*argv: str, env: Mapping[str, str]) -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, *argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        out, err = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()  # otherwise it claims the tasks of later tests
    return process.returncode or 0, out.decode(), err.decode()


@asynccontextmanager
async def sage_process(
    command: str, env: Mapping[str, str], stop: signal.Signals = signal.SIGKILL
) -> AsyncIterator[asyncio.subprocess.Process]:
    """`sage COMMAND`, ended at the end of the block."""
    words = ("tests.support.patient_runner",) if command == "runner" else ("app.cli", command)
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", *words, env=env)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.send_signal(stop)
        await process.wait()


async def until_up(client: httpx.AsyncClient, server: asyncio.subprocess.Process) -> None:
    """Wait for the server's first answer, which takes long on a loaded machine. Fails if the server ends."""
    while True:
        assert server.returncode is None, "the server ended: its output says why"
        try:
            await client.get("/healthz")
        except httpx.TransportError:
            await asyncio.sleep(0.1)
        else:
            return


async def test_serving_imports_no_torch_and_readyz_names_what_is_not_ready(
    database_url: str, tmp_path: Path
) -> None:
    status, out, err = await run("-c", READYZ_PROGRAM, env=environment(tmp_path, database_url))
    assert (status, out.splitlines()[-1]) == (0, "light"), err
    assert '"database":"ready"' in out
    assert "start one with `sage runner`" in out
    assert "ENGINE_URLS" in out


@pytest.mark.parametrize("command", ["serve", "runner"])
@pytest.mark.parametrize("name", ["DATABASE_URL", "ENGINE_URLS", "SAGE_SECRET_KEY"])
async def test_a_missing_setting_is_reported_without_a_traceback(
    name: str, command: str, database_url: str, tmp_path: Path
) -> None:
    env = environment(tmp_path, database_url) | {name: "", "SAGE_DATA_DIR": str(tmp_path)}
    status, out, err = await run("-m", "app.cli", command, env=env)
    assert status != 0
    assert name in out + err
    assert "Traceback" not in out + err


async def test_an_unusable_model_server_prevents_the_start_and_the_error_says_what_to_change(
    database_url: str, tmp_path: Path
) -> None:
    async def other(path: str, *_: object) -> Reply:
        return 200, {"version": "1"} if path == "/version" else {"data": [{"id": "llama"}]}

    async with faulty_proxy("http://127.0.0.1:9", other) as server:
        env = environment(tmp_path, database_url) | {"ENGINE_URLS": server.url}
        status, out, err = await run("-m", "app.cli", "serve", env=env)
    assert status != 0
    assert "--served-model-name base" in out + err
    assert "Traceback" not in out + err


async def test_sigterm_stops_the_api_within_seconds_despite_an_open_stream(
    committed: Sessions, database_url: str, tmp_path: Path
) -> None:
    async with committed.begin() as session:
        await projects.create(session, "demo")
        _, secret = await keys.create(session, "test", ["tasks"])
    (port,) = free_ports(1)
    base = f"http://127.0.0.1:{port}"
    env = environment(tmp_path, database_url, port)
    async with sage_process("serve", env) as process, httpx.AsyncClient(base_url=base, timeout=300) as client:
        await until_up(client, process)
        client.headers["Authorization"] = f"Bearer {secret}"
        made = await client.post("/v1/tasks", json={"instruction": "wait"})  # and no runner
        async with client.stream("GET", f"/v1/tasks/{made.json()['id']}/events") as events:
            assert events.status_code == 200
            process.send_signal(signal.SIGTERM)
            began = time.monotonic()
            await process.wait()
            assert time.monotonic() - began < 30

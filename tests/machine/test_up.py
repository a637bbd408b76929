"""`sage up` as a user runs it: every process is killed once, and so is `sage up`; then everything is stopped."""

import asyncio
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.base.settings import Settings
from app.machine.up import _services
from tests.support.processes import command_of, descendants, free_ports, gone
from tests.support.tiny_model import make_model_dir

PROCESSES = ("app.model_server", "app.cli demo-apis", "app.cli serve", "app.cli runner", "app.cli worker")
RUNNERS = 3


class Up:
    """A running `sage up`, and what it printed."""

    def __init__(self, process: asyncio.subprocess.Process, directory: Path) -> None:
        self.process = process
        self.lines: list[str] = []
        self._pid_file = directory / "data" / "postgres" / "postmaster.pid"

    async def started(self) -> None:
        assert self.process.stdout is not None
        while not self.lines or "Ctrl-C" not in self.lines[-1]:
            line = await self.process.stdout.readline()
            assert line, "it ended instead of starting"
            self.lines.append(line.decode().strip())

    def line(self, start: str) -> str:
        return next(line for line in self.lines if line.startswith(start))

    def key(self) -> str:
        """The first admin key, where the printed line finds it."""
        path = Path(self.line("export KEY=").removeprefix("export KEY=$(cat ").removesuffix(")"))
        assert path.stat().st_mode & 0o777 == 0o600
        return path.read_text().strip()

    def process_id(self, name: str) -> int:
        return next(pid for pid in descendants(self.process.pid) if name in command_of(pid))

    def process_ids(self, name: str) -> set[int]:
        return {pid for pid in descendants(self.process.pid) if name in command_of(pid)}

    def postgres(self) -> int:
        return int(self._pid_file.read_text().split()[0])

    def everything(self) -> set[int]:
        return {self.process.pid, self.postgres()} | descendants(self.process.pid) | descendants(self.postgres())


def settings(directory: Path) -> dict[str, str]:
    port, engine, demo = free_ports(3)
    model = make_model_dir(directory / "model")
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 4096}))
    (model / "README.md").write_text("---\nprompt_profile: compact\n---\n")
    return {
        **os.environ,
        "DATABASE_URL": "",
        "SAGE_DATA_DIR": str(directory / "data"),
        "SAGE_MODEL": str(model),
        "SAGE_ENGINE_DEVICE": "cpu",
        "SAGE_PORT": str(port),
        "SAGE_ENGINE_PORT": str(engine),
        "SAGE_DEMO_PORT": str(demo),
        "SAGE_RUNNERS": str(RUNNERS),
        "SAGE_HANG_SECONDS": "15",
    }


@asynccontextmanager
async def running(env: Mapping[str, str], directory: Path) -> AsyncIterator[Up]:
    command = (sys.executable, "-m", "app.cli", "up")
    process = await asyncio.create_subprocess_exec(*command, env=env, stdout=asyncio.subprocess.PIPE)
    try:
        up = Up(process, directory)
        await up.started()
        yield up
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()


@pytest.mark.slow
async def test_killed_processes_are_restarted_and_stopped_ones_stay_gone(tmp_path: Path) -> None:
    env = settings(tmp_path) | {"HOME": str(tmp_path)}
    async with running(env, tmp_path) as up:
        key = up.key()
        assert await _lists_projects_from_elsewhere(env) == 0
        assert "--max-loras 8" in command_of(up.process_id(PROCESSES[0]))
        assert len(up.process_ids("app.cli runner")) == RUNNERS
        async with client_of(env, key) as client:
            await _a_second_one_is_refused(env)
            task = await _paste(up.line("curl"), key)
            first = up.everything()
            await _kill_each_process(up, client)
            assert (await _ended(client, task))["state"] == "done", "the death of a process fails no task"
            await _stop_a_runner_and_the_worker(up)
        born = up.everything() | first
        up.process.kill()
        await up.process.wait()
        await gone(born - {up.postgres()} - descendants(up.postgres()))
    async with running(env, tmp_path) as up:
        assert up.key() == key
        assert key not in "\n".join(up.lines)
        async with client_of(env, key) as client:
            assert (await client.get(f"/v1/tasks/{task}")).status_code == 200, "the first key is still good"
        born = up.everything()
        began = time.monotonic()
        up.process.terminate()
        assert await up.process.wait() == 0
        assert time.monotonic() - began < 120
        await gone(born)
    assert await _lists_projects_from_elsewhere(env) == 2, "no server runs, so there is no key for it"


async def _lists_projects_from_elsewhere(env: Mapping[str, str]) -> int:
    """The exit code of a command in a directory that is not the server's, and that is told its port alone."""
    known = {name: value for name, value in env.items() if name not in ("SAGE_DATA_DIR", "SAGE_KEY", "KEY")}
    command = (sys.executable, "-m", "app.cli", "projects")
    process = await asyncio.create_subprocess_exec(*command, env=known, cwd="/", stdout=asyncio.subprocess.DEVNULL)
    return await process.wait()


def client_of(env: Mapping[str, str], key: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        base_url=f"http://127.0.0.1:{env['SAGE_PORT']}",
        headers={"Authorization": f"Bearer {key}"},
        timeout=30,
        trust_env=False,
    )


async def _a_second_one_is_refused(env: Mapping[str, str]) -> None:
    command = (sys.executable, "-m", "app.cli", "up")
    second = await asyncio.create_subprocess_exec(*command, env=env, stderr=asyncio.subprocess.PIPE)
    _, err = await second.communicate()
    assert second.returncode == 1
    assert err.decode() == f"Error: another `sage up` uses {env['SAGE_DATA_DIR']}: stop it, or set SAGE_DATA_DIR\n"


async def _paste(line: str, key: str) -> str:
    """Send the printed curl command as a shell would. Returns the task's id."""
    words = shlex.split(line.replace("$KEY", key))
    assert words[:2] == ["curl", "-s"]
    assert (words[3], words[5]) == ("-H", "-d")
    name, _, value = words[4].partition(": ")
    headers = {name: value, "Content-Type": "application/x-www-form-urlencoded"}  # as curl sends
    async with httpx.AsyncClient(timeout=300, trust_env=False) as client:
        answer = await client.post(words[2], content=words[6], headers=headers)
    assert json.loads(words[6])["scenario"]
    assert answer.status_code in (200, 201, 202), answer.text
    accepted: dict[str, Any] = answer.json()
    return str(accepted["id"])


async def _kill_each_process(up: Up, client: httpx.AsyncClient) -> None:
    before = {name: up.process_ids(name) for name in PROCESSES}
    postgres = up.postgres()
    for pid in (*set().union(*before.values()), postgres):
        os.kill(pid, signal.SIGKILL)
    while not (await _is_ready(client) and _all_new(up, before)):  # noqa: ASYNC110  none of them rings
        await asyncio.sleep(0.1)
    assert up.postgres() != postgres


async def _stop_a_runner_and_the_worker(up: Up) -> None:
    """Each has no port, and is replaced."""
    before = {"app.cli worker": up.process_ids("app.cli worker")}
    await asyncio.sleep(5)  # a process that has yet to give its first sign is given more time
    stopped = {up.process_id("app.cli runner"), *before["app.cli worker"]}
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    while not (_all_new(up, before) and _is_replaced(up, "app.cli runner", stopped)):  # noqa: ASYNC110
        await asyncio.sleep(0.1)


def _is_replaced(up: Up, name: str, stopped: set[int]) -> bool:
    now = up.process_ids(name)
    return len(now) == RUNNERS and not now & stopped


async def _is_ready(client: httpx.AsyncClient) -> bool:
    try:
        return (await client.get("/readyz")).status_code == 200
    except httpx.TransportError:
        return False


def _all_new(up: Up, before: Mapping[str, set[int]]) -> bool:
    now = {name: up.process_ids(name) for name in before}
    return all(len(now[name]) == len(pids) and not now[name] & pids for name, pids in before.items())


async def _ended(client: httpx.AsyncClient, task: str) -> dict[str, Any]:
    while True:
        found: dict[str, Any] = (await client.get(f"/v1/tasks/{task}")).json()
        if found["state"] not in ("accepted", "running"):
            return found
        await asyncio.sleep(0.1)


def test_a_model_server_has_the_more_time_to_start_the_larger_its_model(tmp_path: Path) -> None:
    model = make_model_dir(tmp_path)
    settings = Settings(model=str(model), demo_port=0)
    [small] = _services(settings)
    with (model / "model-00002.safetensors").open("wb") as file:
        file.truncate(16_000_000_000)
    [large] = _services(settings)
    assert 120 < small.start_seconds < 121
    assert large.start_seconds == pytest.approx(small.start_seconds + 16 * 30)


def test_it_stops_even_if_its_output_is_not_read() -> None:
    code = (
        "import asyncio\nfrom app.machine.up import _cancel_on_signals\n"
        "async def wait():\n    with _cancel_on_signals():\n        print(flush=True)\n"
        "        await asyncio.sleep(60)\n"
        "try:\n    asyncio.run(wait())\nexcept asyncio.CancelledError:\n    raise SystemExit(7)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        process.terminate()
        assert process.wait() == 7

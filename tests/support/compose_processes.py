"""Runs the services of docker/compose.yaml as local processes, with their commands, environment and health checks.

Only what belongs to a container differs: host names and ports, /data and /models, and the path of `sage`.
"""

import asyncio
import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.compose_file import ROOT, read, service
from tests.support.processes import free_ports

_EXECUTABLES = {"sage": [sys.executable, "-m", "app.cli"], "python": [sys.executable], "python3": [sys.executable]}


@dataclass
class ComposeProcesses:
    """`values` are the content of docker/.env."""

    directory: Path
    values: dict[str, str]
    running: dict[str, asyncio.subprocess.Process] = field(default_factory=dict)

    def __post_init__(self) -> None:
        names = ("api", "engine", "demo-apis")
        self.ports = dict(zip(names, free_ports(len(names)), strict=True))

    def localize(self, word: str, port: int) -> str:
        """A word of the file, translated for a local process that listens on `port`."""
        if word in ("/data", "/tmp"):
            return str(self.directory)
        if word in ("http://engine:8000", "http://embeddings:8000"):
            return f"http://127.0.0.1:{self.ports['engine']}"
        return re.sub(r"\b8[01]00\b", str(port), word).replace("/models/", f"{ROOT / 'app'}/")

    def command(self, words: list[str], port: int) -> list[str]:
        first, *rest = words
        return [*_EXECUTABLES[first], *(self.localize(word, port) for word in rest)]

    def environment(self, name: str) -> dict[str, str]:
        """Only what the file sets, and the few variables that every process needs."""
        declared = dict(service(name, self.values).environment)
        inherited = {
            key: os.environ[key] for key in ("PATH", "HOME", "PYTHONPATH", "OMP_NUM_THREADS") if key in os.environ
        }
        overrides = {key: self.values[key] for key in self.values.keys() & declared.keys()}
        if declared.pop("BROKER_URL", ""):
            overrides["BROKER_URL"] = ""  # no Redis here: folders in /data
        return (
            inherited
            | {key: self.localize(value, self.ports["api"]) for key, value in declared.items()}
            | overrides
        )

    async def run(self, name: str, *arguments: str) -> str:
        """Run `arguments`, or else the service's command, with its environment. Returns the output."""
        words = list(arguments) or service(name, self.values).argv
        process = await self._spawn(self.command(words, 0), name, subprocess.PIPE)
        out, _ = await process.communicate()
        assert process.returncode == 0, f"{words}: {process.returncode}"
        return out.decode()

    async def start(self, name: str, port: int = 0) -> None:
        command = self.command(service(name, self.values).argv, port)
        self.running[name] = await self._spawn(command, name, subprocess.DEVNULL)

    async def until_healthy(self, name: str, port: int) -> None:
        """Wait until the service's health check succeeds."""
        test = read(self.values)["services"][name]["healthcheck"]["test"]
        assert test[0] == "CMD"
        command = self.command(test[1:], port)
        while (await self._check(command)) != 0:
            assert self.running[name].returncode is None, f"{name} ended"
            await asyncio.sleep(0.5)

    async def stop(self, name: str) -> float:
        """Send SIGTERM, as `docker compose stop` does, and wait. Returns the seconds it took."""
        process = self.running.pop(name)
        began = time.monotonic()
        if process.returncode is None:
            process.terminate()
        await process.wait()
        return time.monotonic() - began

    async def _check(self, command: list[str]) -> int:
        process = await asyncio.create_subprocess_exec(*command, stderr=subprocess.DEVNULL)
        return await process.wait()

    async def _spawn(self, command: list[str], name: str, stdout: Any) -> asyncio.subprocess.Process:
        environment = self.environment(name)
        return await asyncio.create_subprocess_exec(*command, cwd=ROOT, env=environment, stdout=stdout)


def grace_seconds(name: str) -> float:
    """The seconds after which Docker would kill a stopping service."""
    count, unit = re.fullmatch(r"(\d+)(s|m)", read()["services"][name]["stop_grace_period"]).groups()  # type: ignore[union-attr]
    return int(count) * (60 if unit == "m" else 1)

"""The services of docker/compose.yaml as processes of this machine: their commands, environment and health checks.

Only what a container has of its own differs: host names and ports, /data and /models, and where `sage` lies.
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

from tests.compose import ROOT, read, service
from tests.processes import free_ports

READY_SECONDS = 200
_OURS = {"sage": [sys.executable, "-m", "app.cli"], "python": [sys.executable], "python3": [sys.executable]}


@dataclass
class Composed:
    """`values` are what docker/.env would hold."""

    directory: Path
    values: dict[str, str]
    running: dict[str, asyncio.subprocess.Process] = field(default_factory=dict)

    def __post_init__(self) -> None:
        names = ("api", "engine", "demo-apis")
        self.ports = dict(zip(names, free_ports(len(names)), strict=True))

    def near(self, word: str, port: int) -> str:
        """A word of the file as it is meant on this machine, for a service that listens on `port` here."""
        if word in ("/data", "/tmp"):
            return str(self.directory)
        if word in ("http://engine:8000", "http://embeddings:8000"):
            return f"http://127.0.0.1:{self.ports['engine']}"
        return re.sub(r"\b8[01]00\b", str(port), word).replace("/models/", f"{ROOT / 'app'}/")

    def command(self, words: list[str], port: int) -> list[str]:
        first, *rest = words
        return [*_OURS[first], *(self.near(word, port) for word in rest)]

    def environment(self, name: str) -> dict[str, str]:
        """The file's alone, beside what any process has: what is missing there is missing here."""
        given = dict(service(name, self.values).environment)
        bare = {
            key: os.environ[key] for key in ("PATH", "HOME", "PYTHONPATH", "OMP_NUM_THREADS") if key in os.environ
        }
        ours = {key: self.values[key] for key in self.values.keys() & given.keys()}
        if given.pop("BROKER_URL", ""):
            ours["BROKER_URL"] = ""  # no Redis here: folders in /data
        return bare | {key: self.near(value, self.ports["api"]) for key, value in given.items()} | ours

    async def run(self, name: str, *arguments: str) -> str:
        """To its end, with the service's environment; what it printed. No arguments: the service's command."""
        words = list(arguments) or service(name, self.values).argv
        process = await self._spawn(self.command(words, 0), name, subprocess.PIPE)
        out, _ = await process.communicate()
        assert process.returncode == 0, f"{words}: {process.returncode}"
        return out.decode()

    async def start(self, name: str, port: int = 0) -> None:
        command = self.command(service(name, self.values).argv, port)
        self.running[name] = await self._spawn(command, name, subprocess.DEVNULL)

    async def healthy(self, name: str, port: int) -> None:
        """By the service's own health check."""
        test = read(self.values)["services"][name]["healthcheck"]["test"]
        assert test[0] == "CMD"
        command = self.command(test[1:], port)
        async with asyncio.timeout(READY_SECONDS):
            while (await self._check(command)) != 0:
                assert self.running[name].returncode is None, f"{name} ended"
                await asyncio.sleep(0.5)

    async def stop(self, name: str) -> float:
        """As `docker compose stop` begins; the seconds that it took."""
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


def grace_of(name: str) -> float:
    """Seconds that the service gets to stop before it is killed."""
    count, unit = re.fullmatch(r"(\d+)(s|m)", read()["services"][name]["stop_grace_period"]).groups()  # type: ignore[union-attr]
    return int(count) * (60 if unit == "m" else 1)

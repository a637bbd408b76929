"""Real brokers of Debian's packages, each on free ports, in a directory of its own and without privileges."""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.support.processes import free_ports

_UNPRIVILEGED = "nobody"  # where the tests run as root
_RABBITMQ = "/usr/lib/rabbitmq/bin"  # not its wrapper in the path, which insists on a user of its own


class BrokerServer:
    """One broker, which can be killed and started again on the same port."""

    def __init__(
        self, url: str, port: int, command: Sequence[str], env: Mapping[str, str], directory: Path
    ) -> None:
        self.url = url
        self._port, self._command, self._env, self._directory = port, command, env, directory
        self._user = _UNPRIVILEGED if os.geteuid() == 0 else None
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        if self._user:
            shutil.chown(self._directory, self._user)
        with (self._directory.parent / f"{self._directory.name}.log").open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                env=self._env,
                stdout=log,
                stderr=log,
                user=self._user,
                cwd=self._directory,
                start_new_session=True,
            )
        self._await()

    def kill(self) -> None:
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)  # a script that waits for the broker, and the broker
            self._process.wait()

    def _await(self) -> None:
        while True:
            assert self._process is not None
            assert self._process.poll() is None, "the broker ended: its log says why"
            try:
                socket.create_connection(("127.0.0.1", self._port)).close()
            except ConnectionRefusedError:
                time.sleep(0.1)
            else:
                return


@contextmanager
def redis_server() -> Iterator[BrokerServer]:
    """Skips the test where Redis is not installed."""
    program, (port,) = _installed("redis-server", "redis-server"), free_ports(1)
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o711)  # the broker has to reach its directory in it
        directory = Path(folder) / "redis"
        directory.mkdir()
        command = (program, "--port", str(port), "--bind", "127.0.0.1", "--dir", str(directory), "--save", "")
        server = BrokerServer(f"redis://127.0.0.1:{port}/0", port, command, {"HOME": str(directory)}, directory)
        yield from _running(server)


@contextmanager
def rabbitmq_server() -> Iterator[BrokerServer]:
    """Skips the test where RabbitMQ is not installed."""
    program, (port, inner, epmd) = _installed(f"{_RABBITMQ}/rabbitmq-server", "rabbitmq-server"), free_ports(3)
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o711)
        directory = Path(folder) / "rabbitmq"
        directory.mkdir()
        env = {
            "PATH": os.environ["PATH"],
            "HOME": str(directory),
            "ERL_EPMD_PORT": str(epmd),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": f"sage{port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(port),
            "RABBITMQ_DIST_PORT": str(inner),
            "RABBITMQ_MNESIA_BASE": str(directory / "mnesia"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(directory / "plugins"),
            "RABBITMQ_CONF_ENV_FILE": os.devnull,
            "RABBITMQ_LOG_BASE": str(directory),
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_PID_FILE": str(directory / "pid"),
        }
        server = BrokerServer(f"amqp://guest:guest@127.0.0.1:{port}//", port, (program,), env, directory)
        try:
            yield from _running(server)
        finally:
            subprocess.run(["epmd", "-port", str(epmd), "-kill"], capture_output=True, check=False)


def _running(server: BrokerServer) -> Iterator[BrokerServer]:
    try:
        server.start()
        yield server
    finally:
        server.kill()


def _installed(program: str, package: str) -> str:
    found = shutil.which(program)
    if found is None:
        pytest.skip(f"{package} is not installed: apt-get install {package}")
    return found

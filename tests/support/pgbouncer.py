"""A PgBouncer in transaction mode between the tests and their database."""

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import URL, make_url

from tests.support.processes import free_ports

_SERVER_CONNECTIONS = 8  # fewer than clients have
_CONFIG = """
[databases]
* = {server}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = {connections}
max_client_conn = 500
logfile = {directory}/log
pidfile = {directory}/pid
"""


def pgbouncer() -> str:
    """Its program. Skips the test where it is not installed."""
    program = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None:
        pytest.skip("PgBouncer is not installed: apt-get install pgbouncer")
    return program


@contextmanager
def pooled(database_url: str) -> Iterator[str]:
    """Yields the URL of the same database through the pooler."""
    program, url, (port,) = pgbouncer(), make_url(database_url), free_ports(1)
    with tempfile.TemporaryDirectory() as folder:
        server, directory = _server(url), Path(folder)
        config = directory / "pgbouncer.ini"
        config.write_text(
            _CONFIG.format(server=server, port=port, directory=folder, connections=_SERVER_CONNECTIONS)
        )
        user = _hand_over(directory, url)
        with subprocess.Popen([program, "--quiet", str(config)], user=user) as process:
            try:
                _await(port, process)
                yield URL.create(
                    url.drivername, username=url.username, host="127.0.0.1", port=port, database=url.database
                ).render_as_string(hide_password=False)
            finally:
                process.send_signal(signal.SIGTERM)
                process.wait()


def _server(url: URL) -> str:
    parts = {"host": url.query.get("host") or url.host, "port": url.port, "user": url.username}
    return " ".join(f"{name}={value}" for name, value in {**parts, "password": url.password}.items() if value)


def _hand_over(directory: Path, url: URL) -> str | None:
    """It refuses to run as root. As whom it runs then: the owner of PostgreSQL's socket, who can open that."""
    if os.geteuid() != 0:
        return None
    place = str(url.query.get("host", ""))
    name = pwd.getpwuid(os.stat(place).st_uid).pw_name if place else "nobody"
    for each in (directory, *directory.iterdir()):
        shutil.chown(each, name)
    return name


def _await(port: int, process: "subprocess.Popen[bytes]") -> None:
    while True:
        assert process.poll() is None, "PgBouncer ended: its output says why"
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except ConnectionRefusedError:
            time.sleep(0.05)
        else:
            return

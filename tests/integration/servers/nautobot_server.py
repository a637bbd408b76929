"""Nautobot from PyPI, on a PostgreSQL and a Redis of its own. Its database is migrated once, then copied."""

import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import httpx
import psycopg
from psycopg import sql
from sqlalchemy import make_url

from app.db import postgres
from tests.integration.servers.installed import CACHE, pinned, python_server
from tests.integration.servers.server_process import clean_environment, server_process
from tests.support.broker_servers import redis_server
from tests.support.processes import free_ports

_CONFIG = """
from nautobot.core.settings import *

DATABASES = {{"default": {{"ENGINE": "django.db.backends.postgresql", "NAME": "{database}", "USER": "postgres",
                           "HOST": "{host}"}}}}
SECRET_KEY = "{secret}"
ALLOWED_HOSTS = ["127.0.0.1"]
INSTALLATION_METRICS_ENABLED = False
METRICS_ENABLED = False
"""
_USER, _PASSWORD = "iris", "pa55 w0rd for tests"
_MIGRATION_SECONDS = 3_600
_COPY = "nautobot"


class Nautobot(NamedTuple):
    """Its address, and a token of a superuser."""

    url: str
    token: str


@contextmanager
def nautobot_server(place: Path) -> Iterator[Nautobot]:
    commands = python_server("nautobot")
    data = CACHE / "nautobot-data"
    with redis_server() as redis, _postgres(data) as host:
        migrated = f"migrated_{pinned('nautobot', 'nautobot').replace('.', '_')}"
        port = str(make_url(redis.url).port)
        run = _Run(commands / "nautobot-server", place, host, {"NAUTOBOT_REDIS_PORT": port})
        if not _has(host, migrated):
            run.command(_new(host, "half_migrated"), "migrate")
            run.command(
                "half_migrated", "createsuperuser", "--noinput", "--username", _USER, "--email", "i@a.test"
            )
            _rename(host, "half_migrated", migrated)
        environment = run.environment(_new(host, _COPY, migrated))
        (served,) = free_ports(1)
        url = f"http://127.0.0.1:{served}"
        command = (run.program, "runserver", f"127.0.0.1:{served}", "--noreload", "--insecure", "--skip-checks")
        with server_process(command, place, f"{url}/health/", environment):
            answer = httpx.post(f"{url}/api/users/tokens/", auth=(_USER, _PASSWORD), json={}, timeout=300)
            assert answer.status_code == 201, answer.text
            yield Nautobot(url, answer.json()["key"])


class _Run(NamedTuple):
    program: Path
    place: Path
    host: str
    redis: Mapping[str, str]

    def environment(self, database: str) -> dict[str, str]:
        config = self.place / f"{database}_config.py"
        config.write_text(_CONFIG.format(database=database, host=self.host, secret="for tests alone" * 4))
        return {
            "NAUTOBOT_CONFIG": str(config),
            "NAUTOBOT_ROOT": str(self.place),
            "NAUTOBOT_REDIS_HOST": "127.0.0.1",
            "DJANGO_SUPERUSER_PASSWORD": _PASSWORD,
            **self.redis,
        }

    def command(self, database: str, *command: str) -> None:
        environment = clean_environment(self.place, self.environment(database))
        done = subprocess.run(
            [self.program, *command],
            env=environment,
            cwd=self.place,
            capture_output=True,
            text=True,
            timeout=_MIGRATION_SECONDS,
            check=False,
        )
        assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-2000:]}"


@contextmanager
def _postgres(directory: Path) -> Iterator[str]:
    """The directory of its socket."""
    url = make_url(postgres.start(directory))
    try:
        yield str(url.query["host"])
    finally:
        postgres.stop(directory)


def _execute(host: str, statement: str, *names: str) -> list[tuple[object, ...]]:
    with psycopg.connect(host=host, user="postgres", dbname="postgres", autocommit=True) as connection:
        cursor = connection.execute(sql.SQL(statement).format(*map(sql.Identifier, names)))
        return cursor.fetchall() if cursor.description else []


def _has(host: str, database: str) -> bool:
    return (database,) in _execute(host, "SELECT datname FROM pg_database")


def _new(host: str, database: str, template: str = "template1") -> str:
    """Its name. One that is there is replaced."""
    _execute(host, "DROP DATABASE IF EXISTS {}", database)
    _execute(host, "CREATE DATABASE {} TEMPLATE {}", database, template)
    return database


def _rename(host: str, database: str, name: str) -> None:
    _execute(host, "ALTER DATABASE {} RENAME TO {}", database, name)

"""`sage up`: everything on one machine. Whatever a setting names by URL is used instead of being started."""

import asyncio
import contextlib
import fcntl
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import click

from app.db import embedded, keys, projects
from app.db.migrate import migrate
from app.db.session import open_database
from app.demo import PROJECT, register_demo
from app.errors import AppError, NotFoundError
from app.ports import free_port
from app.settings import Settings
from app.supervise import Child, Supervisor

_WATCH_SECONDS = 2.0


async def up(settings: Settings) -> None:
    """Start all parts, say where they are, and keep them alive until SIGINT or SIGTERM. Raises AppError."""
    with _only_one(settings.data_dir):
        _refuse_taken_ports(settings)
        async with _database(settings) as url, _processes(settings) as supervisor:
            secret = await _first_key(url)
            env = _environment(settings, url)
            click.echo("starting the model server" + (" and the demo APIs" if settings.demo else ""))
            await supervisor.start(_services(settings, env))
            if settings.demo:
                await register_demo(url, f"http://127.0.0.1:{settings.demo_port}")
            click.echo("starting the API and the worker")
            await supervisor.start(_workers(settings, env))
            click.echo(_welcome(settings, secret))
            await _until_stopped()
            click.echo("stopping")


def _services(settings: Settings, env: dict[str, str]) -> list[Child]:
    services = []
    if not settings.engine_urls:
        engine = [sys.executable, "-m", "app.engine.embedded", "--model", str(settings.model_dir)]
        engine += ["--port", str(settings.engine_port), "--device", settings.engine_device]
        ready = f"http://127.0.0.1:{settings.engine_port}/health"
        services.append(Child(name="model-server", argv=tuple(engine), env=env, ready=ready))
    if settings.demo:
        demo = (*_sage(), "demo-apis", "--port", str(settings.demo_port))
        ready = f"http://127.0.0.1:{settings.demo_port}/sites/0/mail/openapi.json"
        services.append(Child(name="demo-apis", argv=demo, env=env, ready=ready))
    return services


def _workers(settings: Settings, env: dict[str, str]) -> list[Child]:
    api = Child(
        name="api",
        argv=(*_sage(), "serve"),
        env=env,
        ready=f"http://{settings.host}:{settings.port}/readyz",
    )
    return [api, Child(name="worker", argv=(*_sage(), "worker"), env=env)]


def _sage() -> tuple[str, ...]:
    return (sys.executable, "-m", "app.cli")


def _environment(settings: Settings, url: str) -> dict[str, str]:
    """What the children read their settings from: ours, with the addresses of what runs here filled in."""
    engine = f"http://127.0.0.1:{settings.engine_port}"
    return {
        **os.environ,
        "DATABASE_URL": url,
        "ENGINE_URLS": settings.engine_urls or engine,
        "EMBEDDINGS_URL": settings.embeddings_url or settings.engine_urls.split(",")[0] or engine,
        "SAGE_DATA_DIR": str(settings.data_dir.absolute()),
        "PYTHONUNBUFFERED": "1",
    }


@contextlib.asynccontextmanager
async def _database(settings: Settings) -> AsyncIterator[str]:
    """The URL of a migrated database. The embedded one is restarted if it dies, and stopped at the end."""
    if settings.database_url:
        await asyncio.to_thread(migrate, settings.database_url)
        yield settings.database_url
        return
    directory = settings.data_dir.absolute() / "postgres"
    click.echo(f"starting PostgreSQL in {directory}")
    url = await asyncio.to_thread(embedded.start, directory)
    try:
        await asyncio.to_thread(migrate, url)
        watcher = asyncio.create_task(_watch(directory))
        yield url
        watcher.cancel()
    finally:
        await asyncio.to_thread(embedded.stop, directory)


async def _watch(directory: Path) -> None:
    while True:
        await asyncio.sleep(_WATCH_SECONDS)
        if not _alive(directory / "postmaster.pid"):
            click.echo("PostgreSQL died, starting it again", err=True)
            await asyncio.to_thread(embedded.start, directory)


def _alive(pid_file: Path) -> bool:
    try:
        os.kill(int(pid_file.read_text().split()[0]), 0)
    except (OSError, ValueError, IndexError):
        return False
    return True


@contextlib.asynccontextmanager
async def _processes(settings: Settings) -> AsyncIterator[Supervisor]:
    supervisor = Supervisor(settings.data_dir / "logs")
    try:
        yield supervisor
    finally:
        await supervisor.stop()


async def _first_key(url: str) -> str | None:
    """The secret of the first admin key, at the only time it is known: when it is made."""
    async with open_database(url) as database, database.sessions.begin() as session:
        try:
            await projects.by_name(session, PROJECT)
        except NotFoundError:
            await projects.create(session, PROJECT)
        if await keys.listing(session):
            return None
        _, secret = await keys.create(session, "admin", ["admin"])
        return secret


def _welcome(settings: Settings, secret: str | None) -> str:
    address = f"http://{settings.host}:{settings.port}"
    key = f"KEY={secret}" if secret else "KEY=...   # shown at the first start; another: sage keys create NAME"
    lines = [
        "",
        f"  API      {address}      docs {address}/docs      logs {settings.data_dir / 'logs'}",
        f"  {key}",
    ]
    if settings.demo:
        body = '{"instruction": "archive every one of my mails from iris", "project": "demo"}'
        lines.append(f"  curl -s {address}/v1/tasks -H \"Authorization: Bearer $KEY\" -d '{body}'")
    return "\n".join([*lines, "", "  Ctrl-C stops everything."])


async def _until_stopped() -> None:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    await stopped.wait()


def _refuse_taken_ports(settings: Settings) -> None:
    free_port(settings.host, settings.port, "SAGE_PORT")
    if not settings.engine_urls:
        free_port("127.0.0.1", settings.engine_port, "SAGE_ENGINE_PORT")
    if settings.demo:
        free_port("127.0.0.1", settings.demo_port, "SAGE_DEMO_PORT")


@contextlib.contextmanager
def _only_one(data_dir: Path) -> Iterator[None]:
    """Two supervisors on one data directory would fight over its database."""
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
        with (data_dir / "up.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
    except BlockingIOError as error:
        raise AppError(f"another `sage up` runs on {data_dir}: stop it, or set SAGE_DATA_DIR") from error
    except PermissionError as error:
        raise AppError(f"{data_dir} cannot be written: {error.strerror}. Set SAGE_DATA_DIR") from error

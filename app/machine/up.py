"""`sage up`: everything on one machine. Services that a setting names by URL are used instead of started."""

import asyncio
import os
import shlex
import signal
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager, suppress
from pathlib import Path

import click
import msgspec

from app.db import hosted_models, keys, projects
from app.db.database import open_database
from app.engine.hosted.client import Abilities
from app.engine.model_memory import loading, loading_seconds
from app.machine.child_process import START_SECONDS, ChildProcess
from app.machine.console_link import console_link
from app.machine.data_dir_lock import lock_data_dir
from app.machine.demo import PROJECT, DemoIndex, first_task, register_demo
from app.machine.local_database import run_database
from app.machine.logs import rotation
from app.machine.prepare_model import prepare_model
from app.machine.running_settings import noted_settings
from app.machine.supervise import Supervisor
from app.ports import Port, base_url, check_ports
from app.python_process import python_module
from app.records import BASE, shown_model
from app.release.first_release import FirstRelease
from app.security.admin_key_file import admin_key_file, noted_place, read_admin_key, write_admin_key
from app.setting_lists import urls_in
from app.settings import Settings

_SHOWN = 10  # projects that a line names


def up(settings: Settings) -> None:
    """Start everything, print the address, and keep it alive until SIGINT or SIGTERM. Raises AppError.

    A model of the catalogue that is not here is pulled before, and Ctrl-C ends that at once.
    """
    with lock_data_dir(settings.data_dir), noted_settings(settings):
        check_ports(_ports(settings))
        click.echo(f"starting; data directory: {settings.data_dir.absolute()}")
        for remark in Settings.misnamed():
            click.echo(f"WARNING: {remark}", err=True)
        abilities = prepare_model(settings)
        asyncio.run(_serve(settings, abilities))


async def _serve(settings: Settings, abilities: Abilities | None) -> None:
    with _cancel_on_signals(), suppress(asyncio.CancelledError):
        async with AsyncExitStack() as stack:
            await _run(settings, stack, abilities)


async def _run(settings: Settings, stack: AsyncExitStack, abilities: Abilities | None) -> None:
    supervisor = Supervisor(settings.data_dir / "logs", hang_seconds=settings.hang_seconds)
    await stack.enter_async_context(rotation(settings))
    stack.push_async_callback(supervisor.stop)  # in case the database does not start
    await supervisor.start(_services(settings))
    url = await stack.enter_async_context(run_database(settings))
    stack.push_async_callback(supervisor.stop)  # before the database stops
    await _ensure_project(settings, url, abilities)
    await supervisor.ready()
    demo = await register_demo(url, base_url("127.0.0.1", settings.demo_port)) if settings.demo else None
    await supervisor.start(_workers(settings, url))
    await supervisor.ready()
    has_key = await _keep_first_key(url, settings.data_dir)
    stack.enter_context(noted_place(settings.port, settings.data_dir))
    link = await console_link(url, settings) if has_key else None
    click.echo(_welcome(settings, link=link, demo=demo))
    await asyncio.Event().wait()


def _services(settings: Settings) -> list[ChildProcess]:
    """The services that the API depends on."""
    env, services = _environment(settings, settings.database_url), []
    if not settings.engine_urls:
        engine = [*python_module("app.model_server", "--model", str(settings.model_dir))]
        engine += ["--port", str(settings.engine_port), "--device", settings.engine_device]
        engine += ["--dtype", settings.engine_dtype]
        engine += ["--kv-mb", str(settings.engine_kv_mb), "--max-loras", str(settings.engine_adapters)]
        ready = f"{base_url('127.0.0.1', settings.engine_port)}/health"
        services.append(
            ChildProcess(
                name="model-server",
                argv=tuple(engine),
                env=env,
                ready=ready,
                alive=ready,
                starts_with=loading(settings.local_model, settings.model_dir),
                start_seconds=START_SECONDS + loading_seconds(settings.model_dir),
            )
        )
    if settings.demo:
        demo = (*_sage(), "demo-apis", "--port", str(settings.demo_port))
        ready = f"{base_url('127.0.0.1', settings.demo_port)}/demo"
        services.append(ChildProcess(name="demo-apis", argv=demo, env=env, ready=ready, alive=ready))
    return services


def _workers(settings: Settings, url: str) -> list[ChildProcess]:
    env, api_url = _environment(settings, url), base_url(settings.host, settings.port)
    ready, alive = f"{api_url}/readyz", f"{api_url}/livez"
    api = ChildProcess(name="api", argv=(*_sage(), "serve"), env=env, ready=ready, alive=alive)
    runners = [
        _reporting(f"runner-{number}", "runner", env | _metrics(settings, number))
        for number in range(1, settings.runner_count + 1)
    ]
    return [api, *runners, _reporting("worker", "worker", env)]


def _reporting(name: str, command: str, env: dict[str, str]) -> ChildProcess:
    return ChildProcess(name=name, argv=(*_sage(), command), env=env, reports=True)


def _metrics(settings: Settings, number: int) -> dict[str, str]:
    """Each runner has a port of its own."""
    return {"SAGE_METRICS_PORT": str(settings.metrics_port + number - 1)} if settings.metrics_port else {}


def _sage() -> tuple[str, ...]:
    return python_module("app.cli")


def _environment(settings: Settings, url: str) -> dict[str, str]:
    """The environment of the children: ours, with the addresses of the services started here."""
    engine = base_url("127.0.0.1", settings.engine_port)
    return {
        "OMP_WAIT_POLICY": "PASSIVE",  # spinning threads would take the cores from those they wait for
        **os.environ,
        "DATABASE_URL": url,
        "ENGINE_URLS": settings.engine_urls or engine,
        "EMBEDDINGS_URL": settings.embeddings_url or next(iter(urls_in(settings.engine_urls)), engine),
        "SAGE_DATA_DIR": str(settings.data_dir.absolute()),
        "PYTHONUNBUFFERED": "1",
        "SAGE_DRAIN_SECONDS": "0",  # everything stops together, model servers too
        "SAGE_SHUTDOWN_DELAY_SECONDS": "0",
    }


def _ports(settings: Settings) -> Iterator[Port]:
    yield Port(settings.host, settings.port, "SAGE_PORT")
    if settings.metrics_port:
        for number in range(settings.runner_count):
            yield Port(settings.host, settings.metrics_port + number, "SAGE_METRICS_PORT")
    if not settings.engine_urls:
        yield Port("127.0.0.1", settings.engine_port, "SAGE_ENGINE_PORT")
    if settings.demo:
        yield Port("127.0.0.1", settings.demo_port, "SAGE_DEMO_PORT")


async def _ensure_project(settings: Settings, url: str, abilities: Abilities | None) -> None:
    """`abilities` are those of the hosted model that the settings name."""
    async with open_database(url) as database:
        async with database.sessions() as session:
            names = {project.name for project in await projects.list_all(session)}
        if PROJECT not in names:
            async with database.sessions.begin() as session:
                await FirstRelease.of(settings).create_project(session, PROJECT)
        if abilities is not None:
            async with database.sessions.begin() as session:
                known = msgspec.to_builtins(abilities)
                await hosted_models.renew(session, settings.model_url, settings.model, known)
                kept = await hosted_models.others(session, settings.model_url, settings.model)
            if kept:
                click.echo(kept_models(settings, [(name, release.policy) for name, release in kept]))


def kept_models(settings: Settings, kept: Sequence[tuple[str, str]]) -> str:
    """Which projects, named with their models, go on with another model than that of the settings."""
    of = {BASE: settings.local_model}
    which = ", ".join(f"{name} with {shown_model(of.get(model, model))}" for name, model in kept[:_SHOWN])
    more = f" and {len(kept) - _SHOWN} more" if kept[_SHOWN:] else ""
    return (
        f"projects that go on with another model: {which}{more}. New projects get {settings.model}; for another "
        "one: sage models add, then sage releases --hosted NAME --activate --project PROJECT"
    )


async def _keep_first_key(url: str, data_dir: Path) -> bool:
    """Create the first admin key, in a file of the data directory. False if that file has no valid key."""
    async with open_database(url) as database, database.sessions.begin() as session:
        kept = read_admin_key(data_dir)
        if kept and await keys.by_secret(session, kept):
            return True
        if await keys.listing(session):
            return False
        secret = await keys.create_admin(session, "admin")
        write_admin_key(data_dir, secret)  # before the commit: a key that nobody has is of no use
        return True


def _welcome(settings: Settings, *, link: str | None, demo: DemoIndex | None) -> str:
    address = base_url(settings.host, settings.port)
    file = admin_key_file(settings.data_dir.absolute())
    key = f"$(cat {shlex.quote(str(file))})" if link else "...  # create one: sage keys create-admin"
    lines = [f"  API   {address}   docs {address}/docs   manual {address}/manual"]
    lines += [f"  logs  {settings.data_dir / 'logs'}"]
    if link:
        lines += [f"  key   {file}, where `sage` commands on this machine find it"]
        lines += [
            "",
            "  The console: this link signs you in once, within 15 minutes; `sage console` prints another:",
            f"  {link}",
        ]
    lines += ["", f"  export KEY={key}"]
    if demo is not None:
        lines += first_task(address, demo.task)
    return "\n".join(["", *lines, "", "  Ctrl-C stops everything.", ""])


@contextmanager
def _cancel_on_signals() -> Iterator[None]:
    """Cancel the current task on the first SIGINT or SIGTERM, and ignore further ones."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    numbers = (signal.SIGINT, signal.SIGTERM)

    def cancel() -> None:
        for number in numbers:
            loop.add_signal_handler(number, lambda: None)
        task.cancel()
        with suppress(OSError):  # the terminal may be gone
            click.echo("stopping")

    for number in numbers:
        loop.add_signal_handler(number, cancel)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)

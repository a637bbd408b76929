"""`sage up`: everything on one machine. Services that a setting names by URL are used instead of started. Gets
the model first, prints a link that signs in to the console, and fills the project `demo` for a first task
within a minute.
"""

import asyncio
import json
import os
import shlex
import signal
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager, suppress
from pathlib import Path
from urllib.parse import urlencode

import click
import httpx
import msgspec

from app.apis import store as apis
from app.apis import trials
from app.apis.documents.protocols import fetch_document, parse_document
from app.base.errors import ApiDocumentError, EngineError, ModelError, SettingError
from app.base.files import admin_key_file, noted_place, read_admin_key, write_admin_key
from app.base.model_catalog import CATALOG, models_dir, pulled
from app.base.processes import Port, base_url, check_ports, python_module
from app.base.settings import Settings
from app.base.values import BASE, shown_model
from app.db.database import open_database
from app.engine.hosted.client import Abilities, Remedies
from app.engine.hosted.probe import probe
from app.engine.memory import loading, loading_seconds, memory_available, usual_need
from app.machine.local_database import lock_data_dir, noted_settings, run_database
from app.machine.model_checks import load_served
from app.machine.supervise import START_SECONDS, ChildProcess, Supervisor, rotation
from app.projects import keys
from app.projects import store as projects
from app.releases import hosted_models, manifest, manifest_store
from app.releases.hosted_models import HostedModels
from app.releases.promotion import FirstRelease

_PATIENCE = 20.0  # seconds, for an endpoint that answers that it is still loading its model
_REMEDIES = Remedies(
    key="correct SAGE_MODEL_KEY",
    model="correct SAGE_MODEL or SAGE_MODEL_URL",
    url="check SAGE_MODEL_URL, and that it runs",
)

PROJECT = "demo"
_SHOWN = 10  # projects that a line names


def prepare_model(settings: Settings) -> Abilities | None:
    """Pull a model of the catalogue that is not here. Returns what a hosted one can do.

    Raises ModelError, and SettingError for one that cannot be served, or does not answer at its endpoint.
    """
    if settings.model_url:
        return asyncio.run(_probed(settings))
    _pull(settings)
    try:
        load_served(settings.model_dir, settings.prompt_profile, settings.template_kwargs)
        if not settings.engine_urls:
            click.echo(_memory(settings))
    except ModelError as error:
        raise SettingError(f"SAGE_MODEL={settings.model}: {error}") from error
    return None


def _pull(settings: Settings) -> None:
    if settings.model not in CATALOG or pulled(settings.model, settings.data_dir):
        return
    from app.machine.models import pull  # noqa: PLC0415  takes a moment, which later starts need not wait for

    model = CATALOG[settings.model]
    click.echo(f"pulling {model.summary} to {models_dir(settings.data_dir)}")
    pull(model.name, settings.data_dir)


def _memory(settings: Settings) -> str:
    free = memory_available()
    here = "" if free is None else f"; {free >> 20:,} MB are free"
    return f"model {settings.model}: up to {usual_need(settings.model_dir, settings)} of memory{here}"


async def _probed(settings: Settings) -> Abilities:
    url, model = settings.model_url, settings.model
    if settings.engine_urls:
        raise SettingError(
            "SAGE_MODEL_URL and ENGINE_URLS are both set: unset one of them. A server with model servers gets "
            "hosted models by `sage models add`"
        )
    opened = HostedModels.of(settings).connect(
        url, model, settings.model_key, trusted=True, patience=_PATIENCE, remedies=_REMEDIES
    )
    async with opened as endpoint:
        try:
            found = await probe(endpoint)
        except EngineError as error:
            raise SettingError(str(error)) from error
    length = f"{found.context:,} tokens" if found.context else "it does not say how long its context is"
    remark = f"; {found.remark}" if found.remark else ""
    click.echo(f"model {model} at {url}: it answers; {length}{remark}")
    return found


async def console_link(url: str, settings: Settings) -> str:
    """A new link, good once and for minutes. `url` is the database.

    Raises SettingError if the data directory has no valid admin key.
    """
    async with open_database(url) as database, database.sessions.begin() as session:
        kept = read_admin_key(settings.data_dir)
        found = await keys.by_secret(session, kept) if kept else None
        if found is None:
            file = admin_key_file(settings.data_dir.absolute())
            raise SettingError(
                f"{file} has no valid key: sign in with one at {_address(settings)}; `sage keys create-admin` "
                "creates one"
            )
        secret = await keys.offer_link(session, found[0].id)
    return f"{_address(settings)}/sign-in?{urlencode({'link': secret})}"


def _address(settings: Settings) -> str:
    own = settings.public_url.rstrip("/") or base_url(settings.host, settings.port)
    return f"{own}/console"


class DemoIndex(msgspec.Struct, frozen=True):
    """The body of /demo, which the demo services publish."""

    documents: dict[str, str]  # the URL of each API's OpenAPI document
    task: dict[str, str]  # a first task, as POST /v1/tasks takes it, without its project


async def register_demo(url: str, services: str) -> DemoIndex:
    """Bring the demo project's documents in line with those that the services publish. Safe to repeat.

    `url` is the database. Raises ApiDocumentError if the services do not answer.
    """
    place = f"{services}/demo"
    async with httpx.AsyncClient(timeout=10, trust_env=False) as client:
        try:
            answer = await client.get(place)
            index = msgspec.json.decode(answer.raise_for_status().content, type=DemoIndex)
        except (httpx.HTTPError, msgspec.MsgspecError) as error:
            raise ApiDocumentError(
                f"{place} cannot be read ({error}): set SAGE_DEMO_PORT to a free port"
            ) from error
        documents = {
            api: (source, await fetch_document(client, source)) for api, source in index.documents.items()
        }
    async with open_database(url) as database, database.sessions.begin() as session:
        project = await projects.by_name(session, PROJECT)
        serving = await manifest.lock_active(session, project.id)
        before = await manifest_store.api_tools(session, project.id)
        for api, (source, document) in documents.items():
            digest = parse_document(api, document, source=source).digest
            row = await apis.put(session, project.id, api, source=source, document=document, digest=digest)
            if api not in before:  # models are shown how to use these
                await trials.renew(session, project.id, row.id, wanted=False)
        now = await manifest_store.api_tools(session, project.id)
        changed = [api for api in now if now[api] != before.get(api)]  # a rollback outlives a restart
        await manifest.update_tools(session, serving, changed, manifest.SERVER)
    return index


def first_task(address: str, task: dict[str, str]) -> list[str]:
    """Shell lines that submit a task, follow its events and show its result."""
    auth, body = '-H "Authorization: Bearer $KEY"', json.dumps(task | {"project": PROJECT})
    named = f"--project {PROJECT} --scenario {shlex.quote(task['scenario'])}" if "scenario" in task else ""
    return [
        f"  sage run {shlex.quote(task['instruction'])} {named}   # or, without it:",
        f"  curl -s {address}/v1/tasks {auth} -d '{body}'",
        "  ID=...   # the id in that answer",
        f"  curl -sN {address}/v1/tasks/$ID/events {auth}   # its events, as they happen",
        f"  curl -s {address}/v1/tasks/$ID {auth}           # its state and result",
    ]


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
    await stack.enter_async_context(rotation(settings.data_dir))
    stack.push_async_callback(supervisor.stop)  # in case the database does not start
    await supervisor.start(_services(settings))
    url = await stack.enter_async_context(run_database(settings))
    stack.push_async_callback(supervisor.stop)  # before the database stops
    await _ensure_project(settings, url, abilities)
    await supervisor.ready()
    demo = await register_demo(url, base_url("127.0.0.1", settings.demo_port)) if settings.demo_port else None
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
    if settings.demo_port:
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
    if settings.demo_port:
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

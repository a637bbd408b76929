"""`sage doctor`: examines a deployment from one of its hosts: the host, the database, the model servers. Changes
nothing but a probe adapter in the adapter directory; the database of a stopped `sage up` runs while it is
looked at.
"""

import asyncio
import logging
import os
import shutil
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import click
import msgspec
import psycopg
import structlog
from kombu.exceptions import KombuError
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncSession

from app.apis import trials
from app.base.encryption import KeyRing
from app.base.errors import (
    AppError,
    DatabaseError,
    EngineError,
    ModelError,
    SandboxError,
    SettingError,
    first_line,
)
from app.base.processes import base_url
from app.base.settings import Settings
from app.base.text import numbered
from app.base.values import BASE
from app.db import postgres, runners
from app.db.database import Database, open_database, reading
from app.db.encrypted_rows import missing_keys
from app.db.migrate import check_schema
from app.db.notify import NEEDS_DIRECT, is_pooled
from app.engine.hosted.probe import probe
from app.engine.model_scope import trial_remark
from app.engine.tokenizer import ChatTokenizer
from app.engine.vllm import HttpEmbedder
from app.machine.local_database import DataDirLockedError, RunningSettings, lock_data_dir, use_stopped
from app.machine.model_checks import load_served
from app.machine.parts import open_engine
from app.projects import store as projects
from app.releases import hosted_models, manifest_store
from app.releases.adapter_store import AdapterDirectory, AdapterStore, open_remote, remote_errors
from app.releases.bundled_adapter import BundledAdapter
from app.releases.hosted_models import HostedModels
from app.runs import schedule
from app.runs import store as runs
from app.runs.broker import open_broker
from app.runs.schedule import Serving, outlook
from app.sandbox.cgroup import SharedLimits
from app.sandbox.forked_sandbox import ForkedSandbox

Verdict = Literal["ok", "warning", "fault"]
_LEAST_FREE = 1 << 30  # bytes
_LOW_FREE = 5 << 30
_BROKER_SECONDS = 5
_OLDEST = 15  # version of PostgreSQL
_SKEW_WARNING, _SKEW_FAULT = 1.0, 30.0  # seconds
_API_CONNECTIONS, _RUNNER_CONNECTIONS = 31, 16
_WORKER_CONNECTIONS = 5  # at most, as those above


class Finding(msgspec.Struct, frozen=True):
    """A fault keeps tasks from being served; a warning does not. The text of both says what to mend."""

    verdict: Verdict
    part: str
    text: str


def line_of(finding: Finding) -> str:
    """
    >>> line_of(Finding("fault", "broker", "it is down: start it"))
    'fault    broker         it is down: start it'
    """
    return f"{finding.verdict:8} {finding.part:14} {finding.text}"


def summary(findings: Sequence[Finding]) -> str:
    """
    >>> summary([Finding("ok", "disk", ""), Finding("fault", "broker", "it is down: start it")])
    '1 fault, 0 warnings'
    """
    return f"{_count(findings, 'fault')}, {_count(findings, 'warning')}"


def _count(findings: Sequence[Finding], verdict: Verdict) -> str:
    return numbered(sum(each.verdict == verdict for each in findings), verdict)


def examine_deployment(settings: Settings) -> bool:
    """Print each finding as it comes, and a summary. Returns whether there is no fault.

    Nothing else is printed: what checks log, their findings say.
    """
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))

    async def collect() -> list[Finding]:
        found = []
        async for finding in examine(settings):
            found.append(finding)
            click.echo(line_of(finding))
        return found

    findings = asyncio.run(collect())
    click.echo(summary(findings))
    return all(each.verdict != "fault" for each in findings)


async def examine(settings: Settings) -> AsyncIterator[Finding]:
    """Every finding, as it comes. Of the model and its servers, by the settings of a `sage up` that runs here."""
    up = _is_up(settings)
    running = RunningSettings.find(settings.data_dir) if up else None
    settings = running.apply(settings) if running else settings
    model = check_model(settings)
    async for finding in _examine_host(settings, model):
        yield finding
    if not up and not (settings.database_url and settings.engine_urls):
        yield Finding(
            "fault",
            "services",
            "DATABASE_URL or ENGINE_URLS is not set, and `sage up` does not run here: start it",
        )
    stack = ExitStack()
    try:
        url = await asyncio.to_thread(stack.enter_context, _database(settings, up=up))
    except (DatabaseError, DataDirLockedError) as error:
        yield Finding("fault", "database", str(error))
    else:
        async for finding in _examine_database(url, settings, model, running):
            yield finding
    finally:
        await asyncio.to_thread(stack.close)
    engine = settings.engine_urls or (base_url("127.0.0.1", settings.engine_port) if up else "")
    if engine:
        async for finding in _examine_engines(msgspec.structs.replace(settings, engine_urls=engine), model):
            yield finding


async def _examine_host(settings: Settings, model: Finding) -> AsyncIterator[Finding]:
    of_host = check_disk(settings), check_data_dir(settings)
    packages = check_packages(settings)
    for finding in (model, *check_variables(), *of_host, *packages):
        yield finding
    yield await asyncio.to_thread(check_store, settings)
    yield await asyncio.to_thread(check_broker, settings)
    yield await check_sandbox(settings)


async def _examine_database(
    url: str, settings: Settings, model: Finding, running: RunningSettings | None
) -> AsyncIterator[Finding]:
    if not url:
        return
    settings = msgspec.structs.replace(settings, database_url=url)
    key_elsewhere = running is not None and running.has_model_key and not settings.model_key
    async with open_database(url) as database:
        usable = True
        try:
            async for finding in check_database(database):
                usable = usable and (finding.part, finding.verdict) != ("database", "fault")
                yield finding
            if usable:
                yield await asyncio.to_thread(check_addresses, settings)
                yield await check_key(database, settings)
                findings = (
                    check_learning(database, settings),
                    check_trials(database),
                    check_hosted(settings, database, key_elsewhere=key_elsewhere),
                )
                for each in findings:
                    async for finding in each:
                        yield finding
                if model.verdict == "ok":  # adapters are compared with it
                    yield await check_adapters(settings, database)
        except DBAPIError as error:
            yield Finding("fault", "database", first_line(error.orig or error))


async def _examine_engines(settings: Settings, model: Finding) -> AsyncIterator[Finding]:
    if model.verdict == "ok":
        tokenizer = ChatTokenizer.load(settings.model_dir, settings.template_kwargs)
        async for finding in check_engines(settings, tokenizer):
            yield finding
    yield await check_embeddings(settings)


@contextmanager
def _database(settings: Settings, *, up: bool) -> Iterator[str]:
    """The address of the database; "" if there is none yet. That of a stopped `sage up` runs meanwhile."""
    directory = settings.data_dir.absolute() / "postgres"
    if settings.database_url:
        yield settings.database_url
    elif up:
        yield postgres.start(directory)
    elif directory.is_dir():
        with use_stopped(settings) as url:
            yield url
    else:
        yield ""


def _is_up(settings: Settings) -> bool:
    if not (settings.data_dir / "up.lock").exists():
        return False
    try:
        with lock_data_dir(settings.data_dir):
            return False
    except DataDirLockedError:
        return True


def check_model(settings: Settings) -> Finding:
    try:
        tokenizer, profile = load_served(settings.model_dir, settings.prompt_profile, settings.template_kwargs)
    except ModelError as error:
        return Finding("fault", "model", f"SAGE_MODEL={settings.model}: {error}")
    if settings.model_url:
        return Finding("ok", "model", f"{settings.model} at {settings.model_url}")
    return Finding("ok", "model", f"{settings.model}, {tokenizer.max_length:,} tokens, prompt {profile.name}")


def check_variables() -> Iterator[Finding]:
    """Of the environment: nothing where all that look like settings are some."""
    for remark in Settings.misnamed():
        yield Finding("warning", "settings", remark)


def check_disk(settings: Settings) -> Finding:
    place = _nearest(settings.data_dir.absolute())
    free = shutil.disk_usage(place).free
    text = f"{free / (1 << 30):.1f} GiB free at {place}"
    if free < _LEAST_FREE:
        return Finding("fault", "disk", f"{text}: free some, or set SAGE_DATA_DIR to a larger disk")
    if free < _LOW_FREE:
        return Finding("warning", "disk", f"{text}: free some soon")
    return Finding("ok", "disk", text)


def check_data_dir(settings: Settings) -> Finding:
    for place in (settings.data_dir.absolute(), settings.adapters_dir):
        nearest = _nearest(place)
        if not nearest.is_dir() or not os.access(nearest, os.R_OK | os.W_OK | os.X_OK):
            text = f"{nearest} is no directory this user may write to: change its owner, or set SAGE_DATA_DIR"
            return Finding("fault", "data directory", text)
    return Finding("ok", "data directory", str(settings.data_dir.absolute()))


def check_packages(settings: Settings) -> Iterator[Finding]:
    """The extras that the settings need."""
    wanted = {
        "embedded": ("torch", not (settings.database_url and settings.engine_urls)),
        "otel": ("opentelemetry.sdk", bool(settings.otel_exporter_otlp_endpoint)),
        "s3": ("s3fs", settings.adapter_store.startswith("s3:")),
    }
    missing = [extra for extra, (module, needed) in wanted.items() if needed and not _installed(module)]
    for extra in missing:
        yield Finding(
            "fault", "packages", f"the settings need the extra {extra}: pip install 'sage-server[{extra}]'"
        )
    if not missing:
        yield Finding("ok", "packages", "all that the settings need")


def check_store(settings: Settings) -> Finding:
    if not settings.adapter_store:
        return Finding("ok", "adapter store", "none: adapters stay in the data directory")
    try:
        remote, root = open_remote(settings.adapter_store)
        remote.exists(root)
    except SettingError as error:
        return Finding("fault", "adapter store", str(error))
    except remote_errors() as error:
        text = f"{settings.adapter_store} does not answer ({first_line(error)}): check SAGE_ADAPTER_STORE"
        return Finding("fault", "adapter store", text)
    return Finding("ok", "adapter store", settings.adapter_store)


async def check_sandbox(settings: Settings) -> Finding:
    """Opens a session, as a runner does."""
    shared = SharedLimits(memory_bytes=settings.sandbox_project_memory_mb << 20)
    try:
        async with ForkedSandbox(shared=shared) as sandbox:
            text = sandbox.describe().removeprefix("sandbox: ")
    except SandboxError as error:
        return Finding("fault", "sandbox", f"runners of this host execute nothing: {error}")
    return Finding("warning" if "without" in text else "ok", "sandbox", text)


def check_broker(settings: Settings) -> Finding:
    if not settings.broker_url:
        return Finding("ok", "broker", "files in the data directory: workers have to run on this host")
    try:
        with open_broker(settings).connection_for_write() as connection:
            connection.ensure_connection(max_retries=1, timeout=_BROKER_SECONDS)
            shown = connection.as_uri()
    except (KombuError, OSError) as error:
        return Finding(
            "warning",
            "broker",
            f"it does not answer ({first_line(error)}), so runs start late: start it, or correct BROKER_URL",
        )
    return Finding("ok", "broker", shown)


def _nearest(place: Path) -> Path:
    """The place itself, or the nearest directory above it that exists."""
    return next(each for each in (place, *place.parents) if each.exists())


def _installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # of the package that it is in
        return False


async def check_database(database: Database) -> AsyncIterator[Finding]:
    """Version, schema, connections and clock. Nothing but the fault if it cannot be used."""
    try:
        await check_schema(database.engine)
    except DatabaseError as error:
        yield Finding("fault", "database", str(error))
        return
    async with database.sessions() as session:
        yield await _version(session)
        yield await _clock(session)
        yield await _connections(session)
        for finding in await _runners(session):
            yield finding
        yield await _workers(session)


def skew_finding(skew: float, trip: float) -> Finding:
    """Of a database whose clock is `skew` seconds ahead of this host's, as read within `trip` seconds."""
    beyond = abs(skew) - trip / 2
    if beyond <= _SKEW_WARNING:
        return Finding("ok", "clock", "agrees with the database's")
    shown = f"this host is {abs(skew):.1f} s {'behind' if skew > 0 else 'ahead of'} the database"
    return Finding("fault" if beyond > _SKEW_FAULT else "warning", "clock", f"{shown}: run an NTP client on both")


def check_addresses(settings: Settings) -> Finding:
    """Whether what is bound to one connection gets one. Blocks."""
    try:
        pooled = is_pooled(settings.database_url)
        if pooled and not settings.database_direct_url:
            return Finding("fault", "pooler", NEEDS_DIRECT)
        if settings.database_direct_url and is_pooled(settings.database_direct_url):
            text = (
                "DATABASE_DIRECT_URL goes through a pooler: let it lead to PostgreSQL itself, or to a pooler in "
            )
            return Finding("warning", "pooler", f"{text}session mode")
    except psycopg.OperationalError as error:
        return Finding("fault", "pooler", f"DATABASE_DIRECT_URL: {first_line(error)}")
    return Finding("ok", "pooler", "passed by notifications and locks" if pooled else "none")


async def check_key(database: Database, settings: Settings) -> Finding:
    """The key for secrets, and whether it reads what the database has."""
    try:
        keys = KeyRing.open(settings)
        known = keys.ids()
    except SettingError as error:
        return Finding("fault", "key", str(error))
    async with database.engine.connect() as connection:
        lacking = await connection.run_sync(lambda sync: missing_keys(sync, known))
    if lacking:
        return Finding(
            "fault",
            "key",
            f"secrets in the database need {', '.join(sorted(lacking))}, this host has {', '.join(known)}: set "
            "SAGE_SECRET_KEY to the keys that the other hosts have",
        )
    return Finding("ok", "key", f"{known[0]} encrypts")


async def check_learning(database: Database, settings: Settings) -> AsyncIterator[Finding]:
    """Whether the schedules of projects have anything to learn from."""
    serving, sound = Serving.of(settings), 0
    async with reading(database.sessions) as session:
        for project in await projects.list_all(session):
            row = await schedule.find(session, project.id)
            if row is None or not row.enabled:
                continue
            found = await outlook(session, row, serving)
            for problem in found.problems:
                yield Finding("warning", "learning", f"runs of project {project.name} learn nothing: {problem}")
            sound += not found.problems
    if sound:
        yield Finding("ok", "learning", f"{numbered(sound, 'schedule')} with scores to learn from")


async def check_trials(database: Database) -> AsyncIterator[Finding]:
    """Whether the model can use the APIs of projects, by their trials."""
    async with reading(database.sessions) as session:
        tried = (await trials.scores(session)).values()
        not_tried = await trials.not_tried(session)
    for each in tried:
        remark = trial_remark(*each.score)
        if remark is not None and each.made is not None and each.is_outdated:
            remark = (
                f"release {each.made.release} answered 0 of {each.score.asked} questions right, and release "
                f"{each.made.outdated_by} serves now: it is tried again soon"
            )
        if remark is not None:
            yield Finding("warning", "APIs", f"{each.name} of project {each.project}: {remark}")
    for name, project, reason in not_tried:
        again = f"`sage apis trial {name} --again --project {project}` tries it again"
        yield Finding("warning", "APIs", f"{name} of project {project} was not tried: {reason}: {again}")
    if usable := sum(bool(each.score.right) for each in tried):
        yield Finding("ok", "APIs", f"{usable} of {len(tried)} that were tried can be used")


async def _version(session: AsyncSession) -> Finding:
    number = int(await _ask(session, "SHOW server_version_num"))
    shown, schema = (
        await _ask(session, "SHOW server_version"),
        await _ask(session, "SELECT version_num FROM alembic_version"),
    )
    if number // 10_000 < _OLDEST:
        return Finding("fault", "database", f"PostgreSQL {shown} is too old: upgrade it to {_OLDEST} or newer")
    return Finding("ok", "database", f"PostgreSQL {shown}, schema {schema}")


async def _clock(session: AsyncSession) -> Finding:
    before = time.time()
    theirs = float(await _ask(session, "SELECT extract(epoch FROM clock_timestamp())"))
    after = time.time()
    return skew_finding(theirs - (before + after) / 2, after - before)


async def _connections(session: AsyncSession) -> Finding:
    allowed = int(await _ask(session, "SHOW max_connections"))
    count = len(await runners.live(session))
    needed = _API_CONNECTIONS + _RUNNER_CONNECTIONS * max(count, 1) + _WORKER_CONNECTIONS
    users = f"one API, {numbered(max(count, 1), 'runner')} and a worker"
    text = f"the database allows {allowed}; {users} may take {needed}"
    if allowed < needed:
        return Finding("warning", "connections", f"{text}: raise max_connections")
    return Finding("ok", "connections", text)


async def _runners(session: AsyncSession) -> list[Finding]:
    live = await runners.live(session)
    if not live:
        return [Finding("fault", "runners", "none has reported for some seconds: start one with `sage runner`")]
    faulty = [each for each in live if each.error]
    verdict: Verdict = "fault" if len(faulty) == len(live) else "warning"
    findings = [Finding(verdict, "runners", f"{each.host} (pid {each.pid}): {each.error}") for each in faulty]
    if len(faulty) < len(live):
        sound, hosts = len(live) - len(faulty), len({each.host for each in live})
        text = f"{sound} {'works' if sound == 1 else 'work'}, on {numbered(hosts, 'host')}"
        findings.append(Finding("ok", "runners", text))
    return findings


async def _workers(session: AsyncSession) -> Finding:
    if not (found := await runs.workers(session)):
        return Finding("warning", "workers", "none has reported, so no run starts: start one with `sage worker`")
    return Finding("ok", "workers", ", ".join(found))


async def _ask(session: AsyncSession, query: str) -> Any:
    return (await session.execute(text(query))).scalar_one()


async def check_engines(settings: Settings, tokenizer: ChatTokenizer) -> AsyncIterator[Finding]:
    """Each server is probed as at a start: it has to load an adapter from this host's directory."""
    async with open_engine(settings, tokenizer) as engine:
        try:
            for found in await engine.check():
                note = f"; not proved that it sees the adapter directory: {found.note}" if found.note else ""
                loads = "" if found.note else ", sees the adapter directory"
                text = f"{found.url}: {found.server} {found.version}, {found.max_model_len} tokens{loads}{note}"
                yield Finding("warning" if found.note else "ok", "model server", text)
            out = await engine.ready()
            if engine.router is not None:
                behind = f"{numbered(len(engine.replicas), 'model server')} behind it"
                text = f"{engine.router.replica.url} passes on token ids and logprobs, {behind}"
                yield Finding("ok", "router", text)
        except (EngineError, SettingError) as error:
            yield Finding("fault", "model server", str(error))
            return
    if out:
        yield Finding("warning", "model server", out)


async def check_hosted(
    settings: Settings, database: Database, *, key_elsewhere: bool = False
) -> AsyncIterator[Finding]:
    """Probes the hosted models that serve. With `key_elsewhere`, only the server has that of the settings' own."""
    try:
        rules, keys = HostedModels.of(settings), KeyRing.open(settings)
    except SettingError:  # others report it
        return
    async with database.sessions() as session:
        served = await hosted_models.serving(session)
    for row in served:
        if key_elsewhere and rules.names(row):
            text = f"{row.url} was not asked: set SAGE_MODEL_KEY here to what the running server has"
            yield Finding("warning", "model endpoint", text)
            continue
        try:
            key = rules.key_of(row, keys)
            async with rules.connect(row.url, row.model, key, trusted=row.trusted, patience=0) as model:
                await probe(model)
        except (EngineError, SettingError) as error:
            yield Finding("fault", "model endpoint", f"{row.url} does not answer: {error}")
        else:
            yield Finding("ok", "model endpoint", f"{row.url} answers for {row.model}")


async def check_embeddings(settings: Settings) -> Finding:
    url = settings.embeddings_url or settings.model_servers[0]
    embedder = HttpEmbedder(url)
    try:
        await embedder.resolve_model()
        await embedder.embed(["ready?"])
    except EngineError as error:
        return Finding(
            "warning", "embeddings", f"skills are found by their words alone: {error} Set EMBEDDINGS_URL"
        )
    finally:
        await embedder.close()
    return Finding("ok", "embeddings", f"{embedder.model} at {url}")


async def check_adapters(settings: Settings, database: Database) -> Finding:
    """Every adapter that new tasks may get is here, whole, and fits the model. One that comes with it serves."""
    try:
        store = AdapterStore(settings.adapters_dir, settings.adapter_store)
    except SettingError as error:
        return Finding("fault", "adapters", str(error))
    directory = AdapterDirectory(settings.adapters_dir, settings.model_dir, store, base=settings.local_model)
    async with database.sessions() as session:
        serving = await manifest_store.serving(session) - {BASE}
        bare = await manifest_store.projects_of(session, BASE)
    unnamed = []
    for name in sorted(serving):
        try:
            files = await directory.verified(name)
        except AppError as error:
            async with database.sessions() as session:
                waiting = ", ".join(await manifest_store.projects_of(session, name))
            return Finding("fault", "adapters", f"{waiting or 'a canary'}: {error}")
        if settings.engine_router_url and files.base != settings.served_model:
            unnamed.append(f"{name} is for {files.base or 'no named base model'}, not {settings.served_model}")
    if unnamed:
        return Finding(
            "warning",
            "adapters",
            f"a restarted model server cannot load these by itself: {'; '.join(unnamed)}. Set SAGE_ENGINE_MODEL "
            "to the name in `vllm serve NAME`; adapters that are trained from then on carry it",
        )
    if bare and (bundled := BundledAdapter.of(settings.model_dir)):
        return Finding(
            "warning",
            "adapters",
            f"{', '.join(bare)}: the model serves without the adapter that comes with it. "
            f"`sage releases --add {bundled.path} --project NAME` makes it a candidate",
        )
    alone = "the base model serves" if bare else "none serves: projects have hosted models, or there is no project"
    return Finding("ok", "adapters", f"{len(serving)} serve, all verified" if serving else alone)

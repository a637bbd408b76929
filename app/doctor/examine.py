"""Examines a deployment from one of its hosts. Changes nothing but a probe adapter in the adapter directory; the
database of a stopped `sage up` runs while it is looked at.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, contextmanager

import click
import msgspec
import structlog
from sqlalchemy.exc import DBAPIError

from app.db import embedded_postgres
from app.db.database import open_database
from app.doctor import host_checks
from app.doctor.database_checks import check_addresses, check_database, check_key, check_learning, check_trials
from app.doctor.engine_checks import check_adapters, check_embeddings, check_engines, check_hosted
from app.doctor.finding import Finding, line_of, summary
from app.engine.tokenizer import ChatTokenizer
from app.errors import DatabaseError, first_line
from app.machine.data_dir_lock import DataDirLockedError, lock_data_dir
from app.machine.local_database import use_stopped
from app.machine.running_settings import RunningSettings
from app.ports import base_url
from app.settings import Settings


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
    model = host_checks.check_model(settings)
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
    of_host = host_checks.check_disk(settings), host_checks.check_data_dir(settings)
    packages = host_checks.check_packages(settings)
    for finding in (model, *host_checks.check_variables(), *of_host, *packages):
        yield finding
    yield await asyncio.to_thread(host_checks.check_store, settings)
    yield await asyncio.to_thread(host_checks.check_broker, settings)
    yield await host_checks.check_sandbox(settings)


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
        yield embedded_postgres.start(directory)
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

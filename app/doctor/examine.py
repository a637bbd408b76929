"""Examines a deployment from one of its hosts. Changes nothing but a probe adapter in the adapter directory."""

import asyncio
from collections.abc import AsyncIterator

import click
import msgspec
from sqlalchemy.exc import DBAPIError

from app.db import embedded_postgres
from app.db.database import open_database
from app.doctor import host_checks
from app.doctor.database_checks import check_addresses, check_database, check_key, check_learning
from app.doctor.engine_checks import check_adapters, check_embeddings, check_engines
from app.doctor.finding import Finding, line_of, summary
from app.engine.tokenizer import ChatTokenizer
from app.errors import DatabaseError, first_line
from app.machine.data_dir_lock import DataDirLockedError, lock_data_dir
from app.ports import base_url
from app.settings import Settings


def examine_deployment(settings: Settings) -> bool:
    """Print each finding as it comes, and a summary. Returns whether there is no fault."""

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
    """Every finding, as it comes."""
    model = host_checks.check_model(settings)
    yield model
    yield host_checks.check_disk(settings)
    yield host_checks.check_data_dir(settings)
    for finding in host_checks.check_packages(settings):
        yield finding
    yield await asyncio.to_thread(host_checks.check_store, settings)
    yield await asyncio.to_thread(host_checks.check_broker, settings)
    yield await host_checks.check_sandbox(settings)
    found = await asyncio.to_thread(_with_services, settings)
    if isinstance(found, Finding):
        yield found
        return
    async for finding in _examine_services(found, model):
        yield finding


async def _examine_services(settings: Settings, model: Finding) -> AsyncIterator[Finding]:
    async with open_database(settings.database_url) as database:
        usable = True
        try:
            async for finding in check_database(database):
                usable = usable and (finding.part, finding.verdict) != ("database", "fault")
                yield finding
            if usable:
                yield await asyncio.to_thread(check_addresses, settings)
                yield await check_key(database, settings)
                async for finding in check_learning(database, settings):
                    yield finding
                if model.verdict == "ok":  # adapters are compared with it
                    yield await check_adapters(settings, database)
        except DBAPIError as error:
            yield Finding("fault", "database", first_line(error.orig or error))
    if model.verdict == "ok":
        tokenizer = ChatTokenizer.load(settings.model_dir, settings.template_kwargs)
        async for finding in check_engines(settings, tokenizer):
            yield finding
    yield await check_embeddings(settings)


def _with_services(settings: Settings) -> Settings | Finding:
    """With the addresses of what `sage up` runs here in place of those that are not set."""
    if settings.database_url and settings.engine_urls:
        return settings
    if not _is_up(settings):
        return Finding(
            "fault",
            "services",
            "DATABASE_URL or ENGINE_URLS is not set, and `sage up` does not run here: start it",
        )
    try:
        url = settings.database_url or embedded_postgres.start(settings.data_dir.absolute() / "postgres")
    except DatabaseError as error:
        return Finding("fault", "database", str(error))
    engine = settings.engine_urls or base_url("127.0.0.1", settings.engine_port)
    return msgspec.structs.replace(settings, database_url=url, engine_urls=engine)


def _is_up(settings: Settings) -> bool:
    if not (settings.data_dir / "up.lock").exists():
        return False
    try:
        with lock_data_dir(settings.data_dir):
            return False
    except DataDirLockedError:
        return True

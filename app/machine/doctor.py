"""Checks of the database, and of what the other processes of the deployment report in it."""

import time
from collections.abc import AsyncIterator
from typing import Any

import psycopg
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession

from app.db import api_trials, environments, projects, runners, schedules
from app.db.database import Database, reading
from app.db.encrypted_rows import missing_keys
from app.db.learning_outlook import Serving, outlook
from app.db.migrate import check_schema
from app.db.pooler import NEEDS_DIRECT, is_pooled
from app.doctor.finding import Finding, Verdict
from app.engine.model_scope import trial_remark
from app.errors import DatabaseError, SettingError, first_line
from app.plural import numbered
from app.security.encryption import KeyRing
from app.settings import Settings

_OLDEST = 15  # version of PostgreSQL
_SKEW_WARNING, _SKEW_FAULT = 1.0, 30.0  # seconds
_API_CONNECTIONS, _RUNNER_CONNECTIONS = 31, 16
_WORKER_CONNECTIONS = 5


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
            row = await schedules.find(session, project.id)
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
        tried = (await api_trials.scores(session)).values()
        not_tried = await api_trials.not_tried(session)
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
    if not (found := await environments.workers(session)):
        return Finding("warning", "workers", "none has reported, so no run starts: start one with `sage worker`")
    return Finding("ok", "workers", ", ".join(found))


async def _ask(session: AsyncSession, query: str) -> Any:
    return (await session.execute(text(query))).scalar_one()

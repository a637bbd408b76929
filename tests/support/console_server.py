"""The console of a server with a history: tasks that a runner executed on a real ledger, under two releases."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from uuid import UUID

import httpx
from playwright.async_api import BrowserContext
from sqlalchemy import update

from app.base.settings import Settings
from app.base.values import BASE
from app.db import tables
from app.db.database import Sessions, open_database
from app.db.disk_space import DiskSpace
from app.machine.health import readiness_checks
from app.machine.routes import ReadinessCheck
from app.projects import keys
from app.releases import store as releases
from app.sandbox.forked_sandbox import ForkedSandbox
from app.web.server import Shutdown
from tests.support.api_app import ApiApp, open_api_app
from tests.support.encryption_keys import TEST_KEYS
from tests.support.http_server import served
from tests.support.ledger import Ledger
from tests.support.ledger_project import LedgerProject, put_ledger
from tests.support.scripted_engine import byte_tokenizer
from tests.support.taught_policy import TaughtPolicy

_WORDS = ("tea", "milk", "bread", "salt", "rice", "oats")
_WRITTEN = "score = float(len(apis.ledger.list_entries(page=0)) > 0)"
_RIGHT = "print('the answer is', answer)\nscore = float(answer == '15')"


@dataclass
class Console:
    """`api.client` sends an administrator's key."""

    url: str
    api: ApiApp
    database_url: str

    async def session(self, *scopes: str, project_id: UUID | None = None) -> str:
        """The secret of a new session of a key with these scopes."""
        async with self.api.sessions.begin() as session:
            key, _ = await keys.create(session, "ann", scopes or ["admin"], project_id)
            return await keys.begin(session, key.id)

    async def sign_in(self, context: BrowserContext, *scopes: str, project_id: UUID | None = None) -> None:
        """Give a browser the cookie of such a session."""
        value = await self.session(*scopes, project_id=project_id)
        await context.add_cookies(
            [{"name": self.cookie, "value": value, "url": self.url, "httpOnly": True, "sameSite": "Strict"}]
        )

    @property
    def cookie(self) -> str:
        """The name of the cookie of sessions."""
        return f"sage_console_{httpx.URL(self.url).port}"


@dataclass
class ConsoleServer(Console):
    """`project` has a runner, whose policy is `policy`."""

    project: LedgerProject
    policy: TaughtPolicy

    async def done(self, instruction: str, **fields: object) -> UUID:
        """Submit a task and wait for its end."""
        task_id = await self.api.submit(instruction, project="demo", **fields)
        await self.project.ended(task_id)
        return task_id


@asynccontextmanager
async def console_server(
    database_url: str, sandbox: ForkedSandbox, directory: Path
) -> AsyncIterator[ConsoleServer]:
    ledger, tokenizer = Ledger(), byte_tokenizer(directory)
    async with (
        open_database(database_url, keys=TEST_KEYS) as database,
        open_api_app(
            database.sessions,
            database_url,
            _checks(database.sessions, database_url, directory),
            directory=directory,
            tokenizer=tokenizer,
        ) as api,
        ledger.client() as client,
        served(api) as served_client,
    ):
        async with database.sessions.begin() as session:
            await put_ledger(session, api.demo.id, ledger, "http://ledger.test")
        project = LedgerProject(database.sessions, sandbox, tokenizer, ledger, client, api.demo.id)
        policy = TaughtPolicy(tokenizer)
        async with project.runner(policy):
            server = ConsoleServer(str(served_client.base_url).rstrip("/"), api, database_url, project, policy)
            await _make_history(server)
            yield server


def _checks(sessions: Sessions, database_url: str, directory: Path) -> Mapping[str, ReadinessCheck]:
    settings = Settings(data_dir=directory, database_url=database_url)
    return readiness_checks(sessions, DiskSpace(sessions, settings), Shutdown())


async def _make_history(server: ConsoleServer) -> None:
    """Eight days: four under the first release, four under the second."""
    first = [await _write(server, word) for word in _WORDS[:3]] + [await _sum(server, "Bao"), await _count(server)]
    async with server.api.sessions.begin() as session:
        candidate = await releases.propose(session, server.api.demo.id, BASE)
        await releases.activate(session, candidate.id)
    second = [await _write(server, word) for word in _WORDS[3:]] + [await _sum(server, "Iris")]
    await _age(server, first + second)


async def _write(server: ConsoleServer, word: str) -> UUID:
    fields = {"scenario": "notes", "check": _WRITTEN}
    return await server.done(f"write {word} into the ledger", **fields)


async def _sum(server: ConsoleServer, person: str) -> UUID:
    return await server.done(f"sum the amounts in the ledger for {person}", scenario="sums", check=_RIGHT)


async def _count(server: ConsoleServer) -> UUID:
    return await server.done("count the entries, please")


async def _age(server: ConsoleServer, task_ids: Sequence[UUID]) -> None:
    """Move the tasks into the past, a day apart, the last one to yesterday."""
    async with server.api.sessions.begin() as session:
        for days, task_id in enumerate(reversed(task_ids), start=1):
            ago = timedelta(days=days)
            task, words = tables.Task, tables.TaskWords
            times = {name: getattr(task, name) - ago for name in ("created_at", "started_at", "finished_at")}
            await session.execute(update(task).where(task.id == task_id).values(times))
            moved = {"created_at": words.created_at - ago}
            await session.execute(update(words).where(words.task_id == task_id).values(moved))
        release = tables.Release
        middle = release.activated_at - timedelta(days=4.5)
        await session.execute(update(release).where(release.number == 2).values(activated_at=middle))
        early = release.activated_at - timedelta(days=20)
        await session.execute(update(release).where(release.number == 1).values(activated_at=early))

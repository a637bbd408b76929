"""A project with the ledger as its API, and runners for its tasks: only the policy is scripted."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import httpx

from app.agent.prompts import Compact
from app.agent.rollout import Agent, RolloutLimits
from app.apis import store as apis
from app.base.settings import Settings
from app.db import results, tables
from app.db.database import Sessions
from app.db.tables import TASK_END_STATES
from app.engine.protocol import Engine
from app.engine.tokenizer import ChatTokenizer
from app.projects import keys
from app.projects import store as projects
from app.releases import manifest
from app.sandbox.protocol import Sandbox
from app.skills.library import Library
from app.skills.search import query_ngram
from app.tasks import store as tasks
from app.tasks.execution import TaskExecutor
from app.tasks.runner import Runner, RunnerOptions
from tests.support.ledger import Ledger

OPTIONS = RunnerOptions(concurrency=4, lease_seconds=3, poll_seconds=0.1, grace_seconds=1)


@dataclass
class LedgerProject:
    """One project with the ledger as its API."""

    sessions: Sessions
    sandbox: Sandbox
    tokenizer: ChatTokenizer
    ledger: Ledger
    client: httpx.AsyncClient
    id: UUID
    withheld: float = 0.0  # share of tasks that do without skills

    def executor(self, engine: Engine, limits: RolloutLimits | None = None) -> TaskExecutor:
        limits = limits or RolloutLimits()
        agent = Agent(engine, self.tokenizer, Compact(), self.sandbox, limits, temperature=1.0)
        library = Library(self.sessions, retrieval=query_ngram)
        return TaskExecutor(self.sessions, agent, library, self.client, Settings(skills_withheld=self.withheld))

    def runner(
        self, engine: Engine, options: RunnerOptions = OPTIONS, limits: RolloutLimits | None = None
    ) -> Runner:
        return Runner(self.sessions, self.executor(engine, limits).execute, options)

    async def submit(
        self, instruction: str = "write hello into the ledger", *, deaths: int = 0, **more: Any
    ) -> UUID:
        """`deaths`: so many runners have died of it already."""
        async with self.sessions.begin() as session:
            task = await tasks.submit(session, self.id, tasks.NewTask(instruction=instruction, **more))
            task.deaths = deaths
            return task.id

    async def row(self, task_id: UUID) -> tables.Task:
        async with self.sessions() as session:
            return await tasks.get(session, task_id)

    async def ended(self, task_id: UUID) -> tables.Task:
        async def has_ended() -> bool:
            return (await self.row(task_id)).state in TASK_END_STATES

        await until(has_ended)
        return await self.row(task_id)

    async def events(self, task_id: UUID) -> list[tuple[str, dict[str, Any]]]:
        """The events of a task."""
        async with self.sessions() as session:
            return [(row.kind, row.data) for row in await results.after(session, task_id)]


async def open_ledger_project(
    sessions: Sessions, sandbox: Sandbox, tokenizer: ChatTokenizer, ledger: Ledger, client: httpx.AsyncClient
) -> LedgerProject:
    async with sessions.begin() as session:
        project = await projects.create(session, "demo")
        await put_ledger(session, project.id, ledger, "http://ledger.test")
    return LedgerProject(sessions, sandbox, tokenizer, ledger, client, project.id)


async def put_ledger(session: Any, project_id: UUID, ledger: Ledger, server: str) -> None:
    document = ledger.document(server)
    await apis.put(session, project_id, "ledger", source="upload", document=document, digest=server)


async def change_ledger(project: LedgerProject, old: str, new: str) -> tables.Release:
    """Register the ledger's document with another text in it."""
    text = json.dumps(project.ledger.document("http://ledger.test"))
    document = json.loads(text.replace(json.dumps(old), json.dumps(new)))
    async with project.sessions.begin() as session:
        serving = await manifest.lock_active(session, project.id)
        await apis.put(session, project.id, "ledger", source="upload", document=document, digest=new)
        return await manifest.update_tools(session, serving, ["ledger"], "key me")


async def ledger_key(sessions: Sessions, ledger: Ledger, services: str, scope: str) -> str:
    """A key of the server; its project `demo` has the ledger as its API."""
    async with sessions.begin() as session:
        project = await projects.create(session, "demo")
        await put_ledger(session, project.id, ledger, services)
        return (await keys.create(session, "test", [scope]))[1]


async def until(holds: Callable[[], Awaitable[bool] | bool]) -> None:
    while not (held if isinstance(held := holds(), bool) else await held):  # noqa: ASYNC110  there is no event
        await asyncio.sleep(0.02)

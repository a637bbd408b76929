"""A project whose writes wait for approval, its REST API, and the people who decide."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

from app.base.values import Json
from app.db import results
from app.db.database import Sessions
from app.db.tables import TaskState
from app.sandbox.protocol import Sandbox
from tests.support.api_app import ApiApp, open_api_app
from tests.support.ledger import Ledger
from tests.support.ledger_project import LedgerProject, put_ledger, until
from tests.support.scripted_engine import ScriptedEngine, block, byte_tokenizer

COMPLETE = block("apis.supervisor.complete_task()")
WRITE = "print(apis.ledger.add_entry(text='one'))"
WRITES: dict[str, Json] = {"default": "write"}


@dataclass
class ApprovingProject:
    """`api` is the REST API of the same database that the runners of `project` use."""

    api: ApiApp
    project: LedgerProject

    async def rules(self, rules: dict[str, Json]) -> None:
        answer = await self.api.client.patch("/v1/projects/demo", json={"settings": {"approvals": rules}})
        assert answer.status_code == 200, answer.text

    def engine(self, *turns: str) -> ScriptedEngine:
        """Every task runs this code, turn by turn, and then completes."""
        answers = [*map(block, turns), COMPLETE]
        return ScriptedEngine(self.project.tokenizer, script=lambda _, turn: answers[turn])

    async def waiting(self, task_id: UUID) -> dict[str, Any]:
        """The approval that the task waits for, once it does."""

        async def waits() -> bool:
            return (await self.project.row(task_id)).state == TaskState.WAITING

        await until(waits)
        shown: dict[str, Any] = (await self.api.client.get(f"/v1/tasks/{task_id}")).json()["approval"]
        return shown

    async def decide(self, approval: dict[str, Any], decision: str, reason: str = "") -> dict[str, Any]:
        body = {"decision": decision, "reason": reason}
        answer = await self.api.client.post(f"/v1/approvals/{approval['id']}", json=body)
        assert answer.status_code == 200, answer.text
        decided: dict[str, Any] = answer.json()
        return decided

    async def until_written(self, count: int) -> None:
        async def holds() -> bool:
            return len(self.project.ledger.entries) >= count

        await until(holds)

    async def observations(self, task_id: UUID) -> list[str]:
        """What the agent read, turn by turn."""
        async with self.project.sessions() as session:
            return [turn.observation for turn in (await results.of_task(session, task_id)).turns]

    async def has_read(self) -> bool:
        return self.project.ledger.reads > 0

    def written(self) -> list[str]:
        return [entry.text for entry in self.project.ledger.entries]


@asynccontextmanager
async def open_approving_project(
    sessions: Sessions, database_url: str, sandbox: Sandbox, directory: Path
) -> AsyncIterator[ApprovingProject]:
    ledger = Ledger()
    async with open_api_app(sessions, database_url) as api, ledger.client() as client:
        async with sessions.begin() as session:
            await put_ledger(session, api.demo.id, ledger, "http://ledger.test")
        project = LedgerProject(sessions, sandbox, byte_tokenizer(directory), ledger, client, api.demo.id)
        yield ApprovingProject(api, project)

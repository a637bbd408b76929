"""The API of a real server: registered over REST, called by tasks that a real runner executes in the sandbox."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from app.agent.rollout import RolloutLimits
from app.apis.calls.network import open_client
from app.base.values import Trajectory
from app.db import results
from app.db.database import Sessions
from app.db.tables import TaskState
from app.sandbox.protocol import Sandbox
from tests.integration.servers.tried_row import TriedRow
from tests.support.api_app import ApiApp, open_api_app
from tests.support.ledger import Ledger
from tests.support.ledger_project import LedgerProject
from tests.support.scripted_engine import ScriptedEngine, block, byte_tokenizer

_OPERATION = re.compile(r"<([A-Z]+) (/[^>]*)>")
_GIVE_UP = "apis.supervisor.complete_task(status='fail')"  # where the code before did not complete the task
_BYTES = 20_000  # of the code of a task: each is a token
LIMITS = RolloutLimits(turn_tokens=_BYTES, task_tokens=_BYTES)


@dataclass
class TriedApi:
    """One API of the project `demo`. What is done with it becomes the row of the server in the manual."""

    name: str
    api: ApiApp
    project: LedgerProject
    row: TriedRow
    shown: dict[str, Any] = field(default_factory=dict)  # as the registration answered
    trajectory: Trajectory = field(init=False)  # of the last task

    async def register(self, **fields: Any) -> dict[str, Any]:
        """`POST /v1/apis`, by default with the URL at which the server shows its document."""
        answer = await self.api.client.post("/v1/apis", json={"name": self.name, **fields}, timeout=300)
        assert answer.status_code == 201, answer.text
        self.shown = answer.json()
        self.row.operations = len(self.shown["operations"])
        self.row.left_out = [each["reason"] for each in self.shown["left_out"]]
        return self.shown

    async def credentials(self, scheme: str, **fields: Any) -> None:
        """Store them for a scheme, as the answer to the registration says."""
        answer = await self.api.client.put(f"/v1/apis/{self.name}/credentials/{scheme}", json=fields)
        assert answer.status_code == 200, answer.text

    async def states(self) -> dict[str, str]:
        """Of each credential."""
        shown = (await self.api.client.get(f"/v1/apis/{self.name}")).json()
        return {each["scheme"]: each["state"] for each in shown["credentials"]}

    async def test(self, method: str, path: str, /, **arguments: Any) -> dict[str, Any]:
        """`POST /v1/apis/{name}/test` of an operation."""
        body = {"operation": self.operation(method, path), "arguments": arguments}
        answer = await self.api.client.post(f"/v1/apis/{self.name}/test", json=body)
        assert answer.status_code == 200, answer.text
        result: dict[str, Any] = answer.json()
        return result

    def operation(self, method: str, path: str) -> str:
        """The name that it has here, whatever the rules of names are."""
        for each in self.shown["operations"]:
            if (each["method"], each["path"]) == (method, path):
                return str(each["name"])
        raise AssertionError(f"{self.name} has no operation {method} {path}")

    async def task(self, step: str | None, *turns: str) -> Any:
        """What a task answers whose turns run this code. `<GET /path>` stands for an operation of the API.

        `step` says in the manual what works. The task has to be completed, and none of its code may raise.
        """
        answers = [block(self.code(each)) for each in (*turns, _GIVE_UP)]
        engine = ScriptedEngine(self.project.tokenizer, script=lambda _, turn: answers[turn])
        async with self.project.runner(engine, limits=LIMITS):
            task_id = await self.project.submit(step or "try it")
            task = await self.project.ended(task_id)
        async with self.project.sessions() as session:
            trajectory = self.trajectory = await results.of_task(session, task_id)
        observed = "\n".join(turn.observation for turn in trajectory.turns)
        assert (task.state, task.stop) == (TaskState.DONE, "completed"), f"{task.failure}\n{observed}"
        assert {turn.outcome for turn in trajectory.turns} == {"ok"}, observed
        if step is not None:
            self.row.done.append(step)
        return task.answer

    def code(self, code: str) -> str:
        """With the names of the operations."""
        return _OPERATION.sub(lambda found: f"apis.{self.name}.{self.operation(found[1], found[2])}", code)


@asynccontextmanager
async def open_tried_api(
    name: str, row: TriedRow, sessions: Sessions, database_url: str, sandbox: Sandbox, directory: Path
) -> AsyncIterator[TriedApi]:
    async with (
        open_client(allow_private_hosts=True) as client,
        open_api_app(sessions, database_url, http_client=client) as api,
    ):
        tokenizer = byte_tokenizer(directory / "tokenizer", max_length=10 * _BYTES)
        project = LedgerProject(sessions, sandbox, tokenizer, Ledger(), client, api.demo.id)
        yield TriedApi(name, api, project, row)

"""Skills after a document changed: tested on recorded calls, restored, written anew by a task, or retired."""

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.db.database import Sessions
from app.db.tables import SkillState
from app.sandbox.forked_sandbox import ForkedSandbox
from app.skills import store as skills
from app.tasks.repair import SkillRepairs
from tests.support.api_app import ApiApp, open_api_app
from tests.support.ledger import Ledger
from tests.support.ledger_project import LedgerProject, until
from tests.support.scripted_engine import ScriptedEngine, block, byte_tokenizer
from tests.support.traced_transport import TracedAnswers

DONE = block("apis.supervisor.complete_task(answer='ok')")
GO = "tell the subjects of my mails"


def function(name: str, body: str) -> str:
    return f'def {name}(page: int) -> list:\n    """Do it for one page."""\n    {body}\nprint({name}(0))'


READS = function("subjects", "return [each['subject'] for each in apis.mail.list_mails(page=page)]")
ANEW = function("subjects", "return [each['title'] for each in apis.mail.list_mails(page=page)]")
WRITES = function("tidy", "return [apis.mail.drop(id=each['id']) for each in apis.mail.list_mails(page=page)]")


@dataclass
class MailServer:
    """Serves its document and its mails, whose subject has some name."""

    subject: str = "subject"
    sender: str = "from"
    optional: list[str] = field(default_factory=list)
    listed: bool = True
    dropped: int = 0

    def answer(self, request: httpx.Request) -> httpx.Response:
        if request.url.path == "/openapi.json":
            return httpx.Response(200, text=json.dumps(self.document()))
        if request.method == "POST":
            self.dropped += 1
            return httpx.Response(200, json={"dropped": 1})
        return httpx.Response(200, json=[{"id": 1, self.subject: "Hello", self.sender: "iris"}])

    def document(self) -> dict[str, Any]:
        text = {"type": "string"}
        mail = {"type": "object", "properties": {"id": {"type": "integer"}, self.subject: text, self.sender: text}}
        names = ["page", *self.optional]
        found = {
            "operationId": "list_mails" if self.listed else "all_mails",
            "parameters": [
                {"name": each, "in": "query", "required": each == "page", "schema": {"type": "integer"}}
                for each in names
            ],
            "responses": {"200": json_of({"type": "array", "items": mail})},
        }
        body = {"type": "object", "properties": {each: {"type": "integer"} for each in ("page", "id")}}
        drop = {"operationId": "drop", "requestBody": json_of(body), "responses": {"200": json_of({})}}
        return {
            "openapi": "3.1.0",
            "info": {"title": "Mail", "version": "1"},
            "paths": {"/mails": {"post": drop}, "/everything" if not self.listed else "/inbox": {"get": found}},
        }


def json_of(schema: Any) -> dict[str, Any]:
    return {"description": "", "content": {"application/json": {"schema": schema}}}


@dataclass
class Changing:
    api: ApiApp
    project: LedgerProject
    server: MailServer

    async def task(self, *codes: str) -> Any:
        task_id = await self.project.submit(GO)
        async with self.project.runner(self.engine(*codes)):
            return await self.project.ended(task_id)

    def engine(self, *codes: str) -> ScriptedEngine:
        return ScriptedEngine(self.project.tokenizer, *map(block, codes), DONE)

    async def learn(self, code: str, call: str) -> str:
        """The skill that a task writes and another one uses."""
        await self.task(code)
        await self.task(call)
        [skill] = (await self.api.client.get("/v1/skills")).json()["skills"]
        assert skill["state"] == "probation"
        return str(skill["id"])

    async def change(self) -> dict[str, Any]:
        change = (await self.api.client.post("/v1/apis/mail/refresh")).json()["change"]
        assert change["applied"] is True
        return dict(change)

    async def shown(self, skill_id: str) -> dict[str, Any]:
        return dict((await self.api.client.get(f"/v1/skills/{skill_id}")).json())

    def repairs(self) -> SkillRepairs:
        executor = self.project.executor(self.engine())
        return SkillRepairs(self.project.sessions, executor, owner="me", pause=0.05)

    async def decided(self, skill_id: str) -> dict[str, Any]:
        """The skill once something was decided about it, without any task."""
        async with self.repairs():
            await until(lambda: self._is_decided(skill_id))
        return await self.shown(skill_id)

    async def _is_decided(self, skill_id: str) -> bool:
        return (await self.shown(skill_id))["repairs"][0]["outcome"] is not None

    async def tasks(self) -> list[dict[str, Any]]:
        """Those that are to repair skills, newest first."""
        listed = (await self.api.client.get("/v1/tasks")).json()["tasks"]
        each = [(await self.api.client.get(f"/v1/tasks/{task['id']}")).json() for task in listed]
        return [task for task in each if task["repairs"]]


@pytest.fixture
async def mail(
    committed: Sessions, database_url: str, bare_sandbox: ForkedSandbox, tmp_path: Path
) -> AsyncIterator[Changing]:
    server = MailServer()
    async with (
        httpx.AsyncClient(transport=TracedAnswers(server.answer)) as client,
        open_api_app(committed, database_url, http_client=client) as api,
    ):
        tokenizer = byte_tokenizer(tmp_path)
        project = LedgerProject(committed, bare_sandbox, tokenizer, Ledger(), client, api.demo.id)
        body = {"name": "mail", "url": "http://mail.test/openapi.json"}
        assert (await api.client.post("/v1/apis", json=body)).status_code == 201
        yield Changing(api, project, server)


async def test_a_skill_that_the_change_does_not_concern_is_restored(mail: Changing) -> None:
    skill = await mail.learn(READS, "print(subjects(page=0))")
    mail.server.optional, mail.server.sender = ["limit"], "sender"
    change = await mail.change()
    assert (change["changed"], change["skills"]) == (["list_mails"], [skill])
    waiting = await mail.shown(skill)
    assert (waiting["state"], waiting["held"], waiting["reason"]) == (
        "quarantined",
        True,
        "changed: mail.list_mails",
    )
    shown = await mail.decided(skill)
    assert (shown["state"], shown["held"]) == ("probation", False)
    [repair] = shown["repairs"]
    assert (repair["api"], repair["was"], repair["outcome"]) == ("mail", "probation", "restored")
    assert repair["tried"] == ["tested on 1 recorded calls: the same calls, and the same results"]
    [listed] = (await mail.api.client.get("/v1/apis/mail/changes")).json()
    assert (listed["restored"], listed["repaired"], listed["retired"]) == ([skill], [], [])
    assert await mail.tasks() == []


async def test_a_skill_that_reads_a_renamed_field_is_written_anew_by_a_task(mail: Changing) -> None:
    skill = await mail.learn(READS, "print(subjects(page=0))")
    mail.server.subject = "title"
    await mail.change()
    async with mail.repairs(), mail.project.runner(mail.engine(ANEW)):
        await until(lambda: mail._is_decided(skill))
    shown = await mail.shown(skill)
    [repair] = shown["repairs"]
    assert repair["outcome"] == "repaired"
    assert "KeyError: 'subject'" in repair["tried"][0]
    [task] = await mail.tasks()
    assert (task["repairs"], task["id"], task["instruction"]) == (skill, repair["task_id"], GO)
    newest, former = (await mail.api.client.get(f"/v1/skills/{skill}/versions")).json()
    assert (newest["version"], newest["state"], newest["task_id"]) == (2, "probation", task["id"])
    assert (former["id"], former["state"]) == (skill, "superseded")
    [listed] = (await mail.api.client.get("/v1/apis/mail/changes")).json()
    assert listed["repaired"] == [skill]
    audited = (await mail.api.client.get("/v1/audit")).json()["entries"]
    assert [each["detail"]["task"] for each in audited if each["action"] == "skill repair"] == [task["id"]]


async def test_a_skill_that_its_tasks_do_not_repair_is_retired_and_they_cannot_write(mail: Changing) -> None:
    skill = await mail.learn(READS, "print(subjects(page=0))")
    mail.server.listed = False
    await mail.change()
    attempt = "apis.mail.all_mails(page=0)\napis.mail.drop(page=0, id=1)"
    engine = ScriptedEngine(mail.project.tokenizer, block(attempt), DONE, block(attempt), DONE)
    async with mail.repairs(), mail.project.runner(engine):
        await until(lambda: mail._is_decided(skill))
    shown = await mail.shown(skill)
    assert (shown["state"], shown["reason"]) == ("retired", "2 tasks did not repair it")
    assert shown["repairs"][0]["outcome"] == "retired"
    assert len(await mail.tasks()) == 2
    assert mail.server.dropped == 0
    [listed] = (await mail.api.client.get("/v1/apis/mail/changes")).json()
    assert listed["retired"] == [skill]
    restored = (await mail.api.client.post(f"/v1/skills/{skill}/restore")).json()
    assert (restored["state"], restored["held"]) == ("probation", False)


async def test_what_a_broken_skill_changes_is_not_repeated(mail: Changing) -> None:
    skill = await mail.learn(WRITES, "print(tidy(page=0))")
    dropped = mail.server.dropped
    mail.server.listed = False
    await mail.change()
    shown = await mail.decided(skill)
    assert shown["state"] == "retired"
    assert "it changes something, so no task may repeat its work" in shown["reason"]
    assert (mail.server.dropped, await mail.tasks()) == (dropped, [])


async def test_a_project_may_want_no_tasks_for_it(mail: Changing) -> None:
    skill = await mail.learn(READS, "print(subjects(page=0))")
    settings = {"settings": {"skill_repairs_per_day": 0}}
    assert (await mail.api.client.patch("/v1/projects/demo", json=settings)).status_code == 200
    mail.server.subject = "title"
    await mail.change()
    shown = await mail.decided(skill)
    assert (shown["state"], shown["repairs"][0]["outcome"]) == ("quarantined", "left")
    assert await mail.tasks() == []


async def test_a_later_change_takes_over_and_a_person_goes_first(mail: Changing) -> None:
    skill = await mail.learn(READS, "print(subjects(page=0))")
    mail.server.listed = False
    await mail.change()
    mail.server.listed = True
    again = await mail.change()
    assert again["skills"] == [], "an operation that is new broke nothing"
    mail.server.optional = ["limit"]
    assert (await mail.change())["skills"] == [skill]
    shown = await mail.decided(skill)
    assert [each["outcome"] for each in shown["repairs"]] == ["restored", "left"]
    assert [each["was"] for each in shown["repairs"]] == ["probation", "probation"]
    mail.server.optional = ["limit", "size"]
    await mail.change()
    await mail.api.client.post(f"/v1/skills/{skill}/approve")
    shown = await mail.decided(skill)
    assert shown["repairs"][0]["outcome"] == "left"
    async with mail.project.sessions() as session:
        [row] = await skills.of_ids(session, [shown["id"]])
        assert row.state is SkillState.PROBATION

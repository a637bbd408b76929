"""Staging that is reset by a signed POST before each trial: what is sent, and what a failed reset ends in."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from app.base.errors import InvalidError, StagingError
from app.db.database import Sessions
from app.db.tables import ExamSource
from app.projects import secrets
from app.projects import store as projects
from app.releases.exams import store as exams
from app.releases.exams.store import NewExamTask
from tests.support.api_app import open_api_app, problem
from tests.support.examined import examined
from tests.support.ledger import Ledger
from tests.support.ledger_project import LedgerProject, put_ledger
from tests.support.scripted_engine import block
from tests.support.webhook_receiver import SECRET, WebhookReceiver, is_signed
from trainer.evaluation.metrics import TaskResult
from trainer.exam import trials

WRITE = block("apis.ledger.add_entry(text='hello')\napis.supervisor.complete_task()")
CHECK = "score = float([each['text'] for each in apis.ledger.list_entries()] == ['hello'])"


class Resetting(WebhookReceiver):
    """It empties the ledger of staging once it is asked to."""

    def __init__(self, ledger: Ledger, *statuses: int) -> None:
        super().__init__(*statuses)
        self.ledger = ledger

    def act(self) -> None:
        self.ledger.entries.clear()


@dataclass
class Stage:
    project: LedgerProject
    receiver: Resetting
    server: str
    reset_url: str
    live: str

    async def settings(self, **staging: Any) -> None:
        fields = {"server": self.server, "reset_url": self.reset_url, "reset_secret": "reset-key", **staging}
        async with self.project.sessions.begin() as session:
            await projects.change_settings(session, self.project.id, {"staging": {"ledger": fields}})

    async def tried(self, count: int = 1) -> list[TaskResult]:
        new = [
            NewExamTask(instruction=f"write hello, number {number}", check_code=CHECK) for number in range(count)
        ]
        async with self.project.sessions.begin() as session:
            await exams.put(session, self.project.id, "mine", ExamSource.SUBMITTED, new)
        return await examined(self.project, "staging", lambda *_: WRITE)


@pytest.fixture
async def stage(project: LedgerProject, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Stage]:
    monkeypatch.setattr(trials, "_RESET_PAUSES", (0.01, 0.01))
    ledger = Ledger()
    receiver = Resetting(ledger)
    async with AsyncExitStack() as stack:
        live = await stack.enter_async_context(project.ledger.listening())
        server = await stack.enter_async_context(ledger.listening())
        reset_url = await stack.enter_async_context(receiver.listening())
        async with project.sessions.begin() as session:
            await put_ledger(session, project.id, ledger, live)
            await secrets.put(session, project.id, "reset-key", SECRET)
        opened = Stage(project, receiver, server, reset_url, live)
        await opened.settings()
        yield opened


async def test_a_signed_post_resets_the_server_before_each_trial(stage: Stage) -> None:
    results = await stage.tried(count=3)
    assert [each.success for each in results] == [True] * 3
    assert len(stage.receiver.received) == 3
    assert all(map(is_signed, stage.receiver.received))
    message = msgspec.json.decode(stage.receiver.received[0].body)
    assert (message["type"], message["data"]) == ("staging.reset", {"project": "demo", "api": "ledger"})
    assert len({each.headers["webhook-id"] for each in stage.receiver.received}) == 3


async def test_a_reset_that_fails_for_a_moment_is_tried_again(stage: Stage) -> None:
    stage.receiver.statuses = [503, 500, 204]
    [result] = await stage.tried()
    assert (result.success, len(stage.receiver.received)) == (True, 3)


@pytest.mark.parametrize(
    ("statuses", "tries", "error"),
    [([500] * 3, 3, "it answered with an error: status 500"), ([401], 1, "it answered with an error: status 401")],
)
async def test_a_reset_that_fails_ends_the_exam(stage: Stage, statuses: list[int], tries: int, error: str) -> None:
    stage.receiver.statuses = statuses
    with pytest.raises(StagingError, match=f"the staging server of ledger cannot be reset: reset_url: {error}"):
        await stage.tried()
    assert (len(stage.receiver.received), stage.receiver.ledger.entries) == (tries, [])


async def test_a_receiver_that_does_not_answer_ends_the_exam(stage: Stage) -> None:
    await stage.settings(reset_url="http://127.0.0.1:9/reset")
    with pytest.raises(StagingError, match="cannot be reset: reset_url: it cannot be reached"):
        await stage.tried()


async def test_production_is_not_asked_to_reset_itself(stage: Stage) -> None:
    await stage.settings(reset_url=f"{stage.live}/reset")
    with pytest.raises(InvalidError, match=r"staging\.ledger\.reset_url is at a server that tasks call"):
        await stage.tried()


@pytest.mark.parametrize(
    ("secret", "error"),
    [("none", "staging: the secret 'none' that"), ("odd-key", r"staging\.ledger\.reset_secret is not `whsec_`")],
)
async def test_a_secret_that_signs_nothing_is_named(stage: Stage, secret: str, error: str) -> None:
    async with stage.project.sessions.begin() as session:
        await secrets.put(session, stage.project.id, "odd-key", "no key")
    await stage.settings(reset_secret=secret)
    with pytest.raises(InvalidError, match=error):
        await stage.tried()


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"reset_url": "https://ci.test/reset"}, "`reset_url` and `reset_secret` need each other"),
        ({"reset": "wipe", "reset_url": "https://a.test", "reset_secret": "s"}, "either `reset` or `reset_url`"),
        ({"reset": "wipe", "stateless": True}, "`stateless` needs no reset"),
        ({"reset_url": "https://me@ci.test/", "reset_secret": "s"}, "`reset_url`: write http://host/path"),
        ({"server": "http://127.0.0.1:8195api/v1"}, "`server`: write http://host/path"),
        ({"server": "https://[broken/x"}, "`server`: write http://host/path"),
    ],
)
async def test_a_reset_that_is_half_described_is_refused(
    committed: Sessions, database_url: str, fields: dict[str, object], error: str
) -> None:
    async with open_api_app(committed, database_url) as api:
        staging = {"ledger": {"server": "https://staging.test", **fields}}
        answer = await api.client.patch("/v1/projects/demo", json={"settings": {"staging": staging}})
        assert error in str(problem(answer))


async def test_only_administrators_are_shown_the_path_of_the_address(
    committed: Sessions, database_url: str
) -> None:
    async with open_api_app(committed, database_url) as api:
        staging = {"server": "https://staging.test", "reset_url": "https://ci.test/t0ken", "reset_secret": "s"}
        await api.client.patch("/v1/projects/demo", json={"settings": {"staging": {"ledger": staging}}})
        seen = await api.client.get("/v1/projects/demo", headers=await api.key("tasks"))
        assert seen.json()["settings"]["staging"]["ledger"]["reset_url"] == "https://ci.test/***"

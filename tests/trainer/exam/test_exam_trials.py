"""Trials on staging servers and on live APIs: what they reach, what they may do there, and what is refused."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import msgspec
import pytest
from litestar import Request, get, post

from app.base.errors import InvalidError, StagingError
from app.db.tables import ExamSource
from app.projects import secrets
from app.projects import store as projects
from app.releases.exams import store as exams
from app.releases.exams.store import NewExamTask
from tests.support.examined import examined
from tests.support.ledger import Entry, Ledger
from tests.support.ledger_project import LedgerProject, put_ledger
from tests.support.scripted_engine import ScriptedEngine, block
from tests.support.training_project import ProgressRecorder
from trainer.evaluation.metrics import TaskResult

CHECK = "score = float([each['text'] for each in apis.ledger.list_entries()] == ['hello'])"
WRITE = block("apis.ledger.add_entry(text='hello')\napis.supervisor.complete_task()")
COMPLETE = block("apis.supervisor.complete_task()")
READ = block("apis.supervisor.complete_task(answer=len(apis.ledger.list_entries()))")


class TrialLedger(Ledger):
    """It can be reset, and keeps the credentials of those who ask."""

    def __init__(self) -> None:
        self.tokens: list[str] = []
        super().__init__()

    def _routes(self) -> list[Any]:
        @post("/reset", operation_id="reset_entries", summary="forget all entries")
        async def reset_entries() -> None:
            self.entries.clear()

        @get("/caller", operation_id="show_caller", summary="who asks")
        async def show_caller(request: Request[Any, Any, Any]) -> None:
            self.tokens.append(request.headers.get("authorization", ""))

        return [*super()._routes(), reset_entries, show_caller]


class Town:
    """The ledger that tasks call, and another one for trials."""

    def __init__(self, project: LedgerProject, live: str, staging: str, other: TrialLedger) -> None:
        self.project = project
        self.live, self.staging = live, staging
        self.trial_ledger = other
        self.progress = ProgressRecorder()

    async def stage(self, **staging: Any) -> None:
        restored = {"stateless": "reset" not in staging}
        await self.change({"staging": {"ledger": {"server": self.staging, **restored, **staging}}})

    async def change(self, settings: dict[str, Any]) -> None:
        async with self.project.sessions.begin() as session:
            await projects.change_settings(session, self.project.id, settings)

    async def tried(self, ground: str, answer: str, check: str = CHECK, count: int = 1) -> list[TaskResult]:
        """Tasks of an exam that were given with their check."""
        new = [
            NewExamTask(instruction=f"write hello, number {number}", check_code=check) for number in range(count)
        ]
        async with self.project.sessions.begin() as session:
            await exams.put(session, self.project.id, "mine", ExamSource.SUBMITTED, new)
        return await examined(self.project, ground, lambda *_: answer, probe=True, progress=self.progress)


@pytest.fixture
async def town(project: LedgerProject) -> AsyncIterator[Town]:
    other = TrialLedger()
    async with AsyncExitStack() as stack:
        live = await stack.enter_async_context(project.ledger.listening())
        staging = await stack.enter_async_context(other.listening())
        async with project.sessions.begin() as session:
            await put_ledger(session, project.id, other, live)
        yield Town(project, live, staging, other)


async def test_a_trial_on_staging_acts_there_and_its_check_decides(town: Town) -> None:
    await town.stage()
    [result] = await town.tried("staging", WRITE)
    assert (result.known, result.success) == (True, True)
    assert town.trial_ledger.entries == [Entry("hello")]
    assert (town.project.ledger.entries, town.project.ledger.reads) == ([], 0)
    assert await town.tried("staging", WRITE) == []  # nothing was reset, so nothing is left to do


async def test_the_apis_are_reset_before_each_trial(town: Town) -> None:
    await town.stage(reset="reset_entries")
    results = await town.tried("staging", WRITE, count=3)
    assert [each.success for each in results] == [True] * 3
    assert town.trial_ledger.entries == [Entry("hello")]


async def test_tasks_for_rollouts_are_tried_on_staging_too(town: Town) -> None:
    async with town.project.runner(ScriptedEngine(town.project.tokenizer, script=lambda *_: READ)):
        for scenario in ("examined", "trained"):
            served = await town.project.submit(f"do {scenario}", scenario=scenario, check_code="score = 1.0")
            await town.project.ended(served)
    async with town.project.sessions.begin() as session:
        chosen = await exams.from_log(session, town.project.id, scenarios=["examined"])
        await exams.put(session, town.project.id, "mine", ExamSource.LOG, chosen)
    await town.stage(reset="reset_entries")
    reads = town.project.ledger.reads
    [result] = await examined(town.project, "staging", lambda *_: WRITE, "train")
    assert (result.scenario, result.known, result.success) == ("trained", True, True)
    assert town.trial_ledger.entries == [Entry("hello")]
    assert (town.project.ledger.entries, town.project.ledger.reads) == ([], reads)


@pytest.mark.parametrize("answer", [WRITE, COMPLETE])
async def test_a_staging_server_that_is_down_makes_a_trial_unknown(town: Town, answer: str) -> None:
    """For the policy, and for the check alone."""
    town.staging = "http://127.0.0.1:9"
    await town.stage()
    [result] = await town.tried("staging", answer)
    assert not result.known


async def test_a_run_shows_how_many_tasks_are_checked_before_it_trains(town: Town) -> None:
    await town.stage()
    await town.tried("staging", WRITE, count=3)
    assert town.progress.parts == [("exam checks", done, 3) for done in (1, 2, 3)]


async def test_a_reset_that_fails_ends_the_exam(town: Town) -> None:
    await town.stage(reset="add_entry")  # which needs arguments
    with pytest.raises(StagingError, match=r"the staging server of ledger cannot be reset: add_entry\(\) raised"):
        await town.tried("staging", WRITE)


@pytest.mark.parametrize(
    ("staging", "error"),
    [
        ({}, "staging has no server for ledger: name it in the project's settings"),
        ({"ledger": {"server": "{live}"}}, "staging.ledger.server is at a server that tasks call, http"),
        ({"ledger": {"server": "{live}/elsewhere"}}, "staging.ledger.server is at a server that tasks call, http"),
        (
            {"ledger": {"server": "{staging}", "reset": "wipe"}},
            "staging.ledger.reset: ledger has no operation 'wipe'",
        ),
        ({"ledger": {"server": "{staging}"}}, "staging.ledger has no reset: trials would meet what earlier ones"),
        (
            {"ledger": {"server": "{staging}", "token_secret": "key", "stateless": True}},
            "staging: the secret 'key' that this call",
        ),
    ],
)
async def test_staging_that_is_none_is_refused(town: Town, staging: dict[str, Any], error: str) -> None:
    text = msgspec.json.encode(staging).decode().replace("{live}", town.live)
    await town.change({"staging": msgspec.json.decode(text.replace("{staging}", town.staging))})
    with pytest.raises(InvalidError, match=error):
        await town.tried("staging", WRITE)
    assert town.project.ledger.entries == town.trial_ledger.entries == []


async def test_staging_gets_its_own_token(town: Town) -> None:
    async with town.project.sessions.begin() as session:
        await secrets.put(session, town.project.id, "staging-key", "the-staging-token")
    await town.stage(token_secret="staging-key")
    [result] = await town.tried("staging", WRITE, check=f"apis.ledger.show_caller()\n{CHECK}")
    assert result.success
    assert set(town.trial_ledger.tokens) == {"Bearer the-staging-token"}


async def test_on_live_apis_only_tasks_that_read_are_tried_and_nothing_is_written(town: Town) -> None:
    async with town.project.runner(ScriptedEngine(town.project.tokenizer, script=lambda *_: READ)):
        read = await town.project.submit("count the entries", check_code="score = float(answer == 0)")
        await town.project.ended(read)
    async with town.project.runner(ScriptedEngine(town.project.tokenizer, script=lambda *_: WRITE)):
        wrote = await town.project.submit("write hello", check_code="score = 1.0")
        await town.project.ended(wrote)
    entries = list(town.project.ledger.entries)
    assert entries == [Entry("hello")]
    async with town.project.sessions.begin() as session:
        chosen = await exams.of_tasks(session, town.project.id, [read, wrote])
        await exams.put(session, town.project.id, "mine", ExamSource.LOG, chosen)
    [counted] = await examined(town.project, "live", lambda *_: READ)
    assert (counted.known, counted.success) == (True, False)  # there is one entry now
    [tried_to_write] = await examined(town.project, "live", lambda *_: WRITE)
    assert not tried_to_write.known
    assert town.project.ledger.entries == entries


async def test_on_live_apis_a_read_that_waits_for_a_person_is_not_made(town: Town) -> None:
    async with town.project.runner(ScriptedEngine(town.project.tokenizer, script=lambda *_: READ)):
        read = await town.project.submit("count the entries", check_code="score = float(answer == 0)")
        await town.project.ended(read)
    async with town.project.sessions.begin() as session:
        chosen = await exams.of_tasks(session, town.project.id, [read])
        await exams.put(session, town.project.id, "mine", ExamSource.LOG, chosen)
    await town.change({"approvals": {"operations": {"ledger.list_entries": "always"}}})
    reads = town.project.ledger.reads
    [result] = await examined(town.project, "live", lambda *_: READ)
    assert (result.known, town.project.ledger.reads) == (False, reads)

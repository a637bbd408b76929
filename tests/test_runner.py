"""Tasks from the queue to their end, with a real database, sandbox and API."""

import asyncio
import time
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy.exc import TimeoutError as NoConnectionError

from app.agent.stop_signal import StopSignal
from app.db import calls, models, offers, skills, task_queue, trajectories, turns
from app.db.models import TaskState
from app.engine.tokenizer import ChatTokenizer
from app.errors import EngineError, EngineRefusalError
from app.records import Call, Stop
from app.runner.runner import Runner, RunnerOptions
from tests.ledger_project import OPTIONS, LedgerProject, until
from tests.rows import turn_of
from tests.scripted_engine import Answer, ScriptedEngine, block
from tests.single_connection import single_connection

SKILL = """
def write_entry(text: str) -> int:
    return apis.ledger.add_entry(text=text)["id"]
print(write_entry("{word}"))"""
DONE = "apis.supervisor.complete_task()"


def writing(prompt: str, turn: int) -> Answer:
    """Writes a skill, or uses the offered one."""
    if turn > 0:
        return block(DONE)
    word = prompt.partition("write ")[2].split()[0]
    return block(f"print(write_entry('{word}'))" if "skills:" in prompt else SKILL.format(word=word))


class Stuck(ScriptedEngine):
    """Never answers, and counts the pending requests."""

    pending = 0

    async def _next(self, prompt: str) -> Answer:
        self.pending += 1
        try:
            await asyncio.sleep(3600)
        finally:
            self.pending -= 1
        return prompt


class Gated(ScriptedEngine):
    """Answers a task once its word is in `open`; `waiting` are the words of those that ask."""

    def __init__(self, tokenizer: ChatTokenizer) -> None:
        super().__init__(tokenizer, script=writing)
        self.open, self.waiting = set[str](), set[str]()

    async def _next(self, prompt: str) -> Answer:
        word = prompt.partition("write ")[2].split()[0]
        self.waiting.add(word)
        await until(lambda: _is(word in self.open))
        self.waiting.discard(word)
        return await super()._next(prompt)


async def test_a_finished_task_has_a_trajectory_and_its_events(project: LedgerProject) -> None:
    engine = ScriptedEngine(project.tokenizer, script=writing)
    async with project.runner(engine) as runner:
        task_id = await project.submit()
        runner.wake()
        row = await project.ended(task_id)
    assert (row.state, row.stop, row.failure, row.turns, row.calls) == (
        TaskState.DONE,
        Stop.COMPLETED,
        None,
        2,
        1,
    )
    assert row.release_id is not None
    async with project.sessions() as session:
        trajectory = await trajectories.of_task(session, task_id)
    assert trajectory.policy.release == row.release_id
    assert row.generated_tokens == trajectory.generated_tokens > 0
    recorded = await project.events(task_id)
    assert [kind for kind, _ in recorded] == [
        "turn",
        "call",
        "observation",
        "turn",
        "observation",
        "skill",
        "done",
    ]
    assert recorded[1][1]["api"] == "ledger.add_entry"
    assert recorded[2][1]["text"] == "1"
    assert recorded[-1][1]["stop_reason"] == "completed"


async def test_the_next_task_uses_the_skill_that_the_first_one_wrote(project: LedgerProject) -> None:
    async with project.runner(ScriptedEngine(project.tokenizer, script=writing)):
        first = await project.submit("write hello into the ledger")
        await project.ended(first)
        second = await project.submit("write goodbye into the ledger")
        await project.ended(second)
        without = await project.submit("write nothing into the ledger", use_skills=False)
        await project.ended(without)
    async with project.sessions() as session:
        [made] = await skills.made_by(session, first)
        [(offer, skill)] = await offers.to_task(session, second)
        assert await offers.to_task(session, without) == []
    assert (made.name, made.apis, skill.id) == ("write_entry", ["ledger.add_entry"], made.id)
    assert (offer.calls, offer.returned) == (1, 1)
    assert [entry.text for entry in project.ledger.entries] == ["hello", "goodbye", "nothing"]
    recorded = [data["status"] for kind, data in await project.events(second) if kind == "skill"]
    assert recorded == ["offered", "used"]


async def test_a_cancelled_task_stops_within_two_seconds(project: LedgerProject) -> None:
    engine = Stuck(project.tokenizer)
    async with project.runner(engine):
        task_id = await project.submit()
        await until(lambda: _is(engine.pending == 1))
        async with project.sessions.begin() as session:
            await session.merge(models.Task(id=task_id, cancel_requested=True))
        started = time.monotonic()
        row = await project.ended(task_id)
    assert time.monotonic() - started < 2
    assert (row.state, row.stop, engine.pending) == (TaskState.CANCELLED, Stop.CANCELLED, 0)


async def test_no_more_tasks_run_concurrently_than_allowed(project: LedgerProject) -> None:
    engine = Stuck(project.tokenizer)
    async with project.runner(
        engine, RunnerOptions(concurrency=2, poll_seconds=0.05, grace_seconds=0.2)
    ) as runner:
        for _ in range(4):
            await project.submit()
        await until(lambda: _is(engine.pending == 2))
        await asyncio.sleep(0.3)
        assert (engine.pending, runner.running) == (2, 2)


async def test_a_runner_that_stops_hands_its_tasks_to_the_next(project: LedgerProject) -> None:
    stuck = Stuck(project.tokenizer)
    long_lease = RunnerOptions(lease_seconds=600, poll_seconds=0.05, grace_seconds=1)
    async with project.runner(stuck, long_lease):
        task_id = await project.submit()
        await until(lambda: _is(stuck.pending == 1))
    row = await project.row(task_id)
    assert (row.state, row.owner) == (TaskState.RUNNING, None)
    async with project.runner(ScriptedEngine(project.tokenizer, script=writing), long_lease):
        row = await project.ended(task_id)
    assert (row.stop, row.attempt) == (Stop.COMPLETED, 2)


async def test_a_rollout_whose_task_was_claimed_by_another_runner_is_dropped(project: LedgerProject) -> None:
    engine = Stuck(project.tokenizer)
    async with project.runner(engine) as runner:
        task_id = await project.submit()
        await until(lambda: _is(engine.pending == 1))
        async with project.sessions.begin() as session:
            await session.merge(models.Task(id=task_id, owner="another"))
        await until(lambda: _is(runner.running == 0))
    row = await project.row(task_id)
    assert (row.state, row.owner) == (TaskState.RUNNING, "another")


async def test_the_lease_of_a_running_task_is_renewed(project: LedgerProject) -> None:
    engine = Stuck(project.tokenizer)
    async with project.runner(engine, RunnerOptions(lease_seconds=0.9, poll_seconds=0.05, grace_seconds=0.2)):
        task_id = await project.submit()
        await until(lambda: _is(engine.pending == 1))
        await asyncio.sleep(2)
        async with project.sessions.begin() as session:
            assert await task_queue.claim(session, "another", 1) is None
        assert (await project.row(task_id)).attempt == 1


@pytest.mark.parametrize(
    ("error", "failure"),
    [
        (EngineRefusalError("no model named x: load it"), "no model named x: load it"),
        (EngineError("the engine is down"), "the engine is down"),
    ],
)
async def test_an_engine_error_fails_the_task_with_its_message(
    project: LedgerProject, error: EngineError, failure: str
) -> None:
    async with project.runner(ScriptedEngine(project.tokenizer, error)):
        row = await project.ended(await project.submit())
    assert (row.state, row.failure) == (TaskState.FAILED, failure)


async def test_a_bug_fails_one_task_without_its_secrets_and_not_the_next(project: LedgerProject) -> None:
    def broken(prompt: str, turn: int) -> Answer:
        if "break" in prompt:
            raise ZeroDivisionError("secret")
        return writing(prompt, turn)

    async with project.runner(ScriptedEngine(project.tokenizer, script=broken)):
        bad = await project.ended(await project.submit("break it"))
        good = await project.ended(await project.submit())
    assert (bad.state, good.state) == (TaskState.FAILED, TaskState.DONE)
    assert bad.failure is not None
    assert "secret" not in bad.failure
    assert (await project.events(bad.id))[-1][0] == "done"


@pytest.mark.parametrize(
    ("check", "score", "failure"),
    [
        ("entries = apis.ledger.list_entries()\nscore = len(entries) / 2 if answer == {'n': 1} else 0", 0.5, None),
        ("score = 1 / 0", 0.0, "ZeroDivisionError"),
        ("print('nothing set')", 0.0, "score"),
        ("score = 2", 0.0, "between 0 and 1"),
        ("apis.ledger.add_entry(text='cheat')\nscore = 1", 0.0, "only reading"),
    ],
)
async def test_a_check_scores_the_task_with_read_access_only(
    project: LedgerProject, check: str, score: float | None, failure: str | None
) -> None:
    answers = (block(SKILL.format(word="hi")), block("apis.supervisor.complete_task(answer={'n': 1})"))
    async with project.runner(ScriptedEngine(project.tokenizer, *answers)):
        row = await project.ended(await project.submit(check_code=check))
    assert (row.state, row.score) == (TaskState.DONE, score)
    assert failure is None or failure in (row.failure or "")
    assert len(project.ledger.entries) == 1


async def test_a_task_that_killed_a_runner_alone_fails_and_keeps_what_is_recorded(project: LedgerProject) -> None:
    task_id, lost = await project.submit(), Call(seq=0, turn=1, api="ledger.add_entry", arguments={"text": "x"})
    async with project.sessions.begin() as session:
        await task_queue.claim(session, "first", 30)
        await turns.begin(session, task_id, "first", 0, turn_of("one"))
        await turns.end(session, task_id, "first", 0, turn_of("one"))
        await turns.begin(session, task_id, "first", 1, turn_of("two"))
        await calls.begin(session, task_id, "first", lost, repeatable=False)
        await task_queue.abandon(session, "first")
        await task_queue.claim(session, "second", 30)
        await task_queue.mark_alone(session, task_id, "second")
        await task_queue.abandon(session, "second")
    async with project.runner(ScriptedEngine(project.tokenizer, script=writing), OPTIONS):
        row = await project.ended(task_id)
    assert (row.state, row.stop, row.turns, row.calls) == (TaskState.FAILED, Stop.CRASHED, 2, 1)
    assert row.failure is not None
    assert row.failure.startswith("2 runners died during this task, the last while it executed nothing else")
    async with project.sessions() as session:
        trajectory = await trajectories.of_task(session, task_id)
    assert [(turn.text, turn.outcome) for turn in trajectory.turns] == [("one", ""), ("two", "crashed")]
    assert [(call.api, call.error is None) for call in trajectory.calls] == [("ledger.add_entry", False)]
    assert project.ledger.entries == []


async def test_a_suspect_waits_for_the_tasks_under_way_and_nothing_starts_beside_it(
    project: LedgerProject,
) -> None:
    engine = Gated(project.tokenizer)
    async with project.runner(engine, OPTIONS) as runner:
        first = await project.submit("write first into the ledger")
        await until(lambda: _is(engine.waiting == {"first"}))
        suspect = await project.submit("write suspect into the ledger")
        async with project.sessions.begin() as session:
            await session.merge(models.Task(id=suspect, deaths=1))
        await until(lambda: _is(runner.running == 2))
        later = await project.submit("write later into the ledger")
        await asyncio.sleep(0.4)
        assert engine.waiting == {"first"}
        engine.open.add("first")
        await project.ended(first)
        await until(lambda: _is(engine.waiting == {"suspect"}))
        await asyncio.sleep(0.4)
        assert engine.waiting == {"suspect"}
        engine.open |= {"suspect", "later"}
        assert (await project.ended(suspect)).alone
        assert not (await project.ended(later)).alone


async def test_a_runner_that_abandons_its_tasks_counts_a_death_and_claims_nothing_more(
    project: LedgerProject,
) -> None:
    engine = Stuck(project.tokenizer)
    async with project.runner(engine, OPTIONS) as runner:
        task_id = await project.submit()
        await until(lambda: _is(engine.pending == 1))
        await runner.abandon()
        runner.wake()
        await asyncio.sleep(0.3)
        row = await project.row(task_id)
        assert (row.owner, row.deaths, row.attempt) == (None, 1, 1)


async def test_a_task_that_was_dropped_is_resumed_soon_and_no_death_is_counted(project: LedgerProject) -> None:
    engine = ScriptedEngine(project.tokenizer, script=writing)
    executor = project.executor(engine)
    dropped: list[UUID] = []

    async def drop_once(row: models.Task, owner: str, stop_signal: StopSignal) -> None:
        if not dropped:
            dropped.append(row.id)
            raise NoConnectionError
        await executor.execute(row, owner, stop_signal)

    async with Runner(project.sessions, drop_once, RunnerOptions(lease_seconds=600, poll_seconds=0.1)):
        row = await project.ended(await project.submit(), 5)
    assert (row.state, row.deaths, dropped) == (TaskState.DONE, 0, [row.id])


async def test_leases_that_expired_during_an_outage_are_left_to_their_owners(project: LedgerProject) -> None:
    task_id = await project.submit()
    async with project.sessions.begin() as session:
        await task_queue.claim(session, "another", -1)
    options = RunnerOptions(lease_seconds=1.5, poll_seconds=0.1)
    async with project.runner(ScriptedEngine(project.tokenizer, script=writing), options):
        await asyncio.sleep(1)  # like after an outage, the runner has not had contact for as long as a lease
        assert (await project.row(task_id)).owner == "another"
        row = await project.ended(task_id)
    assert (row.state, row.deaths) == (TaskState.DONE, 1)


async def test_a_runner_recovers_after_a_while_without_a_connection(
    project: LedgerProject, database_url: str
) -> None:
    engine = Stuck(project.tokenizer)
    async with (
        single_connection(database_url) as database,
        Runner(database.sessions, project.executor(engine).execute, OPTIONS) as runner,
    ):
        first = await project.submit()
        await until(lambda: _is(engine.pending == 1))
        await database.starve(1.5)
        await project.submit()
        runner.wake()
        await until(lambda: _is(engine.pending == 2))
        async with project.sessions.begin() as session:
            await session.merge(models.Task(id=first, cancel_requested=True))
        assert (await project.ended(first)).state == TaskState.CANCELLED


async def test_a_defect_while_claiming_does_not_end_the_claim_loop(project: LedgerProject) -> None:
    class Broken:
        """Sessions of which the first raises a defect."""

        def __init__(self) -> None:
            self.opened = 0

        def begin(self) -> Any:
            return project.sessions.begin()

        def __call__(self) -> Any:
            self.opened += 1
            if self.opened == 1:  # the first claim
                raise ZeroDivisionError
            return project.sessions()

    sessions: Any = Broken()
    engine = ScriptedEngine(project.tokenizer, script=writing)
    async with Runner(sessions, project.executor(engine).execute, OPTIONS):
        assert (await project.ended(await project.submit())).state == TaskState.DONE
    assert sessions.opened > 1


async def test_a_task_without_a_connection_is_left_to_be_resumed(
    project: LedgerProject, database_url: str
) -> None:
    engine = ScriptedEngine(project.tokenizer, script=writing)
    async with single_connection(database_url) as database:
        executor = replace(project.executor(engine), sessions=database.sessions)
        task_id = await project.submit()
        async with project.sessions.begin() as session:
            task = await task_queue.claim(session, "me", 30)
        assert task is not None
        starving = asyncio.create_task(database.starve(2))
        await asyncio.sleep(0.1)
        with pytest.raises(NoConnectionError):
            await executor.execute(task, "me", StopSignal())
        await starving
    assert (await project.row(task_id)).state == TaskState.RUNNING


async def _is(value: bool) -> bool:
    return value


async def test_a_runner_that_is_woken_while_it_stops_ends(project: LedgerProject) -> None:
    """At many delays: being woken must not make it forget that it was cancelled."""
    for delay in range(40):
        async with asyncio.timeout(20):
            async with project.runner(ScriptedEngine(project.tokenizer, script=writing)) as runner:
                for _ in range(delay):
                    await asyncio.sleep(0)
                await asyncio.sleep(0.01)
                runner.wake()

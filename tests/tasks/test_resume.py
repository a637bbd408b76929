"""Runners are killed during tasks: every task still ends, and no call is made twice."""

import asyncio
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from sqlalchemy import event
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncEngine

from app.agent.rollout import RolloutLimits, StopSignal
from app.base.errors import ConflictError
from app.base.values import Call, Offer, Stop, Turn, Use
from app.db import results, tables
from app.db.database import Sessions
from app.db.tables import TASK_END_STATES, TaskState
from app.projects import store as projects
from app.sandbox.protocol import SessionLimits
from app.tasks import calls, queue, turns
from app.tasks import store as tasks
from app.tasks.journal import SentMarks, TaskJournal
from tests.support.ledger import Ledger
from tests.support.ledger_project import LedgerProject, put_ledger, until
from tests.support.rows import turn_of
from tests.support.runner_process import CONCURRENCY
from tests.support.scripted_engine import END, Answer, ScriptedEngine, block

TASKS = 20
KILLED_AT = (15, 30, 45)
"""Writes."""
WRITES = 5


@asynccontextmanager
async def runner_process(database_url: str, directory: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    command = (sys.executable, "-m", "tests.support.runner_process", database_url, str(directory))
    process = await asyncio.create_subprocess_exec(*command)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGKILL)
        await process.wait()


@pytest.mark.slow
async def test_after_kills_every_task_has_ended_and_no_call_was_made_twice(
    committed: Sessions, database_url: str, tmp_path: Path
) -> None:
    ledger = Ledger(pause=0.001)  # with long calls, a kill finds nearly every task in doubt
    async with ledger.listening() as server:
        ids = await _submit(committed, ledger, server)
        for threshold in KILLED_AT:
            async with runner_process(database_url, tmp_path):
                await until(lambda at=threshold: _reached(ledger, at))  # type: ignore[misc]
        async with runner_process(database_url, tmp_path):
            await until(lambda: _all_ended(committed, ids))
    rows = [await _row(committed, task_id) for task_id in ids]
    written = Counter(" ".join(entry.text.split()[:2]) for entry in ledger.entries)
    assert {row.state for row in rows} == {TaskState.DONE}
    assert set(written.values()) == {1}, "no write was made twice"
    assert {row.stop for row in rows} <= {Stop.COMPLETED, Stop.IN_DOUBT}
    completed = [row for row in rows if row.stop == Stop.COMPLETED]
    assert all(
        row.attempt > 1 and "whether the call arrived is not known" in (row.failure or "")
        for row in rows
        if row.stop == Stop.IN_DOUBT
    )
    assert any(row.attempt > 1 for row in completed), "some were resumed to their end"
    assert len(completed) >= TASKS - len(KILLED_AT) * CONCURRENCY
    for row in completed:
        await _check_complete(committed, ledger, row)


async def _check_complete(sessions: Sessions, ledger: Ledger, row: tables.Task) -> None:
    """The answer has one number of the ledger per write."""
    word = row.instruction.split()[1]
    mine = [number for number, entry in enumerate(ledger.entries, 1) if entry.text.startswith(f"{word} ")]
    assert row.answer == mine
    assert len(mine) == WRITES
    async with sessions() as session:
        trajectory = await results.of_task(session, row.id)
    assert [call.seq for call in trajectory.calls] == list(range(WRITES + 1))
    assert [turn.outcome for turn in trajectory.turns] == ["ok"] * 4


async def _submit(sessions: Sessions, ledger: Ledger, server: str) -> list[Any]:
    async with sessions.begin() as session:
        project = await projects.create(session, "demo")
        await put_ledger(session, project.id, ledger, server)
        new = [tasks.NewTask(instruction=f"write t{n} now", use_skills=False) for n in range(TASKS)]
        return [(await tasks.submit(session, project.id, each)).id for each in new]


async def _row(sessions: Sessions, task_id: Any) -> tables.Task:
    async with sessions() as session:
        return await tasks.get(session, task_id)


async def _reached(ledger: Ledger, count: int) -> bool:
    return len(ledger.entries) >= count


async def _all_ended(sessions: Sessions, ids: list[Any]) -> bool:
    rows = [await _row(sessions, task_id) for task_id in ids]
    return all(row.state in TASK_END_STATES for row in rows)


@pytest.mark.parametrize(
    ("code", "api", "arguments", "stop"),
    [
        ("apis.ledger.add_entry(text='a')", "ledger.add_entry", {"text": "a"}, Stop.IN_DOUBT),
        ("apis.ledger.list_entries()", "ledger.list_entries", {}, Stop.COMPLETED),
        ("apis.ledger.list_entries(page=1)", "ledger.list_entries", {}, Stop.IN_DOUBT),
    ],
)
async def test_a_call_without_a_result_is_repeated_only_if_it_is_safe_and_the_same(
    project: LedgerProject, code: str, api: str, arguments: dict[str, Any], stop: Stop
) -> None:
    task_id = await died_in_a_call(project, code, Call(seq=0, turn=0, api=api, arguments=arguments))
    async with project.runner(ScriptedEngine(project.tokenizer, block("apis.supervisor.complete_task()"))):
        row = await project.ended(task_id)
    assert (row.state, row.stop) == (TaskState.DONE, stop)
    assert project.ledger.entries == []
    if stop == Stop.IN_DOUBT:
        assert api in (row.failure or "")


async def test_code_that_catches_the_in_doubt_error_still_makes_no_call(project: LedgerProject) -> None:
    code = "try:\n    apis.ledger.add_entry(text='a')\nexcept Exception:\n    apis.ledger.add_entry(text='b')"
    lost = Call(seq=0, turn=0, api="ledger.add_entry", arguments={"text": "a"})
    task_id = await died_in_a_call(project, code, lost)
    async with project.runner(ScriptedEngine(project.tokenizer, block("apis.supervisor.complete_task()"))):
        row = await project.ended(task_id)
    assert row.stop == Stop.IN_DOUBT
    assert project.ledger.entries == []


async def test_a_runner_that_lost_its_task_cannot_write_to_the_journal(project: LedgerProject) -> None:
    await project.submit()
    async with project.sessions.begin() as session:
        row = await queue.claim(session, "me", 30)
    assert row is not None
    journal = TaskJournal(project.sessions, row, "someone else", StopSignal())
    turn = Turn(context_ids=(1,), sampled_ids=(), logprobs=(), text="hm")
    with pytest.raises(Exception, match="no longer held"):
        await journal.on_sampled(0, turn)
    with pytest.raises(Exception, match="no longer held"):
        await _send(journal, Call(seq=0, turn=0, api="ledger.add_entry", arguments={}))
    assert (await journal.resume_state()).recorded == ()


async def died_in_a_call(project: LedgerProject, code: str, call: Call, **task: Any) -> Any:
    """Leave a task as a runner that died during its first call does."""
    task_id = await project.submit(use_skills=False, **task)
    ids = tuple(project.tokenizer.encode(block(code) + END))
    opening = tuple(project.tokenizer.encode("..."))
    turn = Turn(context_ids=opening, sampled_ids=ids, logprobs=(0.0,) * len(ids), text=block(code))
    async with project.sessions.begin() as session:
        row = await queue.claim(session, "dead", 60)
        assert row is not None
        await turns.begin(session, row.id, "dead", 0, turn)
        repeatable = call.api == "ledger.list_entries"
        await calls.begin(session, row.id, "dead", call, repeatable=repeatable)
        await queue.abandon(session, "dead")
    return task_id


async def test_a_repeatable_call_is_written_before_the_next_other_call_goes_out(project: LedgerProject) -> None:
    journal, row = await _journal(project)
    look = Call(seq=0, turn=0, api="ledger.list_entries", arguments={}, result=[])
    await journal.begin(look, True)
    await journal.end(look)
    await _send(journal, Call(seq=1, turn=0, api="ledger.add_entry", arguments={}))
    async with project.sessions() as session:
        made = await calls.of_task(session, row.id)
    assert [(each.seq, each.call is not None) for each in made] == [(0, True), (1, False)]


async def test_pending_calls_and_their_events_are_written_when_the_rollout_ends(
    project: LedgerProject,
) -> None:
    journal, row = await _journal(project)
    look = Call(seq=0, turn=0, api="ledger.list_entries", arguments={"token": "abc"}, result=[])
    await journal.begin(look, True)
    await journal.end(look)
    await journal.flush()
    async with project.sessions() as session:
        [event] = await results.after(session, row.id)
        [made] = await calls.of_task(session, row.id)
    assert (event.kind, event.data["api"], event.data["arguments"]) == (
        "call",
        "ledger.list_entries",
        {"token": "***"},
    )
    assert made.call == look


async def test_of_several_offered_skills_the_one_that_was_used_is_reported(project: LedgerProject) -> None:
    journal, row = await _journal(project)
    journal.offered = tuple(
        Offer(skill_id=uuid4(), name=name, version=1, signature=f"{name}()", source="", instruction="")
        for name in ("add", "carry", "sum")
    )
    turn = turn_of(uses=(Use("carry", True, calls=2, returned=1), Use("add", False, calls=1, returned=1)))
    await journal.on_sampled(0, turn)
    await journal.on_turn_end(0, turn)
    async with project.sessions() as session:
        found = [each.data for each in await results.after(session, row.id) if each.kind == "skill"]
    assert [(each["status"], each["name"], each["calls"]) for each in found] == [("used", "carry", 2)]


@pytest.mark.parametrize("why", ["released", "lost"])
async def test_no_call_is_sent_once_the_task_is_no_longer_its_runners(
    project: LedgerProject, tmp_path: Path, why: str
) -> None:
    """Whoever goes on with the task relies on the mark, and may make the call already."""
    journal, _ = await _journal(project, SentMarks.open(tmp_path))
    await journal.begin(Call(seq=0, turn=0, api="ledger.add_entry", arguments={}), False)
    setattr(journal.stop_signal, why, True)
    with pytest.raises(ConflictError, match="is no longer held by me"):
        await journal.sending()


async def test_a_call_is_in_the_journal_from_when_its_request_is_about_to_be_written(
    project: LedgerProject,
) -> None:
    journal, row = await _journal(project)
    await journal.begin(Call(seq=0, turn=0, api="ledger.add_entry", arguments={}), False)
    assert await _made(project, row.id) == []
    await journal.sending()
    [begun] = await _made(project, row.id)
    await journal.abort()
    assert (begun.call, len(await _made(project, row.id))) == (None, 1), "what was sent stays in doubt"


async def test_a_call_that_cannot_be_sent_is_not_in_doubt_although_its_record_was_committed(
    project: LedgerProject,
) -> None:
    failures = list[str]()

    def fail(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        if "begun" in statement and "INSERT INTO task_calls" in statement and len(failures) < 2:
            failures.append(statement)
            raise OperationalError(statement, None, Exception("the connection was lost after the commit"))

    engine: AsyncEngine = project.sessions.kw["bind"]
    event.listen(engine.sync_engine, "after_cursor_execute", fail)
    answers = block("apis.ledger.add_entry(text='a')"), block("apis.supervisor.complete_task()")
    async with project.runner(ScriptedEngine(project.tokenizer, *answers)):
        row = await project.ended(await project.submit(use_skills=False))
    event.remove(engine.sync_engine, "after_cursor_execute", fail)
    assert (row.stop, row.failure, len(failures)) == (Stop.COMPLETED, None, 2)
    assert len(project.ledger.entries) == 1


async def test_a_call_during_which_its_code_ran_out_of_time_leaves_no_later_call_in_doubt(
    project: LedgerProject,
) -> None:
    project.ledger.answers.clear()
    short = RolloutLimits(session=SessionLimits(wall_seconds=5))  # a busy machine sends the call within them
    first, last = (
        "apis.ledger.add_entry(text='a')",
        "apis.ledger.add_entry(text='b')\napis.supervisor.complete_task()",
    )
    engine = Held(project.tokenizer, block(first), block(last))
    task_id = await project.submit(use_skills=False)
    async with project.runner(engine, limits=short):
        await until(engine.asked.is_set)
    project.ledger.answers.set()
    engine.open.set()
    async with project.runner(engine):
        row = await project.ended(task_id)
    async with project.sessions() as session:
        trajectory = await results.of_task(session, task_id)
    assert (row.stop, [entry.text for entry in project.ledger.entries]) == (Stop.COMPLETED, ["a", "b"])
    stopped, done = trajectory.calls
    assert (stopped.seq, stopped.arguments, done.seq) == (0, {"text": "a"}, 1)
    assert "whether the call arrived is not known" in (stopped.error or "")


class Held(ScriptedEngine):
    """Answers at once, and after the first turn once it is `open`."""

    def __init__(self, *script: Any) -> None:
        super().__init__(*script)
        self.asked, self.open = asyncio.Event(), asyncio.Event()

    async def _next(self, prompt: str) -> Answer:
        if "add_entry" in prompt:
            self.asked.set()
            await self.open.wait()
        return await super()._next(prompt)


async def _made(project: LedgerProject, task_id: UUID) -> list[calls.JournalCall]:
    async with project.sessions() as session:
        return await calls.of_task(session, task_id)


async def _send(journal: TaskJournal, call: Call) -> None:
    """As far as a call goes that must not be repeated until its request is written."""
    await journal.begin(call, False)
    await journal.sending()


async def _journal(project: LedgerProject, marks: SentMarks | None = None) -> tuple[TaskJournal, tables.Task]:
    await project.submit()
    async with project.sessions.begin() as session:
        row = await queue.claim(session, "me", 30)
    assert row is not None
    return TaskJournal(project.sessions, row, "me", StopSignal(), marks), row

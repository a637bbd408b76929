"""`sage run` and `sage tasks ID --follow` against the real server and a runner: only the policy is scripted."""

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import UUID

import pytest

from app.db import results
from app.db.tables import TaskState
from tests.support.approving import WRITE, WRITES, ApprovingProject
from tests.support.cut_proxy import Address, CutProxy
from tests.support.http_server import served
from tests.support.ledger_policies import DONE, Gated, Stuck, writing
from tests.support.ledger_project import until
from tests.support.sage_command import SageCommand
from tests.support.scripted_engine import ScriptedEngine

ANSWER = "apis.supervisor.complete_task(answer={'mails': 4})"


@pytest.fixture
async def shell(demo: ApprovingProject) -> AsyncIterator[SageCommand]:
    async with served(demo.api) as client:
        yield SageCommand(demo.api, str(client.base_url))


async def test_a_task_is_told_as_it_happens_and_its_answer_is_all_of_the_output(
    demo: ApprovingProject, shell: SageCommand
) -> None:
    async with demo.project.runner(demo.engine("print(apis.ledger.list_entries())", ANSWER)):
        ended = await shell.run("run", "how many mails", "--scenario", "count", "--principal", "iris")
    assert (ended.code, ended.out) == (0, '{"mails": 4}\n'), ended.err
    told = ended.err.splitlines()
    task_id = told[0].removeprefix("task ")
    row = await demo.project.row(UUID(task_id))
    assert (row.instruction, row.scenario, row.principal) == ("how many mails", "count", "iris")
    assert told[1].startswith("turn 1, ")
    assert told[2:4] == ["So be it.", "print(apis.ledger.list_entries())"]
    assert told[4].startswith("  ledger.list_entries()  0.")
    assert told[5] == "[]"
    assert told[-1].startswith("done: 2 turns, ")
    again = await shell.run("tasks", task_id, "--follow")
    assert (again.code, again.out, again.err.splitlines()) == (0, ended.out, told[1:])
    whole = await shell.run("tasks", task_id, "--follow", "--json")
    assert json.loads(whole.out) == (await demo.api.client.get(f"/v1/tasks/{task_id}")).json()


async def test_skills_are_told_when_written_offered_and_used(demo: ApprovingProject, shell: SageCommand) -> None:
    async with demo.project.runner(ScriptedEngine(demo.project.tokenizer, script=writing)):
        first = await shell.run("run", "write hello into it", "--scenario", "write")
        second = await shell.run("run", "write goodbye into it", "--scenario", "write")
        alone = await shell.run("run", "write nothing into it", "--no-skills", "--quiet")
    assert "skill written: write_entry v1" in first.err.splitlines()
    assert {"skill offered: write_entry v1", "skill used: write_entry v1"} <= set(second.err.splitlines())
    assert (alone.code, alone.out, alone.err) == (0, "", "")
    assert demo.written() == ["hello", "goodbye", "nothing"]


@pytest.mark.parametrize(
    ("code", "check", "exit_code", "last"),
    [
        (DONE, "score = 1", 0, "done, solved: "),
        (DONE, "score = 0.2", 3, "done, failed 0.2: "),
        ("no code", None, 1, ""),
    ],
)
async def test_the_exit_code_says_how_the_task_ended(
    demo: ApprovingProject,
    shell: SageCommand,
    tmp_path: Path,
    code: str,
    check: str | None,
    exit_code: int,
    last: str,
) -> None:
    (tmp_path / "check.py").write_text(check or "")
    options = ("--check", str(tmp_path / "check.py")) if check else ()
    engine = ScriptedEngine(demo.project.tokenizer, script=lambda *_: f"```python\n{code}\n```" if check else code)
    async with demo.project.runner(engine):
        ended = await shell.run("run", "do it", *options)
    assert ended.code == exit_code, ended.err
    assert last in ended.err


async def test_what_the_check_did_is_told(demo: ApprovingProject, shell: SageCommand, tmp_path: Path) -> None:
    check = "print('looking')\nscore = float(len(apis.ledger.list_entries()) == 1)"
    (tmp_path / "check.py").write_text(check)
    async with demo.project.runner(demo.engine("apis.supervisor.complete_task(answer='none')")):
        ended = await shell.run("run", "do it", "--check", str(tmp_path / "check.py"))
        (tmp_path / "check.py").write_text("1 / 0")
        broken = await shell.run("run", "do it", "--check", str(tmp_path / "check.py"))
    told = ended.err.splitlines()
    called = next(line for line in told if line.startswith("  check:"))
    assert called.startswith("  check:  ledger.list_entries()  0.")
    assert told[told.index(called) + 1 :][:2] == ["check: failed, 1 call", "looking"]
    assert "check: broken, 0 calls" in broken.err
    assert "the check failed, so it scores 0: ZeroDivisionError: division by zero" in broken.err
    assert "ZeroDivisionError" in broken.err
    assert "{" not in ended.err + broken.err


async def test_an_interrupted_command_leaves_the_task_running_and_says_how_to_cancel_it(
    demo: ApprovingProject, shell: SageCommand
) -> None:
    engine = Stuck(demo.project.tokenizer)
    async with demo.project.runner(engine):
        process = await shell.start("run", "write hello into it")
        await until(lambda: engine.pending == 1)
        assert process.stderr is not None
        task_id = (await process.stderr.readline()).decode().removeprefix("task ").strip()
        async with demo.api.sessions.begin() as session:
            await results.append(session, UUID(task_id), "remark", {"text": "it listens"})
        await process.stderr.readuntil(b"it listens\n")
        process.send_signal(signal.SIGINT)
        interrupted = await shell.ended(process)
        assert interrupted.code == 130, interrupted.err
        assert f"cancel it:  sage tasks {task_id} --cancel" in interrupted.err
        assert (await demo.project.row(UUID(task_id))).state == TaskState.RUNNING
        following = await shell.start("tasks", task_id, "--follow")
        assert (await shell.run("tasks", task_id, "--cancel")).code == 0
        assert (await shell.ended(following)).code == 4


async def test_a_lost_connection_is_resumed_without_a_repeated_event(
    demo: ApprovingProject, shell: SageCommand
) -> None:
    engine = Gated(demo.project.tokenizer)
    async with CutProxy(Address(int(shell.url.rpartition(":")[2]))) as proxy, demo.project.runner(engine):
        process = await SageCommand(demo.api, proxy.url).start("run", "write hello into it")
        await until(lambda: "hello" in engine.waiting)
        proxy.reset()
        engine.open.add("hello")
        ended = await shell.ended(process)
    assert ended.code == 0, ended.err
    told = [line for line in ended.err.splitlines() if line.startswith("turn ")]
    assert [line.partition(",")[0] for line in told] == ["turn 1", "turn 2"]


async def test_a_call_that_waits_for_a_person_is_told_with_the_command_that_decides(
    demo: ApprovingProject, shell: SageCommand
) -> None:
    await demo.rules(WRITES)
    async with demo.project.runner(demo.engine(WRITE)):
        process = await shell.start("run", "write one into it")
        approval = await _waiting(shell)
        listed = await shell.run("approvals", "--state", "waiting")
        assert [line.split()[1::3] for line in listed.out.splitlines()[1:]] == [["waiting", "ledger.add_entry"]]
        shown = await shell.run("approvals show", approval)
        assert ["arguments", "text", "one"] in [line.split() for line in shown.out.splitlines()]
        assert (await shell.run("approvals approve", approval)).out == "ledger.add_entry is approved\n"
        ended = await shell.ended(process)
    assert ended.code == 0, ended.err
    assert f"  sage approvals approve {approval}" in ended.err.splitlines()
    assert "ledger.add_entry was approved by key test admin" in ended.err
    assert demo.written() == ["one"]


async def test_what_cannot_be_submitted_is_refused(
    demo: ApprovingProject, shell: SageCommand, tmp_path: Path
) -> None:
    (tmp_path / "check.py").write_text("score =")
    refused = await shell.run("run", "do it", "--check", str(tmp_path / "check.py"))
    assert (refused.code, "check: not valid Python, line 1" in refused.err) == (6, True)
    assert (await shell.run("run", "do it", "--variables", "region")).code == 2
    away = await SageCommand(demo.api, "http://127.0.0.1:9").run("run", "do it")
    assert (away.code, "http://127.0.0.1:9 does not answer" in away.err) == (5, True)
    queued = await shell.run("run", "do it", "--no-follow", "--variables", "region=eu")
    assert (await demo.project.row(UUID(queued.out.strip()))).variables == {"region": "eu"}


async def _waiting(shell: SageCommand) -> str:
    """The id of the approval, once there is one."""
    while not (listed := (await shell.api.client.get("/v1/approvals")).json()["approvals"]):  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    return str(listed[0]["id"])

"""A task that changes more than its project expects waits for a person, who sees what it has done."""

from uuid import UUID

import msgspec
import pytest

from app.db import feedback
from app.db.models import TaskState
from app.gateway.approval_gate import ApprovalGate, ApprovalWantedError
from app.project.approval import ApprovalRules
from app.records import Call, CallResponse, Json, Stop
from app.runner.approval_expiry import ApprovalExpiry
from tests.approving import ApprovingProject
from tests.console_pages import read_page
from tests.http_server import served
from tests.ledger import Ledger
from tests.sage_command import SageCommand
from tests.support.every_row import every_row

ALL = """
for number in range({}):
    try:
        apis.ledger.add_entry(text=f'row {{number}}')
    except PermissionError as error:
        print(number, error)
"""


async def test_the_eleventh_change_waits_and_shows_the_ten_before_it(demo: ApprovingProject) -> None:
    task_id = await demo.project.submit()
    engine = demo.engine("print(apis.ledger.list_entries())", ALL.format(12))
    async with demo.project.runner(engine):
        approval = await demo.waiting(task_id)
        assert demo.written() == [f"row {number}" for number in range(10)]
        shown = (await demo.api.client.get(f"/v1/approvals/{approval['id']}")).json()
        assert shown["because"] == "10 changes were made: ledger.add_entry (10)"
        assert shown["arguments"] == {"text": "row 10", "amount": 1} or shown["arguments"] == {"text": "row 10"}
        assert [(each["operation"], each["change"]) for each in shown["before"]] == [
            ("ledger.list_entries", False),
            *[("ledger.add_entry", True)] * 10,
        ]
        assert shown["before"][1]["arguments"]["text"] == "row 0"
        await demo.decide(approval, "approve")
        row = await demo.project.ended(task_id)
    assert (row.state, row.stop) == (TaskState.DONE, Stop.COMPLETED)
    assert demo.written() == [f"row {number}" for number in range(12)]
    page = (await demo.api.client.get(f"/v1/approvals/{approval['id']}")).json()
    assert len(page["before"]) == 11, "they are shown once it is decided, too"


async def test_whoever_decides_reads_why_it_waits_and_what_was_done(demo: ApprovingProject) -> None:
    await demo.rules({"max_writes": 2})
    task_id = await demo.project.submit()
    because = "2 changes were made: ledger.add_entry (2)"
    async with demo.project.runner(demo.engine("print(apis.ledger.list_entries())", ALL.format(3))):
        approval = await demo.waiting(task_id)
        async with served(demo.api) as client:
            shell = SageCommand(demo.api, str(client.base_url))
            shown = await shell.run("approvals show", approval["id"])
            followed = await shell.start("tasks", str(task_id), "--follow")
            pages = [f"/console/approvals/{approval['id']}", "/console/approvals", f"/console/tasks/{task_id}"]
            texts = [await read_page(demo.api, each, "admin") for each in pages]
            await demo.decide(approval, "refuse")
            told = (await shell.ended(followed)).err
    assert because in shown.out
    assert [line.split(maxsplit=1) for line in shown.out.splitlines()[-3:]] == [
        ["no", "ledger.list_entries()"],
        ["yes", "ledger.add_entry(text='row 0')"],
        ["yes", "ledger.add_entry(text='row 1')"],
    ]
    assert f"  {because}" in told.splitlines()
    with every_row() as row:
        for page, text in zip(pages, texts, strict=True):
            with row(page):
                assert because in text
                assert "row 1" in text


async def test_each_approval_lets_as_many_changes_go_out_as_the_project_allows(demo: ApprovingProject) -> None:
    await demo.rules({"max_writes": 3})
    task_id = await demo.project.submit()
    asked = []
    async with demo.project.runner(demo.engine(ALL.format(8))):
        for _ in range(2):
            approval = await demo.waiting(task_id)
            asked.append(len(demo.written()))
            await demo.decide(approval, "approve")
            await demo.until_written(asked[-1] + 1)
        await demo.project.ended(task_id)
    assert (asked, len(demo.written())) == ([3, 6], 8)


async def test_after_a_refusal_no_change_follows_and_nobody_is_asked_again(demo: ApprovingProject) -> None:
    await demo.rules({"max_writes": 2})
    task_id = await demo.project.submit()
    async with demo.project.runner(demo.engine(ALL.format(5), "print(len(apis.ledger.list_entries()))")):
        await demo.decide(await demo.waiting(task_id), "refuse", "only one was asked for")
        row = await demo.project.ended(task_id)
    assert (row.stop, demo.written()) == (Stop.COMPLETED, ["row 0", "row 1"])
    first, second, _ = await demo.observations(task_id)
    assert "2 ledger.add_entry was refused by a person: only one was asked for" in first
    assert "4 ledger.add_entry was not called: 2 changes were made, and a person refused more" in first
    assert "2" in second, "reading goes on"
    assert len((await demo.api.client.get("/v1/approvals")).json()["approvals"]) == 1


async def test_where_nobody_answers_the_task_ends_after_one_time_out(demo: ApprovingProject) -> None:
    await demo.rules({"max_writes": 1, "timeout_seconds": 1})
    task_id = await demo.project.submit()
    async with demo.project.runner(demo.engine(ALL.format(40))), ApprovalExpiry(demo.project.sessions, pause=0.05):
        row = await demo.project.ended(task_id)
    assert (row.stop, demo.written()) == (Stop.COMPLETED, ["row 0"])
    assert "1 change was made, and nobody approved more in time" in (await demo.observations(task_id))[0]


async def test_changes_are_counted_over_turns_and_runners(demo: ApprovingProject) -> None:
    await demo.rules({"max_writes": 2, "operations": {"ledger.list_entries": "always"}})
    task_id = await demo.project.submit()
    engine = demo.engine(ALL.format(1), ALL.format(1), "apis.ledger.list_entries()", ALL.format(1))
    async with demo.project.runner(engine):
        listing = await demo.waiting(task_id)
    assert (listing["operation"], len(demo.written())) == ("ledger.list_entries", 2)
    async with demo.project.runner(engine):
        await demo.decide(listing, "refuse")
        await demo.project.ended(task_id)
    assert len(demo.written()) == 2, "the third was not sent: a person had refused more"


async def test_changes_of_a_turn_that_crashed_are_counted_by_the_next_runner_too(demo: ApprovingProject) -> None:
    """No session runs such a turn again."""
    await demo.rules({"max_writes": 1, "operations": {"ledger.list_entries": "always"}})
    task_id = await demo.project.submit()
    crash = f"{ALL.format(1)}\nimport os\nos._exit(1)"
    engine = demo.engine(crash, "print(len(apis.ledger.list_entries()))", ALL.format(1))
    async with demo.project.runner(engine):
        listing = await demo.waiting(task_id)
    async with demo.project.runner(engine):
        await demo.decide(listing, "refuse")
        await demo.project.ended(task_id)
    assert demo.written() == ["row 0"]
    assert "1 change was made, and a person refused more" in (await demo.observations(task_id))[2]


async def test_what_is_counted_and_what_is_not(demo: ApprovingProject) -> None:
    reads = "for _ in range(5):\n    apis.ledger.list_entries()"
    wrong = "try:\n    apis.ledger.add_entry(text='one', amount='many')\nexcept Exception:\n    pass"
    refused = f"{reads}\n{wrong}"
    rows: list[tuple[str, dict[str, Json], str, int]] = [
        ("reads", {"max_writes": 1}, reads, 0),
        ("calls that could not be sent", {"max_writes": 1}, refused, 0),
        ("no limit", {"max_writes": 0}, ALL.format(12), 12),
    ]
    with every_row() as row:
        for name, rules, code, written in rows:
            with row(name):
                demo.project.ledger.entries.clear()
                await demo.rules(rules)
                task_id = await demo.project.submit()
                async with demo.project.runner(demo.engine(code)):
                    ended = await demo.project.ended(task_id)
                assert (ended.stop, len(demo.written())) == (Stop.COMPLETED, written)


async def test_calls_that_changed_nothing_are_not_counted() -> None:
    ledger = Ledger()
    operation = ledger.app("http://ledger.test").operations["add_entry"]
    call = Call(seq=0, turn=0, api="ledger.add_entry", arguments={})
    rows: list[tuple[str | None, int | None, bool]] = [
        (None, 201, True),
        ("ApiError: it is locked", 409, False),
        ("ApiError: internal error", 500, True),
        ("ApiError: no answer within 30 seconds", None, True),
        ("PermissionError: ledger.add_entry was refused by a person", None, False),
    ]
    with every_row() as row:
        for error, status, counts in rows:
            with row(error, status):
                gate = ApprovalGate(ApprovalRules(max_writes=1))
                response = None if status is None else CallResponse(status=status)
                gate.note(msgspec.structs.replace(call, error=error, response=response))
                if not counts:
                    assert await gate.refusal(operation, msgspec.structs.replace(call, seq=1), "") is None
                    continue
                with pytest.raises(ApprovalWantedError, match="waits for a person"):
                    await gate.refusal(operation, msgspec.structs.replace(call, seq=1), "")


async def test_the_first_change_by_an_operation_waits_until_a_successful_task_has_called_it(
    demo: ApprovingProject,
) -> None:
    await demo.rules({"default": "first"})
    engine = demo.engine("apis.ledger.list_entries()", ALL.format(2))

    async def run(score: float | None) -> tuple[UUID, str]:
        """The task, scored, and why it waited."""
        task_id = await demo.project.submit()
        async with demo.project.runner(engine):
            approval = await demo.waiting(task_id)
            shown = (await demo.api.client.get(f"/v1/approvals/{approval['id']}")).json()
            await demo.decide(approval, "approve")
            await demo.project.ended(task_id)
        if score is not None:
            async with demo.project.sessions.begin() as session:
                await feedback.add(session, task_id, score)
        return task_id, shown["because"]

    for score in (None, 0.0, 1.0):
        demo.project.ledger.entries.clear()
        _, because = await run(score)
        assert because == "no task that was scored as a success has called it yet"
        assert demo.written() == ["row 0", "row 1"], "the second one of the task did not wait"
    task_id = await demo.project.submit()
    async with demo.project.runner(engine):
        await demo.project.ended(task_id)
    assert len(demo.written()) == 4
    assert "approval" not in [kind for kind, _ in await demo.project.events(task_id)]

"""A task that changes more than its project expects waits for a person, who sees what it has done."""

import asyncio
from contextlib import nullcontext, suppress
from dataclasses import replace
from typing import Any
from uuid import UUID

import httpx
import msgspec
import pytest

from app.apis.approvals.gate import ApprovalGate, ApprovalWantedError
from app.apis.approvals.store import ApprovalExpiry
from app.base.errors import HostError
from app.base.values import Call, CallResponse, Json, Stop
from app.db.tables import TaskState
from app.projects.settings import ApprovalRules
from app.tasks import feedback
from tests.support.approving import ApprovingProject
from tests.support.console_pages import read_page
from tests.support.echo_service import Echo, EchoSetup
from tests.support.every_row import every_row
from tests.support.http_server import served
from tests.support.ledger import Ledger
from tests.support.ledger_project import put_ledger
from tests.support.listening_app import listening_app
from tests.support.raw_server import raw_server
from tests.support.sage_command import SageCommand

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
    rows: list[tuple[str | None, int | None, bool, bool]] = [
        (None, 201, True, True),
        ("ApiError: it is locked", 409, True, False),
        ("ApiError: internal error", 500, True, True),
        ("ApiError: no answer within 30 seconds", None, True, True),
        ("ApiError: the server cannot be reached", None, False, False),
        ("PermissionError: ledger.add_entry was refused by a person", None, False, False),
    ]
    with every_row() as row:
        for error, status, sent, counts in rows:
            with row(error, status):
                gate = ApprovalGate(ApprovalRules(max_writes=1))
                response = None if status is None else CallResponse(status=status)
                gate.note(msgspec.structs.replace(call, error=error, response=response, sent=sent))
                if not counts:
                    assert await gate.refusal(operation, msgspec.structs.replace(call, seq=1), "") is None
                    continue
                with pytest.raises(ApprovalWantedError, match="waits for a person"):
                    await gate.refusal(operation, msgspec.structs.replace(call, seq=1), "")


async def test_what_never_left_says_so_and_what_left_counts_though_no_answer_came() -> None:
    """Over sockets, as only there a connection can fail."""
    echo = Echo()
    async with (
        echo.listening() as url,
        raw_server(b"nonsense") as odd,
        httpx.AsyncClient(trust_env=False) as client,
    ):
        rows: list[tuple[str, str, bool]] = [
            ("nothing listens there", "http://127.0.0.1:9", False),
            ("it answers nonsense", odd, True),
            ("it answers", url, True),
        ]
        with every_row() as row:
            for name, server, sent in rows:
                with row(name):
                    gate = ApprovalGate(ApprovalRules(max_writes=1))
                    gateway = EchoSetup(echo, server, client).gateway(approvals=gate)
                    with suppress(HostError):
                        await gateway("echo.add_item", ["a"], {})
                    assert [each.sent for each in gateway.take_calls()] == [sent]
                    if sent:
                        with pytest.raises(ApprovalWantedError):
                            await gateway("echo.add_item", ["b"], {})
                        continue
                    with pytest.raises(HostError, match="cannot be reached"):
                        await gateway("echo.add_item", ["b"], {})


class Slow:
    """A journal that is not done before a call goes out, unless it may."""

    def __init__(self, *, may: bool) -> None:
        self.may, self.waiting = may, asyncio.Event()

    async def begin(self, call: Call, repeatable: bool) -> Call | None: ...

    async def sending(self) -> None:
        self.waiting.set()
        if not self.may:
            await asyncio.Event().wait()

    async def end(self, call: Call) -> None: ...

    async def abort(self) -> None: ...


async def test_a_call_that_was_stopped_counts_only_if_it_was_sent() -> None:
    asked = asyncio.Event()

    async def silent(_: Any, __: Any, ___: Any) -> None:
        asked.set()
        await asyncio.Event().wait()

    async with listening_app(silent, lifespan="off") as url, httpx.AsyncClient(trust_env=False) as client:
        for may, text in ((False, "before the call was sent"), (True, "is not known")):
            journal, gate = Slow(may=may), ApprovalGate(ApprovalRules(max_writes=1))
            gateway = EchoSetup(Echo(), url, client).gateway(approvals=gate, journal=journal)
            calling = asyncio.create_task(gateway("echo.add_item", ["a"], {}))
            await (asked if may else journal.waiting).wait()
            calling.cancel()
            with pytest.raises(asyncio.CancelledError):
                await calling
            [call] = gateway.take_calls()
            assert (call.sent, text in (call.error or "")) == (may, True)
            operation = gateway.catalog.apps["echo"].operations["add_item"]
            next_one = gate.refusal(operation, msgspec.structs.replace(call, seq=1), url)
            with pytest.raises(ApprovalWantedError) if may else nullcontext():
                assert await next_one is None


async def test_calls_that_find_no_server_use_up_no_limit(demo: ApprovingProject) -> None:
    """Nor do they in the journal, from which another runner goes on."""
    await demo.rules({"max_writes": 1, "operations": {"ledger.list_entries": "always"}})
    async with demo.project.sessions.begin() as session:
        await put_ledger(session, demo.project.id, Ledger(), "http://127.0.0.1:9")
    tries = """
for number in range(3):
    try:
        apis.ledger.add_entry(text='row')
    except PermissionError as error:
        print(number, error)
    except Exception as error:
        print(number, 'failed')
"""
    engine = demo.engine(f"{tries}\napis.ledger.list_entries()", tries)
    async with httpx.AsyncClient(trust_env=False) as client:
        project = replace(demo.project, client=client)
        task_id = await project.submit()
        async with project.runner(engine):
            listing = await demo.waiting(task_id)
        assert listing["operation"] == "ledger.list_entries"
        async with project.runner(engine):
            await demo.decide(listing, "approve")
            row = await project.ended(task_id)
    assert row.stop is Stop.COMPLETED
    assert [each.split("\n")[:3] for each in (await demo.observations(task_id))[:2]] == [
        ["0 failed", "1 failed", "2 failed"]
    ] * 2
    assert len((await demo.api.client.get("/v1/approvals")).json()["approvals"]) == 1


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

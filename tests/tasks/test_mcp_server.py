"""The MCP server at /mcp: the SDK's client over HTTP does what REST does, with the keys of REST."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID, uuid4

import httpx2
import pytest
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client
from sqlalchemy import func, update
from sqlalchemy.exc import OperationalError

from app.db.tables import Key, Skill, TaskState
from app.skills import offers
from tests.skills.test_skill_runs import add_skill
from tests.support.api_app import problem
from tests.support.approving import WRITE, WRITES, ApprovingProject
from tests.support.chats import ended_as
from tests.support.failing_table import failing_table
from tests.support.ledger_project import until
from tests.support.listening_app import listening_app
from tests.support.scripted_engine import ScriptedEngine, block

ANSWER = "apis.supervisor.complete_task(answer=apis.ledger.add_entry(text='one'))"
MODES: Any = ("auto", "legacy")  # since 2026-07-28, and before


@asynccontextmanager
async def connected(demo: ApprovingProject, *scopes: str, mode: Any = "auto", **key: Any) -> AsyncIterator[Client]:
    """A client with a new key of these scopes."""
    headers = await demo.api.key(*(scopes or ("admin",)), **key)
    async with (
        listening_app(demo.api.app, lifespan="off") as url,
        httpx2.AsyncClient(headers=headers, timeout=300) as http,
        Client(streamable_http_client(f"{url}/mcp", http_client=http), mode=mode) as client,
    ):
        yield client


async def called(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, result.content
    assert isinstance(result.structured_content, dict)
    return result.structured_content


async def refused(client: Client, tool: str, **arguments: Any) -> str:
    result = await client.call_tool(tool, arguments)
    assert result.is_error
    return "".join(each.text for each in result.content if each.type == "text")


@pytest.mark.parametrize("mode", MODES)
async def test_a_task_is_submitted_and_followed_to_its_answer(demo: ApprovingProject, mode: str) -> None:
    told: list[tuple[float, str | None]] = []

    async def tell(progress: float, total: float | None, message: str | None) -> None:
        assert total is None
        told.append((progress, message))

    engine = ScriptedEngine(demo.project.tokenizer, block("print('hello')"), block(ANSWER))
    async with connected(demo, "tasks", mode=mode) as client, demo.project.runner(engine):
        wanted = {"instruction": "write one", "scenario": "writing", "wait_seconds": 60}
        result = await client.call_tool("submit_task", wanted, progress_callback=tell)
        task = result.structured_content
        assert isinstance(task, dict), result.content
        shown = await called(client, "get_task", task_id=task["id"], turns=True)
    assert (task["state"], task["answer"], task["scenario"]) == ("done", {"id": 1}, "writing")
    assert shown["turns_so_far"][0] == {"turn": 0, "text": block("print('hello')"), "observation": "hello"}
    assert [number for number, _ in told] == sorted({number for number, _ in told})
    messages = [message or "" for _, message in told]
    assert "call: ledger.add_entry" in messages
    assert messages[-1] == "done: done"


async def test_a_call_that_waits_outlasts_a_database_that_does_not_answer_for_a_while(
    demo: ApprovingProject,
) -> None:
    engine = ScriptedEngine(demo.project.tokenizer, block(ANSWER))
    async with connected(demo, "tasks") as client:
        down = OperationalError("SELECT", {}, Exception("the connection is closed"))
        with failing_table(demo.api.sessions, "task_events", down) as failed:
            calling = asyncio.create_task(called(client, "submit_task", instruction="write one", wait_seconds=60))
            await failed.wait()
        async with demo.project.runner(engine):
            assert (await calling)["answer"] == {"id": 1}


async def test_a_call_that_waits_ends_with_its_key(demo: ApprovingProject) -> None:
    async with connected(demo, "tasks") as client:
        calling = asyncio.create_task(refused(client, "submit_task", instruction="write one", wait_seconds=60))
        await ended_as(demo, TaskState.ACCEPTED)
        async with demo.api.sessions.begin() as session:
            await session.execute(update(Key).where(Key.scopes == ["tasks"]).values(revoked_at=func.now()))
        assert await calling == "UnauthorizedError: this key was revoked"


async def test_what_a_client_is_told_of_the_tools_depends_on_its_key(demo: ApprovingProject) -> None:
    async with connected(demo, "tasks") as client:
        listed = {each.name: each for each in (await client.list_tools()).tools}
        said = await refused(client, "search_skills", instruction="write")
    assert set(listed) == {"submit_task", "get_task", "list_tasks", "cancel_task", "run_skill"}
    assert listed["submit_task"].input_schema["required"] == ["instruction"]
    assert listed["get_task"].annotations
    assert listed["get_task"].annotations.read_only_hint
    assert said == (
        "ForbiddenError: this key lacks the scope 'skills'; ask an administrator for a key that has it"
    )


async def test_a_key_without_any_tool_lists_none_and_a_wrong_one_is_refused(demo: ApprovingProject) -> None:
    async with connected(demo, "approvals") as client:
        assert (await client.list_tools()).tools == []
    for headers in ({"Authorization": "Bearer wrong"}, {"Authorization": ""}):
        answer = await demo.api.client.post("/mcp", headers=headers, json={})
        assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
        assert problem(answer)["error"] == "UnauthorizedError"
    assert (await demo.api.client.get("/mcp")).headers["allow"] == "POST"


async def test_a_project_is_isolated_as_over_rest(demo: ApprovingProject) -> None:
    other = await demo.api.project("other")
    task_id, skill = str(await demo.api.submit(project="demo")), await add_skill(demo)
    async with connected(demo, "tasks", "skills", project_id=other.id) as client:
        for tool in ("get_task", "cancel_task"):
            said = await refused(client, tool, task_id=task_id)
            assert said == f"NotFoundError: no task has the id {task_id}; GET /v1/tasks lists them"
        assert "NotFoundError: no skill has the id" in await refused(client, "run_skill", skill_id=str(skill.id))
        said = await refused(client, "submit_task", instruction="write", project="demo")
        assert said.startswith("NotFoundError: no project is named 'demo'")
        assert (await called(client, "list_tasks"))["tasks"] == []
        assert (await called(client, "submit_task", instruction="write"))["project"] == "other"


async def test_arguments_that_do_not_fit_are_named(demo: ApprovingProject) -> None:
    async with connected(demo) as client:
        assert "missing required field `instruction`" in await refused(client, "submit_task")
        assert "`$.wait_seconds`" in await refused(client, "get_task", task_id=str(uuid4()), wait_seconds=-1)
        assert "unknown field `x`" in await refused(client, "list_tasks", x=1)
        assert "instruction: must not be blank" in await refused(client, "submit_task", instruction=" ")
        with pytest.raises(MCPError, match="no tool is named 'nothing'"):
            await client.call_tool("nothing", {})


async def test_tasks_are_listed_and_cancelled(demo: ApprovingProject) -> None:
    async with connected(demo, "tasks") as client:
        key = {"instruction": "write one", "idempotency_key": "k"}
        first, same = [await called(client, "submit_task", **key) for _ in range(2)]
        assert (first["id"], first["state"]) == (same["id"], "accepted")
        assert (await called(client, "cancel_task", task_id=first["id"]))["state"] == "cancelled"
        await called(client, "submit_task", instruction="write two")
        listed = await called(client, "list_tasks", state="cancelled")
        assert [each["id"] for each in listed["tasks"]] == [first["id"]]
        assert "it cannot be cancelled" in await refused(client, "cancel_task", task_id=await ended(demo))


async def ended(demo: ApprovingProject) -> str:
    """A task that is done."""
    task_id = await demo.project.submit()
    async with demo.project.runner(ScriptedEngine(demo.project.tokenizer, script=lambda *_: block(ANSWER))):
        await demo.project.ended(task_id)
    return str(task_id)


@pytest.mark.parametrize("mode", MODES)
async def test_a_skill_is_found_and_run(demo: ApprovingProject, mode: str) -> None:
    skill: Skill = await add_skill(demo)
    demo.api.search.offers = [offers.offer_of(skill)]
    async with (
        connected(demo, "tasks", "skills", mode=mode) as client,
        demo.project.runner(ScriptedEngine(demo.project.tokenizer)),
    ):
        [found] = (await called(client, "search_skills", instruction="write"))["skills"]
        ran = await called(client, "run_skill", skill_id=found["id"], arguments={"text": "one"})
        failed = await called(client, "run_skill", skill_id=found["id"], arguments={})
    assert (ran["state"], ran["answer"], ran["calls"]) == ("done", [1], 1)
    assert failed["state"] == "failed"
    assert "missing 1 required positional argument" in failed["failure"]
    assert demo.written() == ["one"]


async def test_a_client_that_waits_is_answered_once_a_person_is_asked(demo: ApprovingProject) -> None:
    await demo.rules(WRITES)
    async with connected(demo, "tasks") as client, demo.project.runner(demo.engine(WRITE)):
        waiting = await called(client, "submit_task", instruction="write", wait_seconds=60)
        assert (waiting["state"], waiting["approval"]["operation"]) == ("waiting", "ledger.add_entry")
        following = asyncio.create_task(called(client, "get_task", task_id=waiting["id"], wait_seconds=60))
        await demo.decide(waiting["approval"], "approve")
        assert (await following)["state"] == "done"


async def test_a_task_that_takes_longer_is_shown_as_it_is(demo: ApprovingProject) -> None:
    task_id = str(await demo.api.submit())
    async with connected(demo, "tasks") as client:
        shown = await called(client, "get_task", task_id=task_id, wait_seconds=0.2)
    assert (shown["state"], shown["turns_so_far"]) == ("accepted", None)


async def test_a_client_that_hangs_up_leaves_nothing_behind(demo: ApprovingProject) -> None:
    task_id = UUID(str(await demo.api.submit()))
    listener: Any = demo.api.app.state["dependencies"].listener
    async with connected(demo, "tasks") as client:
        call = client.call_tool("get_task", {"task_id": str(task_id), "wait_seconds": 3_000})
        waiting = asyncio.create_task(call)
        await until(lambda: task_id in listener._streams)
        waiting.cancel()
        await until(lambda: task_id not in listener._streams)

"""Chats whose database or server fails once they are tasks: none is done twice."""

import asyncio
from typing import Any

import httpx
import openai
import pytest
from sqlalchemy.exc import OperationalError

from app.base.errors import DatabaseError
from app.db.tables import TaskState
from tests.support.approving import WRITE, ApprovingProject
from tests.support.chats import ANSWER, HELLO, all_tasks, asked, connected, ended_as
from tests.support.failing_table import failing_table
from tests.support.listening_app import listening_app

_DOWN = OperationalError("SELECT", {}, Exception("the connection is closed"))
_UNKNOWN = DatabaseError("its schema is unknown")  # now and later


@pytest.mark.parametrize("stream", [False, True])
async def test_a_chat_outlasts_a_database_that_does_not_answer_for_a_while(
    demo: ApprovingProject, stream: bool
) -> None:
    async with connected(demo.api) as client:
        asking = asyncio.create_task(asked(client, stream))
        await ended_as(demo, TaskState.ACCEPTED)
        with failing_table(demo.api.sessions, "task_events" if stream else "tasks", _DOWN) as failed:
            await failed.wait()
        async with demo.project.runner(demo.engine(WRITE, ANSWER)):
            await asking
    assert len(await all_tasks(demo)) == 1
    assert demo.written() == ["one", "one"]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_chat_that_fails_once_it_is_a_task_is_not_repeated(demo: ApprovingProject, stream: bool) -> None:
    async with connected(demo.api) as client:
        with failing_table(demo.api.sessions, "task_events", _UNKNOWN):  # which a stream reads before it begins
            asking = asyncio.create_task(asked(client, stream))
            await ended_as(demo, TaskState.ACCEPTED)
            with (
                failing_table(demo.api.sessions, "tasks", _UNKNOWN),
                pytest.raises(openai.UnprocessableEntityError) as raised,
            ):
                await asking
    [task] = await all_tasks(demo)
    headers, body = raised.value.response.headers, raised.value.response.json()
    assert (headers["x-task-id"], headers["x-should-retry"]) == (task["id"], "false")
    assert (body["error"]["type"], body["error"]["code"]) == ("task_error", "not_ended")
    assert "DatabaseError" in body["error"]["message"]


async def test_a_chat_that_fails_with_an_idempotency_key_is_repeated_and_gets_its_answer(
    demo: ApprovingProject,
) -> None:
    async with connected(demo.api) as client:
        once: Any = {"extra_headers": {"Idempotency-Key": "once"}}
        asking = asyncio.create_task(client.chat.completions.create(model="demo", messages=HELLO, **once))
        await ended_as(demo, TaskState.ACCEPTED)
        with failing_table(demo.api.sessions, "tasks", _UNKNOWN) as failed:
            await failed.wait()
        async with demo.project.runner(demo.engine(WRITE, ANSWER)):
            assert (await asking).choices[0].message.content == '{"id":2}'
    assert len(await all_tasks(demo)) == 1


@pytest.mark.parametrize("kept", [False, True])
async def test_a_server_that_stops_cancels_the_tasks_of_its_chats_unless_they_can_be_repeated(
    demo: ApprovingProject, kept: bool
) -> None:
    headers = await demo.api.key("tasks") | ({"Idempotency-Key": "once"} if kept else {})
    body = {"model": "demo", "messages": HELLO}
    async with httpx.AsyncClient(headers=headers, timeout=300) as client:
        async with listening_app(demo.api.app, lifespan="off") as url:
            asking = asyncio.create_task(client.post(f"{url}/v1/chat/completions", json=body))
            await ended_as(demo, TaskState.ACCEPTED)
        answer = await asking
    row = await ended_as(demo, TaskState.ACCEPTED if kept else TaskState.CANCELLED)
    if not kept:
        assert (answer.status_code, answer.json()["error"]["code"]) == (422, "cancelled")
        assert (answer.headers["x-task-id"], answer.headers["x-should-retry"]) == (str(row.id), "false")

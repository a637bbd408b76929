"""Chats with the routes of OpenAI's API, as its official client has them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

from openai import AsyncOpenAI

from app.db import tables
from app.db.tables import TaskState
from tests.support.api_app import ApiApp
from tests.support.approving import ApprovingProject
from tests.support.ledger_project import until
from tests.support.listening_app import listening_app

ANSWER = "apis.supervisor.complete_task(answer=apis.ledger.add_entry(text='one'))"
HELLO: Any = [{"role": "user", "content": "write one into the ledger"}]


@asynccontextmanager
async def connected(api: ApiApp, *scopes: str, **key: Any) -> AsyncIterator[AsyncOpenAI]:
    """The official client with a new key of these scopes, as people use it: with its retries."""
    headers = await api.key(*(scopes or ("tasks",)), **key)
    secret = headers["Authorization"].removeprefix("Bearer ")
    async with (
        listening_app(api.app, lifespan="off") as url,
        AsyncOpenAI(base_url=f"{url}/v1", api_key=secret, timeout=300) as client,
    ):
        yield client


async def asked(client: AsyncOpenAI, stream: bool) -> None:
    """Ask, and read the answer to its end."""
    answer: Any = await client.chat.completions.create(model="demo", messages=HELLO, stream=stream)
    if stream:
        [_ async for _ in answer]


def task_of(completion_id: str) -> UUID:
    return UUID(completion_id.removeprefix("chatcmpl-"))


async def all_tasks(demo: ApprovingProject) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await demo.api.client.get("/v1/tasks")).json()["tasks"]
    return found


async def ended_as(demo: ApprovingProject, state: TaskState) -> tables.Task:
    """The only task, once it has this state."""

    async def holds() -> bool:
        return [each["state"] for each in await all_tasks(demo)] == [state]

    await until(holds)
    return await demo.project.row(UUID((await all_tasks(demo))[0]["id"]))

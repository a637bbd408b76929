"""The event stream and the trajectory of a task; on a real socket where it matters."""

import asyncio
import json
import os
import socket
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession

from app.base.values import Policy, Stop, Task, Trajectory, Turn
from app.db import results, tables
from app.db.database import Sessions
from app.db.notify import NotificationListener
from app.tasks import queue
from tests.support.api_app import ApiApp, open_api_app, problem
from tests.support.http_server import served
from tests.support.ledger_project import until
from tests.support.rows import project_row, task_row
from tests.support.scripted_engine import byte_tokenizer


async def append_events(api: ApiApp, task_id: UUID, *kinds: str) -> None:
    for kind in kinds:
        async with api.sessions.begin() as session:
            await results.append(session, task_id, kind, {"of": kind})


async def finish(api: ApiApp, task_id: UUID) -> None:
    async with api.sessions.begin() as session:
        await queue.claim(session, "runner", 30)
        await results.append(session, task_id, "done", {"state": "done"})
        await queue.finish(session, task_id, "runner", queue.TaskOutcome(state=tables.TaskState.DONE))


async def test_the_events_of_an_ended_task_are_sent_in_order_and_the_stream_ends(api: ApiApp) -> None:
    task_id = await api.submit()
    await append_events(api, task_id, "turn", "call")
    await finish(api, task_id)
    answer = await api.client.get(f"/v1/tasks/{task_id}/events")
    assert answer.headers["content-type"].startswith("text/event-stream")
    lines = answer.text.splitlines()
    assert [line for line in lines if line.startswith(("event", "id"))] == [
        "id: 1",
        "event: turn",
        "id: 2",
        "event: call",
        "id: 3",
        "event: done",
    ]
    data = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]
    times = [datetime.fromisoformat(each.pop("at")) for each in data]
    assert data == [{"of": "turn"}, {"of": "call"}, {"state": "done"}]
    assert times == sorted(times)
    assert abs((datetime.now(UTC) - times[0]).total_seconds()) < 60


async def test_a_stream_resumes_after_the_last_event_it_saw(api: ApiApp) -> None:
    task_id = await api.submit()
    await append_events(api, task_id, "turn", "call")
    await finish(api, task_id)
    rest = await api.client.get(f"/v1/tasks/{task_id}/events", headers={"Last-Event-ID": "2"})
    assert [line for line in rest.text.splitlines() if line.startswith("id")] == ["id: 3"]
    over = await api.client.get(f"/v1/tasks/{task_id}/events", headers={"Last-Event-ID": "3"})
    assert (over.status_code, over.content) == (204, b"")  # or a browser would connect again and again
    bad = await api.client.get(f"/v1/tasks/{task_id}/events", headers={"Last-Event-ID": "last"})
    assert problem(bad)["status"] == 400


async def test_an_event_arrives_while_the_stream_is_open(api: ApiApp) -> None:
    task_id = await api.submit()
    async with served(api) as client, client.stream("GET", f"/v1/tasks/{task_id}/events") as answer:
        lines = answer.aiter_lines()
        for kind in ("turn", "observation"):
            await append_events(api, task_id, kind)
            while await anext(lines) != f"event: {kind}":
                pass
        await finish(api, task_id)
        assert "event: done" in [line async for line in lines]


async def test_a_stream_ends_when_the_project_of_its_task_is_deleted(api: ApiApp) -> None:
    task_id = await api.submit()
    async with served(api) as client, client.stream("GET", f"/v1/tasks/{task_id}/events") as answer:
        assert (await api.client.delete("/v1/projects/demo")).status_code == 204
        assert "event: done" not in [line async for line in answer.aiter_lines()]


async def test_each_of_many_streams_gets_the_events_of_its_own_task(api: ApiApp) -> None:
    tasks = [await api.submit(f"task {number}") for number in range(5)]
    async with served(api) as client:
        reading = [asyncio.create_task(client.get(f"/v1/tasks/{task}/events", timeout=300)) for task in tasks * 4]
        await until(lambda: len(reading) == sum(map(len, streams(api).values())))
        for task in tasks:
            await append_events(api, task, f"turn-{task}")
        for task in tasks:
            await finish(api, task)
        for task, answer in zip(tasks * 4, await asyncio.gather(*reading), strict=True):
            assert answer.text.count("event: turn-") == 1
            assert f"event: turn-{task}" in answer.text


async def test_a_stopping_server_does_not_wait_for_open_streams(api: ApiApp) -> None:
    task_id = await api.submit()
    async with served(api) as client:
        reading = asyncio.create_task(client.get(f"/v1/tasks/{task_id}/events", timeout=300))
        await until(lambda: bool(streams(api)))
    await asyncio.wait([reading])


def streams(api: ApiApp) -> Mapping[UUID, Collection[object]]:
    """Those that wait for events, by task."""
    listener: Any = api.app.state["dependencies"].listener
    waiting: Mapping[UUID, Collection[object]] = listener._streams
    return waiting


async def test_a_trajectory_shows_the_text_of_each_prompt_unless_the_tokens_are_of_another_model(
    committed: Sessions, database_url: str, tmp_path: Path
) -> None:
    tokenizer = byte_tokenizer(tmp_path)

    def turn(prompt: str, text: str, sampled: str) -> Turn:
        given, ids = tokenizer.encode(prompt), tokenizer.encode(sampled)
        logprobs = (-0.5,) * len(ids)
        return Turn(context_ids=tuple(given), sampled_ids=tuple(ids), logprobs=logprobs, text=text)

    async with open_api_app(committed, database_url, tokenizer=tokenizer) as api:

        async def prompts(*turns: Turn, **query: bool) -> list[str | None]:
            task_id = await api.submit()
            record = Trajectory(
                task=Task(task_id, ""), policy=Policy(), profile="compact", turns=turns, stop=Stop.COMPLETED
            )
            async with api.sessions.begin() as session:
                await results.save(session, api.demo.id, record)
            shown = await api.client.get(f"/v1/tasks/{task_id}/trajectory", params=query)
            return [each.get("prompt", "none") for each in shown.json()["turns"]]

        first = turn("<|im_start|>user\nhello", "hi", "hi<|im_end|>")
        assert await prompts(first, turn("more", "bye", "bye")) == ["<|im_start|>user\nhello", "more"]
        assert await prompts(first, turn("more", "bye", "other words")) == [None, None]
        assert await prompts(msgspec.structs.replace(first, context_ids=(), sampled_ids=(), logprobs=())) == [None]
        assert await prompts(first, prompt=False) == ["none"]


async def test_a_trajectory_shows_the_spans_of_the_sampled_tokens(api: ApiApp) -> None:
    task_id = await api.submit()
    assert problem(await api.client.get(f"/v1/tasks/{task_id}/trajectory"))["status"] == 404
    turns = (
        Turn(context_ids=(1, 2, 3), sampled_ids=(4, 5), logprobs=(-0.5, -0.25), text="a", observation="b"),
        Turn(context_ids=(6,), sampled_ids=(7,), logprobs=(-1.0,), text="c"),
        Turn(context_ids=(1, 2), sampled_ids=(8, 9), logprobs=(-2.0, -3.0), text="d", extends=False),
    )
    record = Trajectory(
        task=Task(task_id, "tidy up"),
        policy=Policy(),
        profile="compact",
        turns=turns,
        stop=Stop.COMPLETED,
        answer=3,
    )
    async with api.sessions.begin() as session:
        await results.save(session, api.demo.id, record)

    shown = (await api.client.get(f"/v1/tasks/{task_id}/trajectory")).json()
    assert [turn["sampled_span"] for turn in shown["turns"]] == [[3, 5], [6, 7], [2, 4]]
    assert shown["turns"][0]["sampled_ids"] == [4, 5]
    assert shown["turns"][0]["logprobs"] == [-0.5, -0.25]
    assert (shown["stop_reason"], shown["answer"], shown["policy"]["model"]) == ("completed", 3, "base")

    brief = (await api.client.get(f"/v1/tasks/{task_id}/trajectory?tokens=false")).json()
    assert not {"sampled_ids", "context_ids", "logprobs"} & brief["turns"][0].keys()
    assert brief["turns"][0]["text"] == "a"


async def test_a_stream_without_news_sends_pings(api: ApiApp) -> None:
    task_id = await api.submit()
    async with served(api) as client, client.stream("GET", f"/v1/tasks/{task_id}/events") as answer:
        lines = answer.aiter_lines()
        for _ in range(2):
            while await anext(lines) != ": ping":
                pass
        await finish(api, task_id)


def test_by_default_a_ping_is_sent_every_fifteen_seconds(database_url: str) -> None:
    assert NotificationListener(database_url).ping_seconds == 15


async def test_a_task_callback_is_called_for_a_submission_to_another_process(
    committed: Sessions, database_url: str
) -> None:
    called = asyncio.Event()
    async with NotificationListener(database_url) as listener:
        listener.on_task(called.set)
        await called.wait()  # callbacks are called once the connection listens
        called.clear()
        async with committed.begin() as session:
            await task_row(session, (await project_row(session)).id)
        await called.wait()


async def test_a_lost_listening_connection_is_replaced(api: ApiApp) -> None:
    listening = "FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN sage_events%'"
    async with api.sessions() as session:
        await _only(session, f"SELECT pid {listening}")
        ended = (await session.scalars(text(f"SELECT pid {listening} AND pg_terminate_backend(pid)"))).all()
        assert ended
        assert await _only(session, f"SELECT pid {listening} AND pid <> ALL(ARRAY{list(ended)})") not in ended


async def test_a_lost_database_host_is_noticed_within_a_minute() -> None:
    """Reads the keepalive options of the socket: no lost host is needed to check them."""
    asked: asyncio.Queue[int] = asyncio.Queue()

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.put_nowait(_seconds_until_lost(writer.get_extra_info("peername")))
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with NotificationListener(f"postgresql://postgres@127.0.0.1:{port}/postgres"):
            assert await asked.get() <= 60


def _seconds_until_lost(address: tuple[str, int]) -> int:
    """Seconds of silence after which this process's socket with this address is closed."""
    for descriptor in [int(path.name) for path in Path("/proc/self/fd").iterdir() if path.is_socket()]:
        with socket.socket(fileno=os.dup(descriptor)) as found:
            if found.getsockname() == address:
                options = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
                idle, pause, tries = (found.getsockopt(socket.IPPROTO_TCP, each) for each in options)
                return idle + pause * tries
    raise AssertionError("no socket has it")


async def _only(session: AsyncSession, query: str) -> int:
    """The only value, as soon as it exists."""
    while True:
        await session.rollback()  # a transaction keeps its snapshot
        if (found := (await session.execute(text(query))).scalar()) is not None:
            return int(found)
        await asyncio.sleep(0.05)

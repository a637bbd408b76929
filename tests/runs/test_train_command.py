"""`sage train`, `sage runs` and `sage releases` against the real server; the test plays the worker."""

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from app.base.errors import AdapterError
from app.base.values import RunPart
from app.client.server import SageClient
from app.db.database import Sessions
from app.db.tables import RunState
from app.releases import store as releases
from app.runs import store as runs
from tests.support.api_app import open_api_app
from tests.support.http_server import served
from tests.support.listening_app import listening_app
from tests.support.sage_command import SageCommand
from tests.support.served_scores import serve_scored


@pytest.fixture
async def shell(committed: Sessions, database_url: str, tmp_path: Path) -> AsyncIterator[SageCommand]:
    async with open_api_app(committed, database_url, directory=tmp_path) as api, served(api) as client:
        async with committed.begin() as session:
            await serve_scored(session, api.demo.id, 1.0, 0.0)
        yield SageCommand(api, str(client.base_url))


async def test_train_follows_the_run_and_tells_what_it_left(shell: SageCommand) -> None:
    options = ("--kind", "rollout", "--set", "environment=office", "--set", "steps=2", "--set", "skills=false")
    training = asyncio.create_task(shell.run("train", *options))
    await shell.run_id()
    first = {"outcome": 0.5, "warnings": ["functions are rarely written"]}
    await shell.execute_run(first, {"no_signal": True}, result={"decision": "passed", "evidence": {"sgc": 0.9}})
    ended = await training
    assert ended.code == 0, ended.err
    assert ended.out == "decision      passed\nevidence sgc  0.9\n"
    assert "2/2" in ended.err
    assert "\r" not in ended.err, "no bar where there is no terminal"
    assert "outcome=0.5" in ended.err
    assert "WARNING, step 1: functions are rarely written" in ended.err
    assert "WARNING, step 2: no signal" in ended.err
    run = (await shell.api.client.get(f"/v1/training-runs/{await shell.run_id()}")).json()
    assert (run["kind"], run["settings"]["steps"], run["settings"]["skills"]) == ("rollout", 2, False)


async def test_train_shows_how_much_is_done_of_what_the_run_does_now(shell: SageCommand) -> None:
    training = await shell.start("train")
    run_id, at = await shell.run_id(), datetime(2026, 11, 26, tzinfo=UTC)
    async with shell.api.sessions.begin() as session:
        await runs.claim(session, "worker", 30, run_id)
        await runs.extend(session, run_id, "worker", 30, part=RunPart("exam tasks", 3, 12, at))
    shown = (await shell.api.client.get(f"/v1/training-runs/{run_id}")).json()["part"]
    assert shown == {"phase": "exam tasks", "done": 3, "total": 12, "at": "2026-11-26T00:00:00Z"}
    assert training.stderr is not None
    told = b""
    while b"exam tasks 3/12" not in told:
        more = await training.stderr.read(4096)
        assert more, told.decode()
        told += more
    async with shell.api.sessions.begin() as session:
        await runs.finish(session, run_id, "worker", RunState.DONE, result={"decision": "passed"})
    assert (await shell.ended(training)).code == 0
    assert (await shell.api.client.get(f"/v1/training-runs/{run_id}")).json()["part"] is None


async def test_a_run_that_fails_ends_the_command_with_its_named_error(shell: SageCommand) -> None:
    training = asyncio.create_task(shell.run("train"))
    await shell.execute_run(state=RunState.FAILED, failure="InvalidError: there is nothing to learn from")
    ended = await training
    assert ended.code == 1
    assert ended.err.splitlines()[-1] == "Error: there is nothing to learn from"
    assert ended.out == ""


async def test_a_cancelled_run_ends_the_command_that_follows_it(shell: SageCommand) -> None:
    assert (await shell.run("train", "--no-follow")).code == 0
    run_id = str(await shell.run_id())
    following = asyncio.create_task(shell.run("runs", run_id, "--follow"))
    shown = await shell.run("runs", run_id, "--cancel")
    assert ["state", "cancelled"] in [line.split() for line in shown.out.splitlines()]
    again = await shell.run("runs", run_id, "--cancel")
    assert (again.code, again.err) == (0, f"run {run_id} was already cancelled\n")
    ended = await following
    assert (ended.code, f"Error: run {run_id} was cancelled" in ended.err) == (1, True)
    assert "queued" in (await shell.run("runs", run_id, "--retry")).out


async def test_an_interrupted_command_says_that_the_run_goes_on(shell: SageCommand) -> None:
    training = await shell.start("train")
    run_id = await shell.run_id()
    assert training.stderr is not None
    await training.stderr.readuntil(b"queued\n")
    training.send_signal(signal.SIGINT)
    ended = await shell.ended(training)
    assert (ended.code, f"the run goes on\n  follow it:  sage runs {run_id} --follow" in ended.err) == (130, True)
    assert (await shell.api.client.get(f"/v1/training-runs/{run_id}")).json()["state"] == "queued"


async def test_runs_are_listed_and_shown_with_the_figures_of_the_last_step(shell: SageCommand) -> None:
    await shell.run("train", "--no-follow", "--set", "steps=1")
    await shell.execute_run({"reward": 0.25}, state=RunState.FAILED, failure="EngineError: down")
    listed = (await shell.run("runs")).out.splitlines()
    assert listed[0].split() == ["run", "kind", "state", "steps", "created", "failure"]
    assert "failed  1/1" in listed[1]
    assert listed[1].endswith("  down")
    assert len((await shell.run("runs", "--state", "queued")).out.splitlines()) == 1
    shown = (await shell.run("runs", str(await shell.run_id()))).out
    assert ["last", "step", "reward", "0.25"] in [line.split() for line in shown.splitlines()]


async def test_a_chat_file_is_uploaded_and_the_run_names_the_dataset(shell: SageCommand, tmp_path: Path) -> None:
    chat = {"messages": [{"role": "user", "content": "do it"}, {"role": "assistant", "content": "done"}]}
    file = tmp_path / "chats.jsonl"
    file.write_text(json.dumps(chat))
    assert (await shell.run("train", "--no-follow", "--kind", "sft", "--set", f"data={file}")).code == 0
    run = (await shell.api.client.get(f"/v1/training-runs/{await shell.run_id()}")).json()
    [dataset] = (await shell.api.client.get("/v1/datasets")).json()["datasets"]
    assert (run["settings"]["data"], dataset["name"]) == (dataset["id"], "chats.jsonl")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--set", "stepz=3"), "a run has no setting stepz"),
        (("--set", "group=1"), "the run's settings do not fit: group must be at least 2"),
        (("--set", "steps"), "write --set name=value"),
        (("--project", "none"), "Error: no project is named 'none'; `sage projects` lists them"),
        (("--key", "sage_wrong"), "Error: this key is unknown or was revoked"),
        (("--url", "http://127.0.0.1:9"), "Error: http://127.0.0.1:9 does not answer"),
    ],
)
async def test_what_cannot_be_asked_for_is_one_clear_line(
    shell: SageCommand, options: tuple[str, ...], message: str
) -> None:
    ended = await shell.run("train", *options)
    assert ended.code != 0
    assert message in ended.err.splitlines()[-1]
    assert (await shell.api.client.get("/v1/training-runs")).json()["runs"] == []


async def test_releases_are_listed_activated_and_rolled_back(shell: SageCommand) -> None:
    api = shell.api
    async with api.sessions.begin() as session:
        release = await releases.propose(session, api.demo.id, "abc")
        await releases.reject(session, release.id, {"reason": "fewer solved"})
    listed = (await shell.run("releases")).out.splitlines()
    assert [line.split()[:3] for line in listed[1:]] == [["2", "rejected", "abc"], ["1", "active", "base"]]
    assert listed[1].endswith("fewer solved")
    refused = await shell.run("releases", "2", "--activate")
    assert (refused.code, refused.err.startswith("Error: release 2 was rejected")) == (
        6,
        True,
    )
    assert "--allow-rejected" in refused.err
    shown = (await shell.run("releases", "2", "--activate", "--allow-rejected")).out
    assert ["state", "active"] in [line.split() for line in shown.splitlines()]
    api.loads.refusal = AdapterError("there is no adapter in ...")
    refused = await shell.run("releases", "1", "--activate")
    assert "Error: there is no adapter" in refused.err
    api.loads.refusal = None
    assert (await shell.run("releases", "1", "--activate")).code == 0
    assert [line.split()[1] for line in (await shell.run("releases")).out.splitlines()[1:]] == [
        "retired",
        "active",
    ]
    assert "no release 7" in (await shell.run("releases", "7")).err


async def test_a_stream_that_breaks_off_is_resumed_after_the_last_event() -> None:
    last_ids: list[bytes] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:  # noqa: ARG001
        if scope["type"] != "http":
            return
        last_ids.append(dict(scope["headers"])[b"last-event-id"])
        second = len(last_ids) > 1
        event = 'event: done\ndata: {"state": "done"}' if second else 'id: 3\nevent: step\ndata: {"index": 3}'
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": f": ping\n\n{event}\n\n: ping\n\n".encode()})

    def listen(url: str) -> list[tuple[str, dict[str, Any]]]:
        with SageClient(url, "key") as server:
            return [(event.kind, event.data) for event in server.run_events(uuid4())]

    async with listening_app(app) as url:
        events = await asyncio.to_thread(listen, url)
    assert events == [("step", {"index": 3}), ("done", {"state": "done"})]
    assert last_ids == [b"0", b"3"]

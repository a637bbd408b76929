"""The training-run routes; the tests write the rows that a worker would write."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID, uuid4

import pytest

from app.db.database import Sessions
from app.db.tables import RunState
from app.runs import store as runs
from tests.support.api_app import ApiApp, open_api_app, problem
from tests.support.http_server import served
from tests.support.served_scores import serve_scored

PATH = "/v1/training-runs"


@pytest.fixture
async def api(committed: Sessions, database_url: str) -> AsyncIterator[ApiApp]:
    async with open_api_app(committed, database_url) as opened:
        async with committed.begin() as session:
            await serve_scored(session, opened.demo.id, 1.0, 0.0)
        yield opened


async def train(api: ApiApp, **body: object) -> UUID:
    answer = await api.client.post(PATH, json=body)
    assert answer.status_code == 202, answer.text
    return UUID(answer.json()["id"])


async def step(api: ApiApp, run_id: UUID, *indices: int, owner: str = "worker") -> None:
    for index in indices:
        async with api.sessions.begin() as session:
            await runs.append_step(session, run_id, owner, index, {"reward": index / 10}, total=4)


async def claim(api: ApiApp, owner: str = "worker") -> None:
    async with api.sessions.begin() as session:
        assert await runs.claim(session, owner, 30) is not None


async def finish(api: ApiApp, run_id: UUID, state: RunState = RunState.DONE, **how: Any) -> None:
    async with api.sessions.begin() as session:
        assert await runs.finish(session, run_id, "worker", state, **how)


async def shown(api: ApiApp, run_id: UUID) -> dict[str, Any]:
    found: dict[str, Any] = (await api.client.get(f"{PATH}/{run_id}")).json()
    return found


async def test_a_run_is_queued_with_its_settings_and_the_workers_are_notified(api: ApiApp) -> None:
    body = {"kind": "rollout", "settings": {"steps": 3, "environment": "office", "lr": 0.01}}
    run_id = await train(api, **body)
    run = await shown(api, run_id)
    assert (run["project"], run["kind"], run["state"], run["step"]) == ("demo", "rollout", "queued", 0)
    assert (run["settings"]["steps"], run["settings"]["lr"], run["settings"]["kind"]) == (3, 0.01, "rollout")
    assert run["settings"]["group"] == 8, "settings not given are stored with their defaults"
    assert api.wakes.runs == [run_id]
    assert (await shown(api, await train(api, settings={"kind": "sft"})))["kind"] == "sft"


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"settings": {"learning_rate": 1}}, "learning_rate"),
        ({"settings": {"steps": 0}}, "steps"),
        ({"settings": {"group": 1}}, "group"),
        ({"settings": {"reward": "best"}}, "reward"),
        ({"kind": "magic"}, "kind"),
        ({"settings": {"lr": "fast"}}, "lr"),
        ({"stepz": 3}, "stepz"),
        ({"kind": "rollout"}, "needs the setting environment"),
        (
            {"settings": {"environment": "os:abort"}},
            "environment='os:abort': a run may name registered parts only",
        ),
        ({"settings": {"reward": "os:abort"}}, "reward='os:abort': a run may name registered parts only"),
        ({"settings": {"gate_scenarios": 29}}, "gate_scenarios"),
    ],
)
async def test_an_unknown_or_invalid_setting_is_named_and_nothing_is_queued(
    api: ApiApp, body: dict[str, object], named: str
) -> None:
    answer = await api.client.post(PATH, json=body)
    assert answer.status_code == 400
    assert named in str(problem(answer)["detail"])
    assert (await api.client.get(PATH)).json()["runs"] == []
    assert api.wakes.runs == []


async def test_a_gate_may_be_omitted_or_use_the_fewest_scenarios_that_can_decide(api: ApiApp) -> None:
    for count in (0, 30):
        asked = {"environment": "office?site=7", "gate_scenarios": count}
        run = await shown(api, await train(api, settings=asked))
        assert run["settings"]["gate_scenarios"] == count


async def test_a_running_run_shows_its_progress_and_its_last_metrics(api: ApiApp) -> None:
    run_id = await train(api)
    assert (await shown(api, run_id))["last_step"] is None
    await claim(api)
    await step(api, run_id, 1, 2)
    run = await shown(api, run_id)
    assert (run["state"], run["step"], run["steps"], run["attempt"]) == ("running", 2, 4, 1)
    assert run["last_step"]["metrics"] == {"reward": 0.2}
    taken = (await api.client.get(f"{PATH}/{run_id}/steps")).json()
    assert [(each["index"], each["metrics"]["reward"]) for each in taken] == [(1, 0.1), (2, 0.2)]
    later = (await api.client.get(f"{PATH}/{run_id}/steps?after=1")).json()
    assert [each["index"] for each in later] == [2]
    await finish(api, run_id, result={"decision": "rejected"})
    run = await shown(api, run_id)
    assert (run["state"], run["result"]) == ("done", {"decision": "rejected"})
    assert run["finished_at"]


async def test_runs_are_listed_newest_first_by_pages_and_by_state(api: ApiApp) -> None:
    made = [await train(api) for _ in range(3)]
    await api.client.post(f"{PATH}/{made[0]}/cancel")
    first = (await api.client.get(f"{PATH}?limit=2")).json()
    rest = (await api.client.get(f"{PATH}?limit=2&cursor={first['next_cursor']}")).json()
    assert [each["id"] for each in first["runs"] + rest["runs"]] == [str(each) for each in reversed(made)]
    assert rest["next_cursor"] is None
    waiting = (await api.client.get(f"{PATH}?state=queued")).json()["runs"]
    assert len(waiting) == 2


async def test_a_cancelled_run_can_be_retried_and_an_ended_one_cannot_be_cancelled(api: ApiApp) -> None:
    run_id = await train(api)
    answer = await api.client.post(f"{PATH}/{run_id}/cancel")
    assert (answer.status_code, answer.json()["state"]) == (202, "cancelled")
    answer = await api.client.post(f"{PATH}/{run_id}/retry")
    assert (answer.status_code, answer.json()["state"]) == (202, "queued")
    assert api.wakes.runs == [run_id, run_id]
    assert (await api.client.post(f"{PATH}/{run_id}/retry")).status_code == 409
    await claim(api)
    answer = await api.client.post(f"{PATH}/{run_id}/cancel")
    assert (answer.json()["state"], answer.json()["cancel_requested"]) == ("running", True)
    await finish(api, run_id, RunState.FAILED, failure="InvalidError: nothing to learn from")
    assert (await shown(api, run_id))["failure"] == "InvalidError: nothing to learn from"
    assert (await api.client.post(f"{PATH}/{run_id}/cancel")).status_code == 409
    assert (await api.client.post(f"{PATH}/{uuid4()}/cancel")).status_code == 404


async def test_a_key_of_another_project_or_without_the_scope_sees_no_run(api: ApiApp) -> None:
    run_id = await train(api)
    other = await api.key("admin", project_id=(await api.project("other")).id)
    for method, path in (
        ("GET", ""),
        ("GET", "/steps"),
        ("GET", "/events"),
        ("POST", "/cancel"),
        ("POST", "/retry"),
    ):
        answer = await api.client.request(method, f"{PATH}/{run_id}{path}", headers=other)
        assert answer.status_code == 404, path
    assert (await api.client.get(PATH, headers=other)).json()["runs"] == []
    assert (await api.client.post(PATH, json={"project": "demo"}, headers=other)).status_code == 404
    assert (await api.client.post(PATH, json={}, headers=await api.key("tasks"))).status_code == 403


def parse_events(text: str) -> list[tuple[str, str, dict[str, Any]]]:
    """Event, id and data of each message."""
    found = []
    for block in text.replace("\r\n", "\n").strip().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        if fields:
            found.append((fields["event"], fields.get("id", ""), json.loads(fields["data"])))
    return found


async def test_the_events_of_an_ended_run_are_its_steps_and_its_end(api: ApiApp) -> None:
    run_id = await train(api)
    await claim(api)
    await step(api, run_id, 1, 2)
    await finish(api, run_id, result={"release": 2})
    answer = await api.client.get(f"{PATH}/{run_id}/events")
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = parse_events(answer.text)
    last = str(2**31 - 1)
    assert [(event, number) for event, number, _ in events] == [("step", "1"), ("step", "2"), ("done", last)]
    assert events[1][2]["metrics"] == {"reward": 0.2}
    assert events[2][2]["result"] == {"release": 2}
    rest = await api.client.get(f"{PATH}/{run_id}/events", headers={"Last-Event-ID": "1"})
    assert [number for _, number, _ in parse_events(rest.text)] == ["2", last]
    over = await api.client.get(f"{PATH}/{run_id}/events", headers={"Last-Event-ID": last})
    assert (over.status_code, over.content) == (204, b"")


class StreamReader:
    """Reads the stream of a run: the number of each step; of other events the name and the state."""

    def __init__(self) -> None:
        self.received: list[str] = []
        self._news = asyncio.Event()

    async def read(self, lines: AsyncIterator[str]) -> None:
        event = ""
        async for line in lines:
            if line.startswith("event: "):
                event = line.removeprefix("event: ")
            elif line.startswith("data: "):
                data = json.loads(line.removeprefix("data: "))
                self.received.append(str(data["index"]) if event == "step" else f"{event} {data['state']}")
                self._news.set()

    async def until(self, *expected: str) -> None:
        """Wait until exactly these have been received since the last call."""
        while self.received != list(expected):
            self._news.clear()
            await self._news.wait()
        self.received.clear()


async def test_a_live_stream_sends_states_and_steps_including_repeated_ones(api: ApiApp) -> None:
    run_id = await train(api)
    reader = StreamReader()
    async with served(api) as client, client.stream("GET", f"{PATH}/{run_id}/events") as answer:
        reading = asyncio.create_task(reader.read(answer.aiter_lines()))
        await reader.until("state queued")
        await claim(api)
        await reader.until("state running")
        await step(api, run_id, 1, 2, 3)
        await reader.until("1", "2", "3")
        async with api.sessions.begin() as session:
            await runs.hand_back(session, run_id, "worker")
        await reader.until("state queued")
        await claim(api)
        await reader.until("state running")
        for index in (2, 3):
            await step(api, run_id, index)
            await reader.until(str(index))
        await finish(api, run_id)
        await reader.until("done done")
        await reading


async def test_the_stream_ends_when_the_project_of_its_run_is_deleted(api: ApiApp) -> None:
    run_id = await train(api)
    reader = StreamReader()
    async with served(api) as client, client.stream("GET", f"{PATH}/{run_id}/events") as answer:
        reading = asyncio.create_task(reader.read(answer.aiter_lines()))
        await reader.until("state queued")
        assert (await client.delete("/v1/projects/demo")).status_code == 204
        await reading
    assert reader.received == []

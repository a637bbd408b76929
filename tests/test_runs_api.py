"""Training runs over HTTP; the test plays the worker by writing its rows."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID, uuid4

import pytest

from app.db import run_queue
from app.db.database import Sessions
from app.db.models import RunState
from tests.edge import Edge, open_edge, problem
from tests.sockets import served

PATH = "/v1/training-runs"


@pytest.fixture
async def edge(committed: Sessions, database_url: str) -> AsyncIterator[Edge]:
    async with open_edge(committed, database_url) as opened:
        yield opened


async def train(edge: Edge, **body: object) -> UUID:
    answer = await edge.client.post(PATH, json=body)
    assert answer.status_code == 202, answer.text
    return UUID(answer.json()["id"])


async def step(edge: Edge, run_id: UUID, *indices: int, owner: str = "worker") -> None:
    for index in indices:
        async with edge.sessions.begin() as session:
            await run_queue.append_step(session, run_id, owner, index, {"reward": index / 10}, total=4)


async def claim(edge: Edge, owner: str = "worker") -> None:
    async with edge.sessions.begin() as session:
        assert await run_queue.claim(session, owner, 30) is not None


async def finish(edge: Edge, run_id: UUID, state: RunState = RunState.DONE, **how: Any) -> None:
    async with edge.sessions.begin() as session:
        assert await run_queue.finish(session, run_id, "worker", state, **how)


async def shown(edge: Edge, run_id: UUID) -> dict[str, Any]:
    found: dict[str, Any] = (await edge.client.get(f"{PATH}/{run_id}")).json()
    return found


async def test_a_run_is_queued_with_its_settings_and_the_bell_is_rung(edge: Edge) -> None:
    body = {"kind": "rollout", "settings": {"steps": 3, "environment": "office", "lr": 0.01}}
    run_id = await train(edge, **body)
    run = await shown(edge, run_id)
    assert (run["project"], run["kind"], run["state"], run["step"]) == ("demo", "rollout", "queued", 0)
    assert (run["settings"]["steps"], run["settings"]["lr"], run["settings"]["kind"]) == (3, 0.01, "rollout")
    assert run["settings"]["group"] == 8, "what was not said is as it was by default on that day"
    assert edge.bell.runs == [run_id]
    assert (await shown(edge, await train(edge, settings={"kind": "sft"})))["kind"] == "sft"


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
        ({"kind": "rollout"}, 'set environment="office"'),
        ({"settings": {"kind": "rollout", "environment": "moon"}}, "is called 'moon': there is office"),
        ({"settings": {"environment": "moon?site=0"}}, "moon"),
        ({"settings": {"gate_scenarios": 29}}, "gate_scenarios"),
    ],
)
async def test_an_unknown_or_wrong_setting_is_named_and_nothing_is_queued(
    edge: Edge, body: dict[str, object], named: str
) -> None:
    answer = await edge.client.post(PATH, json=body)
    assert answer.status_code == 400
    assert named in str(problem(answer)["detail"])
    assert (await edge.client.get(PATH)).json()["runs"] == []
    assert edge.bell.runs == []


async def test_a_gate_may_be_left_out_or_hear_as_few_scenarios_as_can_tell(edge: Edge) -> None:
    for count in (0, 30):
        asked = {"environment": "office?site=7", "gate_scenarios": count}
        run = await shown(edge, await train(edge, settings=asked))
        assert run["settings"]["gate_scenarios"] == count


async def test_a_run_that_trains_shows_its_progress_and_its_last_figures(edge: Edge) -> None:
    run_id = await train(edge)
    assert (await shown(edge, run_id))["last_step"] is None
    await claim(edge)
    await step(edge, run_id, 1, 2)
    run = await shown(edge, run_id)
    assert (run["state"], run["step"], run["steps"], run["attempt"]) == ("running", 2, 4, 1)
    assert run["last_step"]["metrics"] == {"reward": 0.2}
    taken = (await edge.client.get(f"{PATH}/{run_id}/steps")).json()
    assert [(each["index"], each["metrics"]["reward"]) for each in taken] == [(1, 0.1), (2, 0.2)]
    later = (await edge.client.get(f"{PATH}/{run_id}/steps?after=1")).json()
    assert [each["index"] for each in later] == [2]
    await finish(edge, run_id, result={"decision": "rejected"})
    run = await shown(edge, run_id)
    assert (run["state"], run["result"]) == ("done", {"decision": "rejected"})
    assert run["finished_at"]


async def test_runs_are_listed_newest_first_by_pages_and_by_state(edge: Edge) -> None:
    made = [await train(edge) for _ in range(3)]
    await edge.client.post(f"{PATH}/{made[0]}/cancel")
    first = (await edge.client.get(f"{PATH}?limit=2")).json()
    rest = (await edge.client.get(f"{PATH}?limit=2&cursor={first['next_cursor']}")).json()
    assert [each["id"] for each in first["runs"] + rest["runs"]] == [str(each) for each in reversed(made)]
    assert rest["next_cursor"] is None
    waiting = (await edge.client.get(f"{PATH}?state=queued")).json()["runs"]
    assert len(waiting) == 2


async def test_cancelling_and_trying_again(edge: Edge) -> None:
    run_id = await train(edge)
    answer = await edge.client.post(f"{PATH}/{run_id}/cancel")
    assert (answer.status_code, answer.json()["state"]) == (202, "cancelled")
    answer = await edge.client.post(f"{PATH}/{run_id}/retry")
    assert (answer.status_code, answer.json()["state"]) == (202, "queued")
    assert edge.bell.runs == [run_id, run_id]
    assert (await edge.client.post(f"{PATH}/{run_id}/retry")).status_code == 409
    await claim(edge)
    answer = await edge.client.post(f"{PATH}/{run_id}/cancel")
    assert (answer.json()["state"], answer.json()["cancel_requested"]) == ("running", True)
    await finish(edge, run_id, RunState.FAILED, failure="InvalidError: nothing to learn from")
    assert (await shown(edge, run_id))["failure"] == "InvalidError: nothing to learn from"
    assert (await edge.client.post(f"{PATH}/{run_id}/cancel")).status_code == 409
    assert (await edge.client.post(f"{PATH}/{uuid4()}/cancel")).status_code == 404


async def test_a_key_of_another_project_or_of_no_right_sees_no_run(edge: Edge) -> None:
    run_id = await train(edge)
    other = await edge.key("admin", project_id=(await edge.project("other")).id)
    for method, path in (
        ("GET", ""),
        ("GET", "/steps"),
        ("GET", "/events"),
        ("POST", "/cancel"),
        ("POST", "/retry"),
    ):
        answer = await edge.client.request(method, f"{PATH}/{run_id}{path}", headers=other)
        assert answer.status_code == 404, path
    assert (await edge.client.get(PATH, headers=other)).json()["runs"] == []
    assert (await edge.client.post(PATH, json={"project": "demo"}, headers=other)).status_code == 404
    assert (await edge.client.post(PATH, json={}, headers=await edge.key("tasks"))).status_code == 403


def told(text: str) -> list[tuple[str, str, dict[str, Any]]]:
    """Event, id and data of each message."""
    found = []
    for block in text.replace("\r\n", "\n").strip().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        if fields:
            found.append((fields["event"], fields.get("id", ""), json.loads(fields["data"])))
    return found


async def test_the_events_of_an_ended_run_are_its_steps_and_its_end(edge: Edge) -> None:
    run_id = await train(edge)
    await claim(edge)
    await step(edge, run_id, 1, 2)
    await finish(edge, run_id, result={"release": 2})
    answer = await edge.client.get(f"{PATH}/{run_id}/events")
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = told(answer.text)
    assert [(event, number) for event, number, _ in events] == [("step", "1"), ("step", "2"), ("done", "")]
    assert events[1][2]["metrics"] == {"reward": 0.2}
    assert events[2][2]["result"] == {"release": 2}
    rest = await edge.client.get(f"{PATH}/{run_id}/events", headers={"Last-Event-ID": "1"})
    assert [number for _, number, _ in told(rest.text)] == ["2", ""]


class Listener:
    """Hears a stream of a run: the number of each step, of the others the event and the state."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self._news = asyncio.Event()

    async def listen(self, lines: AsyncIterator[str]) -> None:
        event = ""
        async for line in lines:
            if line.startswith("event: "):
                event = line.removeprefix("event: ")
            elif line.startswith("data: "):
                data = json.loads(line.removeprefix("data: "))
                self.heard.append(str(data["index"]) if event == "step" else f"{event} {data['state']}")
                self._news.set()

    async def until(self, *expected: str) -> None:
        """Exactly that has come since the last time."""
        async with asyncio.timeout(10):
            while self.heard != list(expected):
                self._news.clear()
                await self._news.wait()
        self.heard.clear()


async def test_a_live_stream_tells_states_and_steps_as_they_come_also_those_taken_again(edge: Edge) -> None:
    run_id = await train(edge)
    listener = Listener()
    async with served(edge) as client, client.stream("GET", f"{PATH}/{run_id}/events") as answer:
        listening = asyncio.create_task(listener.listen(answer.aiter_lines()))
        await listener.until("state queued")
        await claim(edge)
        await listener.until("state running")
        await step(edge, run_id, 1, 2, 3)
        await listener.until("1", "2", "3")
        async with edge.sessions.begin() as session:
            await run_queue.hand_back(session, run_id, "worker")
        await listener.until("state queued")
        await claim(edge)
        await listener.until("state running")
        for index in (2, 3):
            await step(edge, run_id, index)
            await listener.until(str(index))
        await finish(edge, run_id)
        await listener.until("done done")
        await asyncio.wait_for(listening, 5)


async def test_the_stream_of_a_run_whose_project_was_deleted_ends(edge: Edge) -> None:
    run_id = await train(edge)
    listener = Listener()
    async with served(edge) as client, client.stream("GET", f"{PATH}/{run_id}/events") as answer:
        listening = asyncio.create_task(listener.listen(answer.aiter_lines()))
        await listener.until("state queued")
        assert (await client.delete("/v1/projects/demo")).status_code == 204
        await asyncio.wait_for(listening, 5)
    assert listener.heard == []

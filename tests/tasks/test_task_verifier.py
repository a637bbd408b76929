"""A project's verifier scores tasks without a check: asked by a queue, signed, and asked again."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import msgspec
import pytest
from litestar import Litestar, Request, Response, post
from sqlalchemy import select

from app.apis.calls.network import open_client
from app.base.values import ScoreSource
from app.db import results, tables
from app.db.results import measures
from app.db.tables import TaskState
from app.tasks import feedback, queue
from app.tasks import store as tasks
from app.tasks.verification import VerifierOptions, VerifierSender
from tests.support.api_app import ApiApp, problem
from tests.support.ledger_project import until
from tests.support.listening_app import listening_app
from tests.support.rows import LEASE, trajectory_of, turn_of
from tests.support.webhook_receiver import SECRET, Received, is_signed

FAST = VerifierOptions(poll_seconds=0.05, timeout=30, delays=(0.05,))


class VerifierServer:
    """Answers with `body`, after `pause` seconds, and keeps what it was asked."""

    def __init__(self, body: bytes, status: int = 200, pause: float = 0.0) -> None:
        self.body, self.status, self.pause = body, status, pause
        self.received: list[Received] = []

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[str]:
        @post("/{path:path}")
        async def verify(request: Request[Any, Any, Any]) -> Response[bytes]:
            self.received.append(Received(dict(request.headers), await request.body()))
            await asyncio.sleep(self.pause)
            return Response(self.body, status_code=self.status, media_type="application/json")

        app = Litestar([verify], openapi_config=None, logging_config=None)
        async with listening_app(app, lifespan="off") as url:
            yield f"{url}/verify"


async def set_verifier(api: ApiApp, url: str) -> None:
    settings = {"settings": {"verifier": {"url": url, "secret": SECRET}}}
    assert (await api.client.patch("/v1/projects/demo", json=settings)).status_code == 200


async def end_task(api: ApiApp, *, check: str | None = None, state: TaskState = TaskState.DONE) -> UUID:
    async with api.sessions.begin() as session:
        new = tasks.NewTask(instruction="pay the rent", scenario="rent", check_code=check)
        task = await tasks.submit(session, api.demo.id, new)
        assert await queue.claim(session, "me", LEASE) is not None
        outcome = queue.TaskOutcome(state=state, answer=7, score=0.25 if check else None)
        await queue.finish(session, task.id, "me", outcome)
        turn = msgspec.structs.replace(turn_of("apis.bank.pay()"), observation="paid ***")
        turn = msgspec.structs.replace(turn, text="hm " * 9_000 + turn.text)
        record = trajectory_of(task, turn)
        record = msgspec.structs.replace(record, task=msgspec.structs.replace(record.task, scenario="rent"))
        await results.save(session, api.demo.id, record)
        return task.id


async def shown(api: ApiApp, task_id: UUID) -> dict[str, Any]:
    found: dict[str, Any] = (await api.client.get(f"/v1/tasks/{task_id}")).json()
    return found


@asynccontextmanager
async def asking(api: ApiApp, *, private: bool = True, patience: float = 30) -> AsyncIterator[None]:
    options = msgspec.structs.replace(FAST, timeout=patience)
    async with open_client(allow_private_hosts=private) as client, VerifierSender(api.sessions, client, options):
        yield


async def verified(api: ApiApp, task_id: UUID, **options: Any) -> dict[str, Any]:
    """The task once the question about it is settled."""

    async def settled() -> bool:
        return bool((await shown(api, task_id))["verification"]["state"] != "pending")

    async with asking(api, **options):
        await until(settled)
    return await shown(api, task_id)


async def test_the_answer_of_the_verifier_becomes_the_score_of_a_task_without_a_check(api: ApiApp) -> None:
    server = VerifierServer(b'{"score": 0.75, "reason": "late", "more": []}')
    async with server.listening() as url:
        await set_verifier(api, url)
        task_id = await end_task(api)
        before = await shown(api, task_id)
        task = await verified(api, task_id)
    assert (before["score"], before["verification"]["state"]) == (None, "pending"), "its end does not wait"
    assert (task["score"], task["score_source"]) == (0.75, "verifier")
    assert (task["verification"]["state"], task["verification"]["reason"]) == ("scored", "late")
    [asked] = server.received
    assert is_signed(asked)
    message = msgspec.json.decode(asked.body)
    expected = {"project": "demo", "task_id": str(task_id), "instruction": "pay the rent", "scenario": "rent"}
    expected["conversation"] = ""
    assert {name: message["data"][name] for name in expected} == expected
    assert message["type"] == "task.verify"
    [shown_turn] = message["data"]["last_turns"]
    assert (shown_turn["observation"], shown_turn["calls"]) == ("paid ***", [])
    assert shown_turn["text"].endswith("hm apis.bank.pay()"), "of a long text, the end tells what was done"
    assert len(shown_turn["text"]) == 4_000


async def test_it_is_asked_only_about_tasks_that_are_done_and_had_no_check(api: ApiApp) -> None:
    await set_verifier(api, "http://127.0.0.1:9/")
    checked, failed = await end_task(api, check="score = 0.25"), await end_task(api, state=TaskState.FAILED)
    task = await shown(api, checked)
    assert (task["score"], task["score_source"], task["verification"]) == (0.25, "check", None)
    assert (await shown(api, failed))["verification"] is None


@pytest.mark.parametrize(
    ("body", "status", "pause", "cause"),
    [
        (b'{"score": 1}', 200, 30.0, "the verifier timed out: no answer within 2 seconds"),
        (b'{"score": 1.5}', 200, 0.0, "the verifier answered nonsense: Expected `float` <= 1.0"),
        (b'{"score": "1"}', 200, 0.0, "the verifier answered nonsense: Expected `float | null`"),
        (b'{"score": true}', 200, 0.0, "the verifier answered nonsense: Expected `float | null`"),
        (b'{"score": NaN}', 200, 0.0, "the verifier answered nonsense"),
        (b"{}", 200, 0.0, "missing required field `score`"),
        (b"1", 200, 0.0, "the verifier answered nonsense: Expected `object`"),
        (b"", 200, 0.0, "the verifier answered nonsense"),
        (b"[" * 5_000, 200, 0.0, "the verifier answered nonsense"),
        (b" " * (2 << 20), 200, 0.0, "the verifier failed: the answer is larger than 1 MB"),
        (b'{"score": 1}', 500, 0.0, "the verifier failed: it answered with an error: status 500"),
        (b'{"score": 1}', 302, 0.0, "the verifier failed: it redirects, which is not followed: status 302"),
    ],
)
async def test_a_verifier_without_an_answer_leaves_the_task_unscored_and_names_the_problem(
    api: ApiApp, body: bytes, status: int, pause: float, cause: str
) -> None:
    server = VerifierServer(body, status, pause)
    async with server.listening() as url:
        await set_verifier(api, url)
        task = await verified(api, await end_task(api), patience=2 if pause else 30)
    assert (task["score"], task["score_source"]) == (None, None)
    assert (task["verification"]["state"], task["verification"]["attempts"]) == ("failed", 2)
    assert cause in task["verification"]["problem"]
    assert len(server.received) == 2


async def test_a_private_address_is_closed_to_verifiers_as_to_webhooks(api: ApiApp) -> None:
    server = VerifierServer(b'{"score": 1}')
    async with server.listening() as url:
        await set_verifier(api, url)
        task = await verified(api, await end_task(api), private=False)
    assert (task["score"], server.received) == (None, [])
    assert "private address 127.0.0.1" in task["verification"]["problem"]


async def test_a_verifier_may_abstain(api: ApiApp) -> None:
    async with VerifierServer(b'{"score": null, "reason": "unknown account"}').listening() as url:
        await set_verifier(api, url)
        task = await verified(api, await end_task(api))
    assert (task["score"], task["score_source"]) == (None, None)
    assert (task["verification"]["state"], task["verification"]["reason"]) == ("abstained", "unknown account")


async def test_what_a_person_said_meanwhile_stays_and_the_answer_is_kept_beside_it(api: ApiApp) -> None:
    async with VerifierServer(b'{"score": 1}').listening() as url:
        await set_verifier(api, url)
        task_id = await end_task(api)
        await api.client.post("/v1/feedback", json={"task_id": str(task_id), "score": 0})
        task = await verified(api, task_id)
    assert (task["score"], task["score_source"], task["overruled_score"]) == (0.0, "person", 1.0)


async def test_a_verifier_that_was_removed_is_not_asked(api: ApiApp) -> None:
    server = VerifierServer(b'{"score": 1}')
    async with server.listening() as url:
        await set_verifier(api, url)
        task_id = await end_task(api)
        await api.client.patch("/v1/projects/demo", json={"settings": {"verifier": None}})
        task = await verified(api, task_id)
    assert (task["verification"]["state"], server.received) == ("failed", [])
    assert task["verification"]["problem"] == "the project has no verifier any more"


async def test_the_secret_is_wanted_encrypted_and_never_shown(api: ApiApp) -> None:
    settings = {"settings": {"verifier": {"url": "https://example.org/hook?token=1"}}}
    answer = await api.client.patch("/v1/projects/demo", json=settings)
    assert "verifier.secret is missing" in str(problem(answer)["detail"])
    settings["settings"]["verifier"]["url"] = "https://user:word@example.org/"
    answer = await api.client.patch("/v1/projects/demo", json=settings)
    assert "verifier.url" in str(problem(answer)["detail"])
    await set_verifier(api, "https://example.org/hook?token=1")
    audit = (await api.client.get("/v1/audit")).text
    assert '"verifier_secret":"changed"' in audit
    assert SECRET not in audit + (await api.client.get("/v1/projects/demo")).text
    seen = await api.client.get("/v1/projects/demo", headers=await api.key("tasks"))
    assert seen.json()["settings"]["verifier"] == {"url": "https://example.org/***"}
    async with api.sessions() as session:
        stored = await session.scalar(select(tables.Project.verifier_secret))
    assert stored is not None
    assert SECRET not in stored


@pytest.mark.parametrize(
    ("order", "overruled"),
    [
        ("judge verifier person", 0.1),
        ("person verifier judge", 0.2),
        ("verifier judge person", 0.1),
        ("person judge verifier", 0.1),
    ],
)
async def test_the_strongest_source_counts_in_whichever_order_they_come(
    api: ApiApp, order: str, overruled: float
) -> None:
    values = {"judge": 0.1, "verifier": 0.2, "person": 0.3}
    task_id = await end_task(api)
    for name in order.split():
        async with api.sessions.begin() as session:
            if name == "person":
                await feedback.add(session, task_id, values[name])
            else:
                await results.give(session, task_id, values[name], ScoreSource(name))
    task = await shown(api, task_id)
    assert (task["score"], task["score_source"]) == (0.3, "person")
    assert task["overruled_score"] == overruled, "the first score that did not count"


async def test_a_reward_is_known_once_it_is_verified_and_a_judged_one_counts_for_no_release(api: ApiApp) -> None:
    async with VerifierServer(b'{"score": 0.5}').listening() as url:
        await set_verifier(api, url)
        task_id = await end_task(api)
        task = await verified(api, task_id)
    await api.client.patch("/v1/projects/demo", json={"settings": {"verifier": None}})
    judged = await end_task(api)
    async with api.sessions.begin() as session:
        assert await results.give(session, judged, 1.0, ScoreSource.JUDGE, judged_by="wise")
    table = tables.Task.__table__
    measured = measures(table)
    async with api.sessions() as session:
        query = select(table.c.id, measured.reward, measured.scored_at, table.c.score)
        rows = {row[0]: row[1:] for row in await session.execute(query)}
    reward, scored_at, _ = rows[task_id]
    assert (reward, scored_at.isoformat()) == (0.5, task["verification"]["finished_at"].replace("Z", "+00:00"))
    assert (rows[judged][0], rows[judged][2]) == (None, 1.0)

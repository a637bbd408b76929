"""People's scores over REST: on a scale of their own, and about a turn."""

from typing import Any
from uuid import UUID

import httpx
import pytest
from sqlalchemy import select

from app.db import tables
from app.projects import keys
from app.tasks import queue
from app.web.pages import csrf_token
from tests.support.api_app import ApiApp, asgi_client, problem

STARS = {"lowest": 1, "highest": 5}


@pytest.fixture
async def task_id(api: ApiApp) -> UUID:
    """A task that ended after two turns."""
    submitted = await api.submit()
    async with api.sessions.begin() as session:
        await queue.claim(session, "runner", 30)
        outcome = queue.TaskOutcome(state=tables.TaskState.DONE, turns=2)
        await queue.finish(session, submitted, "runner", outcome)
    return submitted


async def give(api: ApiApp, task_id: UUID, **fields: Any) -> httpx.Response:
    return await api.client.post("/v1/feedback", json={"task_id": str(task_id), **fields})


async def test_a_score_counts_by_its_place_on_the_scale(api: ApiApp, task_id: UUID) -> None:
    given = await give(api, task_id, score=4, scale=STARS)
    assert (given.status_code, given.json()["score"], given.json()["scale"]) == (201, 0.75, STARS)
    task = (await api.client.get(f"/v1/tasks/{task_id}")).json()
    assert task["score"] == 0.75
    [listed] = (await api.client.get("/v1/feedback", params={"task_id": str(task_id)})).json()
    assert listed == given.json()


async def test_feedback_may_be_about_a_turn(api: ApiApp, task_id: UUID) -> None:
    given = await give(api, task_id, score=0, turn=1, comment="it deleted the wrong one")
    assert (given.status_code, given.json()["turn"], given.json()["author"]) == (201, 1, "key test admin")
    beyond = await give(api, task_id, score=0, turn=2)
    assert (beyond.status_code, problem(beyond)["detail"]) == (400, "turn 2: the task had 2, counted from 0")


@pytest.mark.parametrize(
    "fields",
    [
        {"score": 1.5},
        {"score": -0.1},
        {"score": 0, "scale": STARS},
        {"score": 6, "scale": STARS},
        {"score": 1, "scale": {"lowest": 1, "highest": 1}},
        {"score": 1, "scale": {"lowest": 2, "highest": 1}},
        {"score": 1, "scale": {"highest": 1e300}},
        {"score": 1, "turn": -1},
        {"score": "x"},
    ],
    ids=str,
)
async def test_a_score_off_its_scale_is_refused(api: ApiApp, task_id: UUID, fields: dict[str, Any]) -> None:
    refused = await give(api, task_id, **fields)
    assert refused.status_code == 400, refused.text
    assert (await api.client.get(f"/v1/tasks/{task_id}")).json()["score"] is None


@pytest.mark.parametrize("by_link", [True, False])
async def test_whoever_submits_and_scores_a_task_is_recorded_by_key_but_for_people_with_a_link_to_the_console(
    api: ApiApp, task_id: UUID, by_link: bool
) -> None:
    """So that no key proves the skills of its own tasks."""
    rerun = await api.client.post(f"/v1/tasks/{task_id}/rerun", json={"principal": "invented"})
    assert rerun.status_code == 202, rerun.text
    await give(api, task_id, score=1)
    async with api.sessions.begin() as session:
        key = await session.scalar(select(tables.Key.id).where(tables.Key.name == "test admin"))
        rows = (await session.execute(select(tables.Task.key_id, tables.Task.scored_by))).all()
        assert key is not None
        assert sorted(rows, key=str) == sorted([(key, key), (key, None)], key=str)
        link = await keys.offer_link(session, key)
        secret = await (keys.redeem(session, link) if by_link else keys.begin(session, key))
        cookie = {"Cookie": f"sage_console={secret}"}
    async with asgi_client(api.app, {}) as browser:
        fields = {"score": "0.5", "csrf": csrf_token(secret)}
        given = await browser.post(f"/console/feedback/{task_id}", data=fields, headers=cookie)
        assert given.status_code == 303, given.text
    async with api.sessions.begin() as session:
        task = await session.get_one(tables.Task, task_id)
        assert (task.score, task.score_source, task.scored_by) == (0.5, "person", None if by_link else key)

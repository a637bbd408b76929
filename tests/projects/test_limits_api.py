"""Limits of a project, through the HTTP stack: what is refused, with which answer, and what is left."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, date, datetime
from uuid import UUID

import httpx
import pytest
from sqlalchemy import update

from app.base.errors import LimitError
from app.db import tables
from app.db.database import Sessions
from app.tasks import queue
from tests.support.api_app import ApiApp, open_api_app, problem


@pytest.fixture
async def api(committed: Sessions, database_url: str) -> AsyncIterator[ApiApp]:
    async with open_api_app(committed, database_url) as opened:
        yield opened


async def limit(api: ApiApp, **limits: float | None) -> None:
    answer = await api.client.patch("/v1/projects/demo", json={"settings": {"limits": limits}})
    assert answer.status_code == 200, answer.text


async def post(api: ApiApp, **headers: str) -> httpx.Response:
    return await api.client.post("/v1/tasks", json={"instruction": "tidy up"}, headers=headers)


async def finish(api: ApiApp, turns: int = 0, generated_tokens: int = 0, calls: int = 0, cost: float = 0) -> UUID:
    async with api.sessions.begin() as session:
        task = await queue.claim(session, "me", 30)
        assert task is not None
        outcome = queue.TaskOutcome(
            state=tables.TaskState.DONE, turns=turns, generated_tokens=generated_tokens, calls=calls, cost=cost
        )
        assert await queue.finish(session, task.id, "me", outcome)
        return task.id


def refused(answer: httpx.Response, name: str, value: float) -> int:
    """Check the refusal, and return its Retry-After."""
    assert answer.status_code == 429, answer.text
    body = problem(answer)
    assert body["error"] == LimitError.__name__
    assert body["limit"] == {"name": name, "value": value, "setting": f"SAGE_LIMIT_{name.upper()}"}
    assert f"limits.{name}" in str(body["detail"])
    return int(answer.headers["Retry-After"])


async def test_of_50_submissions_at_once_exactly_as_many_as_may_wait_are_accepted(api: ApiApp) -> None:
    await limit(api, queued_tasks=10)
    answers = await asyncio.gather(*(post(api) for _ in range(50)))
    assert sorted(answer.status_code for answer in answers) == [202] * 10 + [429] * 40
    assert refused(answers[[answer.status_code for answer in answers].index(429)], "queued_tasks", 10) >= 1
    usage = (await api.client.get("/v1/projects/demo/usage")).json()
    assert (usage["queued"], usage["today"]["submitted"], usage["left"]["queued_tasks"]) == (10, 10, 0)


async def test_a_submission_is_accepted_again_once_a_task_was_claimed(api: ApiApp) -> None:
    await limit(api, queued_tasks=1)
    await post(api)
    assert (await post(api)).status_code == 429
    await finish(api)
    assert (await post(api)).status_code == 202


async def test_a_repeated_submission_is_answered_even_if_the_queue_is_full(api: ApiApp) -> None:
    await limit(api, queued_tasks=1)
    first = await post(api, **{"Idempotency-Key": "once"})
    again = await post(api, **{"Idempotency-Key": "once"})
    assert (again.status_code, again.json()["id"]) == (202, first.json()["id"])
    usage = (await api.client.get("/v1/projects/demo/usage")).json()
    assert usage["today"]["submitted"] == 1


async def test_a_list_of_tasks_is_accepted_together_or_not_at_all(api: ApiApp) -> None:
    await limit(api, queued_tasks=3)
    four = {"tasks": [{"instruction": "tidy up"}] * 4}
    refused(await api.client.post("/v1/tasks", json=four), "queued_tasks", 3)
    assert (await api.client.get("/v1/tasks")).json()["tasks"] == []
    four["tasks"].pop()
    assert (await api.client.post("/v1/tasks", json=four)).status_code == 202


async def test_tasks_of_a_day_are_limited_until_midnight(api: ApiApp) -> None:
    await limit(api, tasks_per_day=2)
    assert [(await post(api)).status_code for _ in range(2)] == [202, 202]
    wait = refused(await post(api), "tasks_per_day", 2)
    now = datetime.now(UTC)
    to_midnight = 86_400 - (now - now.replace(hour=0, minute=0, second=0, microsecond=0)).total_seconds()
    assert abs(wait - to_midnight) < 10
    async with api.sessions.begin() as session:
        await session.execute(update(tables.ProjectUsage).values(day=date(2020, 1, 1)))
    assert (await post(api)).status_code == 202


@pytest.mark.parametrize(
    ("name", "used"),
    [("tokens_per_day", "generated_tokens"), ("calls_per_day", "calls"), ("cost_per_day", "cost")],
)
async def test_a_project_that_used_up_its_day_is_refused_and_its_tasks_wait(
    api: ApiApp, name: str, used: str
) -> None:
    await limit(api, **{name: 100})
    await api.submit()
    waiting = await api.submit()
    await finish(api, **{used: 100})
    refused(await post(api), name, 100)
    assert (await api.client.get(f"/v1/tasks/{waiting}")).json()["waits_for"] == name
    async with api.sessions.begin() as session:
        assert await queue.claim(session, "me", 30) is None
    await limit(api, **{name: 101})
    assert (await api.client.get(f"/v1/tasks/{waiting}")).json()["waits_for"] is None
    assert await finish(api) == waiting


async def test_a_limit_of_cost_need_not_be_whole_and_says_what_it_is(api: ApiApp) -> None:
    await limit(api, cost_per_day=0.25)
    await api.submit()
    await finish(api, cost=0.2)
    usage = (await api.client.get("/v1/projects/demo/usage")).json()
    assert (usage["today"]["cost"], usage["left"]["cost_per_day"]) == (0.2, pytest.approx(0.05))
    await api.submit()
    await finish(api, cost=0.1)
    answer = await post(api)
    refused(answer, "cost_per_day", 0.25)
    assert "demo has used up the cost of 0.25 of today" in str(problem(answer)["detail"])


async def test_usage_shows_today_the_last_days_and_what_is_left(api: ApiApp) -> None:
    await limit(api, tokens_per_day=1_000, running_tasks=2)
    await api.submit()
    await api.submit()
    await finish(api, turns=3, generated_tokens=250, calls=7)
    usage = (await api.client.get("/v1/projects/demo/usage", headers=await api.key("tasks"))).json()
    today = usage["days"][0]
    assert (today["submitted"], today["done"], today["turns"], today["calls"]) == (2, 1, 3, 7)
    assert (usage["queued"], usage["running"]) == (1, 0)
    assert (usage["left"]["tokens_per_day"], usage["left"]["running_tasks"]) == (750, 2)
    assert usage["limits"]["tasks_per_day"] is None
    assert usage["resets_at"] > datetime.now(UTC).isoformat()


async def test_a_project_cannot_see_the_usage_of_another(api: ApiApp) -> None:
    other = await api.project("other")
    headers = await api.key("admin", project_id=other.id)
    assert (await api.client.get("/v1/projects/demo/usage", headers=headers)).status_code == 404


@pytest.mark.parametrize("settings", [{"limits": {"queued_tasks": 0}}, {"weight": 100}])
async def test_a_projects_own_admin_cannot_raise_its_share_or_its_limits(
    api: ApiApp, settings: dict[str, object]
) -> None:
    headers = await api.key("admin", project_id=api.demo.id)
    answer = await api.client.patch("/v1/projects/demo", json={"settings": settings}, headers=headers)
    assert answer.status_code == 403
    assert next(iter(settings)) in str(problem(answer)["detail"])
    other = await api.client.patch("/v1/projects/demo", json={"settings": {"skills": "open"}}, headers=headers)
    assert other.status_code == 200


@pytest.mark.parametrize("limits", [{"queued_tasks": -1}, {"queued_tasks": "many"}, {"tasks_per_year": 1}])
async def test_a_limit_that_does_not_fit_is_refused(api: ApiApp, limits: dict[str, object]) -> None:
    answer = await api.client.patch("/v1/projects/demo", json={"settings": {"limits": limits}})
    assert answer.status_code == 400


async def test_a_task_keeps_its_priority_and_one_out_of_range_is_refused(api: ApiApp) -> None:
    task = await api.submit(priority=7)
    assert (await api.client.get(f"/v1/tasks/{task}")).json()["priority"] == 7
    answer = await api.client.post("/v1/tasks", json={"instruction": "tidy up", "priority": 101})
    assert (answer.status_code, problem(answer)["field"]) == (400, "priority")

"""Tasks whose scores contradict each other are listed, whoever gave them, and in whichever order."""

from uuid import UUID

import pytest

from app.base.values import ScoreSource
from app.db import results
from app.tasks import feedback
from tests.support.api_app import ApiApp
from tests.tasks.test_task_verifier import end_task


async def scored(api: ApiApp, given: str) -> UUID:
    """A task with scores such as `judge:1 person:0`, in this order."""
    task_id = await end_task(api)
    for name, value in (each.split(":") for each in given.split()):
        async with api.sessions.begin() as session:
            if name == "person":
                await feedback.add(session, task_id, float(value))
            else:
                await results.give(session, task_id, float(value), ScoreSource(name))
    return task_id


@pytest.mark.parametrize(
    ("given", "lowest", "highest"),
    [
        ("person:1 person:0", 0.0, 1.0),
        ("person:0 person:1 person:1", 0.0, 1.0),
        ("judge:0 verifier:1 person:0", 0.0, 1.0),
        ("verifier:1 judge:0 person:0", 0.0, 1.0),
        ("person:0 judge:0.1 verifier:0.5", 0.0, 0.5),
        ("verifier:0 judge:1", 0.0, 1.0),
    ],
)
async def test_a_task_with_contradictory_scores_is_listed(
    api: ApiApp, given: str, lowest: float, highest: float
) -> None:
    await scored(api, "person:1 person:0.75")
    task_id = await scored(api, given)
    listed = (await api.client.get("/v1/tasks?overruled=true")).json()["tasks"]
    assert [each["id"] for each in listed] == [str(task_id)]
    task = (await api.client.get(f"/v1/tasks/{task_id}")).json()
    assert (task["lowest_score"], task["highest_score"]) == (lowest, highest)


@pytest.mark.parametrize(
    "given", ["person:0", "verifier:1", "judge:1 judge:0", "verifier:0 verifier:1", "judge:1 person:0.6"]
)
async def test_one_score_a_newer_one_of_the_same_model_or_a_close_one_is_no_contradiction(
    api: ApiApp, given: str
) -> None:
    await scored(api, given)
    assert (await api.client.get("/v1/tasks?overruled=true")).json()["tasks"] == []

"""How far judges agree with people, over REST."""

from app.base.values import ScoreSource
from app.db import results
from app.db.tables import TaskState
from app.tasks import feedback
from tests.support.api_app import ApiApp
from tests.support.rows import task_row
from tests.support.webhook_messages import end_task


async def _compared(api: ApiApp, judge: float, person: float) -> None:
    async with api.sessions.begin() as session:
        task = await task_row(session, api.demo.id)
        task.state, task.finished_at = TaskState.DONE, task.created_at
        await session.flush()
        await results.give(session, task.id, judge, ScoreSource.JUDGE, judged_by="wise")
        await feedback.add(session, task.id, person)


async def test_the_agreement_of_each_judge_is_shown_with_its_interval(api: ApiApp) -> None:
    for judge, person in [(0.9, 1.0), (0.1, 0.0), (0.8, 0.6), (0.7, 0.2)]:
        await _compared(api, judge, person)
    await end_task(api)  # of a check: no judge is compared
    shown = (await api.client.get("/v1/judge/agreement")).json()
    [judge] = shown.pop("judges")
    assert shown == {"least": 0.8, "least_tasks": 30}
    assert (judge["judge"], judge["trusted"]) == ("wise", False)
    found = judge["agreement"]
    assert (found["tasks"], found["agreeing"], found["share"], found["kappa"]) == (4, 3, 0.75, 0.5)
    assert (round(found["low"], 3), round(found["high"], 3)) == (0.301, 0.954)


async def test_a_project_sees_its_own_judges_only(api: ApiApp) -> None:
    await _compared(api, 1.0, 1.0)
    other = await api.project("other")
    headers = await api.key("tasks", project_id=other.id)
    assert (await api.client.get("/v1/judge/agreement", headers=headers)).json()["judges"] == []


async def test_tasks_that_only_a_judge_scored_are_still_wanted_of_people(api: ApiApp) -> None:
    async with api.sessions.begin() as session:
        task = await task_row(session, api.demo.id)
        task.state, task.finished_at = TaskState.DONE, task.created_at
        await session.flush()
        await results.give(session, task.id, 1.0, ScoreSource.JUDGE, judged_by="wise")
    [wanted] = (await api.client.get("/v1/feedback/wanted")).json()
    assert (wanted["task_id"], wanted["scores"]) == (str(task.id), 0)

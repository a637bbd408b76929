"""Erasing one task, or all of a person's, names what was learned from it."""

import asyncio
from uuid import UUID, uuid4

import pytest
from sqlalchemy import func, select, update

from app.base.errors import ConflictError
from app.base.run_settings import RunKind, RunSettings
from app.db import queries, results, tables
from app.db.tables import AuditAction, RunState, TaskState
from app.projects import audit
from app.releases import store as releases
from app.runs import store as runs
from app.runs.experience import window
from app.skills import evidence
from app.skills import store as skills
from app.tasks import feedback, retention
from tests.support.api_app import ApiApp, problem
from tests.support.ledger_project import until
from tests.support.lock_waits import waits_for_a_lock
from tests.support.rows import new_skill, offer_of, record_offers, trajectory_of, turn_of

WORDS = "archive the mails of Ms Secret"
NOTHING = {"tasks": 0, "skills": [], "runs": [], "releases": [], "retrain": ""}


async def _ended(api: ApiApp, principal: str = "ann", **submission: object) -> UUID:
    """A finished task with everything that can belong to one, and the skill that it wrote."""
    task_id = await api.submit(WORDS, principal=principal, **submission)
    async with api.sessions.begin() as session:
        task = await session.get_one(tables.Task, task_id)
        skill = await skills.add(session, task.project_id, new_skill(f"greet_{task_id.hex[:6]}", task_id=task_id))
        await record_offers(session, task_id, [offer_of(skill)])
        await results.save(session, task.project_id, trajectory_of(task, turn_of()))
        await results.append(session, task_id, "done", {})
        about = {"project_id": task.project_id, "task_id": task_id}
        session.add(tables.WebhookDelivery(event="task.done", body=WORDS, **about))
        call = {"seq": 1, "turn": 1, "api": "mail.send_mail", "arguments": {"text": WORDS}, "digest": ""}
        session.add(tables.Approval(expires_at=func.now(), state="approved", **about, **call))
        ended = {"state": TaskState.DONE, "finished_at": func.clock_timestamp(), "score": 1.0}
        await session.execute(update(tables.Task).where(tables.Task.id == task_id).values(ended))
    async with api.sessions.begin() as session:
        await feedback.add(session, task_id, 0.5, WORDS)
    return task_id


async def _run(
    api: ApiApp, model: str, *tasks: UUID, start: str = "base", state: RunState = RunState.DONE
) -> tuple[UUID, int]:
    """A run that learned from the tasks, and the number of its release."""
    async with api.sessions.begin() as session:
        run = await runs.create(session, api.demo.id, RunSettings())
        assert await releases.record(session, run.id, start, tasks)
        release = await releases.propose(session, api.demo.id, model, run.id)
        await session.execute(
            update(tables.TrainingRun).where(tables.TrainingRun.id == run.id).values(state=state)
        )
        return run.id, release.number


async def _rows_of(api: ApiApp, task_id: UUID) -> dict[str, int]:
    """The tables that still have something of the task."""
    found = {}
    async with api.sessions() as session:
        for table in tables.Base.metadata.tables.values():
            if "task_id" in table.c and table.name != "skills":
                query = select(func.count()).select_from(table).where(table.c.task_id == task_id)
                found[table.name] = await session.scalar(query) or 0
    return {name: count for name, count in found.items() if count}


async def test_a_task_is_erased_and_what_learned_from_it_is_named(api: ApiApp) -> None:
    task_id, other = await _ended(api), await _ended(api)
    first, number = await _run(api, "a" * 32, task_id)
    later, next_number = await _run(api, "b" * 32, other, start="a" * 32)
    await _run(api, "c" * 32, other)
    owned = {"task_events", "trajectories", "feedback", "skill_offers", "run_tasks"}
    assert owned | {"webhook_deliveries", "approvals"} <= (await _rows_of(api, task_id)).keys()
    answer = await api.client.delete(f"/v1/tasks/{task_id}")
    assert answer.status_code == 200, answer.text
    erased = answer.json()
    assert erased["tasks"] == 1
    assert [each["name"] for each in erased["skills"]] == [f"greet_{task_id.hex[:6]}"]
    assert [(each["id"], each["recorded"]) for each in erased["runs"]] == [(str(first), True), (str(later), True)]
    assert [(each["number"], each["model"]) for each in erased["releases"]] == [
        (number, "a" * 32),
        (next_number, "b" * 32),
    ]
    assert 'start="base"' in erased["retrain"]
    assert (await api.client.get(f"/v1/tasks/{task_id}")).status_code == 404
    assert (await api.client.delete(f"/v1/tasks/{task_id}")).status_code == 404
    async with api.sessions.begin() as session:  # a replay that was under way
        await evidence.add_replay(session, task_id, UUID(erased["skills"][0]["id"]), True)
    assert await _rows_of(api, task_id) == {}
    assert await _rows_of(api, other) != {}
    async with api.sessions() as session:
        assert [each.id for each in await window(session, api.demo.id, limit=10)] == [other]
        page = await audit.page(session, api.demo.id, limit=50)
    [entry] = [each for each in page.items if each.action is AuditAction.TASKS_ERASED]
    assert (entry.actor, entry.detail["tasks"], entry.detail["runs"]) == (
        "key test admin",
        1,
        [str(first), str(later)],
    )
    assert not any(word in str(entry.detail) for word in ("Secret", "ann", str(task_id)))


async def test_all_tasks_of_a_person_are_erased_and_no_others(api: ApiApp) -> None:
    own, other = [await _ended(api), await _ended(api)], await _ended(api, "bob")
    run_id, _ = await _run(api, "a" * 32, *own)
    answer = (await api.client.delete("/v1/tasks", params={"principal": "ann"})).json()
    assert (answer["tasks"], len(answer["skills"])) == (2, 2)
    assert [each["id"] for each in answer["runs"]] == [str(run_id)]
    for task_id in own:
        assert await _rows_of(api, task_id) == {}
    assert (await api.client.get(f"/v1/tasks/{other}")).status_code == 200
    assert (await api.client.delete("/v1/tasks", params={"principal": "ann"})).json() == NOTHING


async def test_a_project_is_not_erased_by_another_nor_by_a_key_without_the_scope(api: ApiApp) -> None:
    ended = await _ended(api)
    billing = await api.project("billing")
    theirs = await _ended(api, project="billing")
    stranger = await api.key("admin", project_id=billing.id)
    assert (await api.client.delete(f"/v1/tasks/{ended}", headers=stranger)).status_code == 404
    named = {"principal": "ann", "project": "demo"}
    assert (await api.client.delete("/v1/tasks", params=named, headers=stranger)).status_code == 404
    erased = (await api.client.delete("/v1/tasks", params={"principal": "ann"}, headers=stranger)).json()
    assert (erased["tasks"], await _rows_of(api, theirs)) == (1, {})
    for scope in ("tasks", "skills", "approvals"):
        reader = await api.key(scope)
        assert (await api.client.delete(f"/v1/tasks/{ended}", headers=reader)).status_code == 403
        assert (await api.client.delete("/v1/tasks", params=named, headers=reader)).status_code == 403
    assert await _rows_of(api, ended) != {}


@pytest.mark.parametrize(
    "query", ["", "?principal=", "?principal=%00", "?principal=" + "x" * 201, "?principal=ann&project=no"]
)
async def test_a_person_who_is_not_named_properly_is_refused(api: ApiApp, query: str) -> None:
    ended = await _ended(api)
    assert (await api.client.delete(f"/v1/tasks{query}")).status_code in (400, 404)
    assert (await api.client.delete(f"/v1/tasks/{uuid4()}")).status_code == 404
    assert (await api.client.delete("/v1/tasks/anything")).status_code in (400, 404, 405)
    assert await _rows_of(api, ended) != {}


async def test_a_task_that_has_not_ended_is_refused_until_it_is_cancelled(api: ApiApp) -> None:
    ended, waiting = await _ended(api), await api.submit(WORDS, principal="ann")
    for path in (f"/v1/tasks/{waiting}", "/v1/tasks?principal=ann"):
        answer = await api.client.delete(path)
        assert answer.status_code == 409
        assert "cancel them first" in str(problem(answer)["detail"])
    assert await _rows_of(api, ended) != {}
    await api.client.post(f"/v1/tasks/{waiting}/cancel")
    assert (await api.client.delete("/v1/tasks?principal=ann")).json()["tasks"] == 2


async def test_a_task_that_a_run_is_learning_from_is_refused_until_the_run_has_ended(api: ApiApp) -> None:
    task_id, other = await _ended(api), await _ended(api)
    run_id, _ = await _run(api, "a" * 32, task_id, other, state=RunState.RUNNING)
    for path in (f"/v1/tasks/{task_id}", "/v1/tasks?principal=ann"):
        assert f"{run_id} is learning from it" in str(problem(await api.client.delete(path))["detail"])
    async with api.sessions.begin() as session:
        await session.execute(update(tables.TrainingRun).values(state=RunState.CANCELLED))
    assert (await api.client.delete(f"/v1/tasks/{task_id}")).json()["tasks"] == 1
    answer = await api.client.post(f"/v1/training-runs/{run_id}/retry")
    assert answer.status_code == 409
    assert "a task that is deleted" in str(problem(answer)["detail"])


async def test_a_run_learns_from_no_task_that_is_being_erased(api: ApiApp) -> None:
    task_id, other = await _ended(api), await _ended(api)
    async with api.sessions.begin() as session:
        run = await runs.create(session, api.demo.id, RunSettings())
        assert await releases.record(session, run.id, "base", [other])
    await api.client.delete(f"/v1/tasks/{task_id}")
    async with api.sessions.begin() as session:
        assert not await releases.record(session, run.id, "base", [task_id, other])
    with pytest.raises(ConflictError, match="cancelled"):
        async with api.sessions.begin() as session:
            await runs.retry(session, run.id)


async def test_a_run_of_before_the_recording_may_have_learned(api: ApiApp) -> None:
    task_id = await _ended(api)
    async with api.sessions.begin() as session:
        made = [await runs.create(session, api.demo.id, RunSettings()) for _ in range(2)]
        examined = await runs.create(session, api.demo.id, RunSettings(kind=RunKind.EXAM))  # it learns nothing
        begun = update(tables.TrainingRun).values(started_at=func.clock_timestamp(), state=RunState.DONE)
        await session.execute(begun)
        done = tables.TrainingRun.id.in_([made[0].id, examined.id])
        await session.execute(update(tables.TrainingRun).where(done).values(step=3))
    erased = (await api.client.delete(f"/v1/tasks/{task_id}")).json()
    assert [(each["id"], each["recorded"]) for each in erased["runs"]] == [(str(made[0].id), False)]


async def test_a_skill_that_is_deleted_forgets_the_words_of_its_task(api: ApiApp) -> None:
    task_id = await _ended(api)
    [skill] = (await api.client.delete(f"/v1/tasks/{task_id}")).json()["skills"]
    assert (await api.client.delete(f"/v1/skills/{skill['id']}")).status_code == 204
    async with api.sessions() as session:
        row = await session.get_one(tables.Skill, UUID(skill["id"]))
    assert (row.source, row.instruction, row.slots, row.taint, row.principal, row.task_id) == (
        "", "", [], "", "", None,
    )  # fmt: skip


async def test_an_erasure_waits_for_a_run_that_is_about_to_learn(api: ApiApp) -> None:
    task_id = await _ended(api)
    async with api.sessions.begin() as session:
        run = await runs.create(session, api.demo.id, RunSettings())
    async with api.sessions.begin() as session:
        assert await releases.record(session, run.id, "base", [task_id])
        erasing = asyncio.create_task(api.client.delete(f"/v1/tasks/{task_id}"))
        await until(lambda: waits_for_a_lock(api.sessions))
    assert (await erasing).status_code == 409, "the run has recorded it by now"


async def test_an_erasure_that_is_interrupted_erases_whole_tasks_only(api: ApiApp) -> None:
    first, second = sorted([await _ended(api), await _ended(api)])
    async with api.sessions.begin() as session:
        which = retention.of_principal(api.demo.id, "ann", await queries.now(session))
    async with api.sessions.begin() as session:
        assert (await retention.erase_some(session, api.demo.id, which, "key test", 1)).tasks == 1
    async with api.sessions() as session:
        assert (await retention.erase_some(session, api.demo.id, which, "key test", 1)).tasks == 1
        await session.rollback()
    assert await _rows_of(api, first) == {}
    assert "trajectories" in await _rows_of(api, second)
    async with api.sessions() as session:
        page = await audit.page(session, api.demo.id, limit=50)
    assert [each.action for each in page.items].count(AuditAction.TASKS_ERASED) == 1
    assert (await api.client.delete("/v1/tasks?principal=ann")).json()["tasks"] == 1

"""A hosted model does tasks of its project again, as an expert: which ones, and without changing anything."""

from itertools import product
from typing import Any
from uuid import UUID

from sqlalchemy import select, update

from app.base.values import CountedTokens, Stop, Turn, hosted
from app.db import results, tables
from app.db.tables import ReleaseState, SkillState, TaskState
from app.releases import store as releases
from app.skills import store as skills
from app.tasks import queue, turns
from app.tasks import store as tasks
from tests.support.api_app import ApiApp
from tests.support.every_row import every_row
from tests.support.hosted_project import hosted_entry, hosted_runner
from tests.support.ledger_project import LedgerProject
from tests.support.scripted_chat import ScriptedChatModel
from tests.support.scripted_engine import block

DONE = block("apis.supervisor.complete_task(answer=len(apis.ledger.list_entries()))")
WRITE = block("apis.ledger.add_entry(text='hello')")
CAUTIOUS = block("try:\n    apis.ledger.add_entry(text='hello')\nexcept PermissionError:\n    pass")
SKILL = block(
    "def count_entries():\n"
    '    """How many entries the ledger has."""\n'
    "    return len(apis.ledger.list_entries())\n"
    "print(count_entries())"
)


async def ended(api: ApiApp, instruction: str, **columns: Any) -> UUID:
    """A task that ended so."""
    async with api.sessions.begin() as session:
        task = await tasks.submit(session, api.demo.id, tasks.NewTask(instruction=instruction))
        given = {"state": TaskState.DONE, "stop": Stop.COMPLETED, "finished_at": task.created_at} | columns
        await session.execute(update(tables.Task).where(tables.Task.id == task.id).values(given))
    return task.id


async def asked(api: ApiApp, which: str, status: int = 202, **fields: Any) -> dict[str, Any]:
    answer = await api.client.post("/v1/hosted-models/claude/tasks", json={"tasks": which, **fields})
    assert answer.status_code == status, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def again(api: ApiApp, which: str, **fields: Any) -> list[str]:
    """The instructions of what was queued."""
    queued = (await asked(api, which, **fields))["tasks"]
    return [(await api.client.get(f"/v1/tasks/{each['id']}")).json()["instruction"] for each in queued]


async def test_an_expert_gets_the_newest_tasks_that_ended_so(api: ApiApp) -> None:
    await hosted_entry(api.sessions, api.demo.id)
    await ended(api, "solved", score=0.5)
    await ended(api, "failed", score=0.4)
    await ended(api, "broke", state=TaskState.FAILED, stop=None)
    await ended(api, "too long", stop=Stop.TURN_LIMIT)
    await ended(api, "broke, and a person is content", state=TaskState.FAILED, score=1.0)
    await ended(api, "cancelled", state=TaskState.CANCELLED, stop=Stop.CANCELLED)
    await ended(api, "a skill", state=TaskState.FAILED, skill_run={"skill_id": "x"})
    await ended(api, "unknown")
    await ended(api, "unknown too")
    await api.submit("waits")
    assert await again(api, "failed", limit=2) == ["too long", "broke"]
    assert await again(api, "failed") == ["failed"], "no task is queued twice"
    assert await again(api, "unscored") == ["unknown too", "unknown"]
    assert await asked(api, "unscored") == {"release": None, "tasks": []}
    await asked(api, "all", 400)


async def test_what_it_does_again_is_the_same_task_of_a_candidate_and_only_reads(api: ApiApp) -> None:
    entry = await hosted_entry(api.sessions, api.demo.id)
    sent = {"conversation": "user: hi", "scenario": "s", "principal": "iris", "variables": {"world": "w7"}}
    first = await ended(api, "count", score=0.0, check_code="score = 1", priority=3, **sent)
    found = await asked(api, "failed")
    [queued] = found["tasks"]
    shown = (await api.client.get(f"/v1/tasks/{queued['id']}")).json()
    assert {name: shown[name] for name in sent} == sent
    assert (shown["check"], shown["rerun_of"], shown["reads_only"]) == ("score = 1", str(first), True)
    assert shown["priority"] < 0
    async with api.sessions() as session:
        release = await releases.numbered(session, api.demo.id, found["release"])
        task = await tasks.get(session, UUID(queued["id"]))
    assert (release.state, release.model) == (ReleaseState.CANDIDATE, hosted(entry.id))
    assert (task.release_id, task.pinned) == (release.id, True)
    rerun = await api.client.post(f"/v1/tasks/{task.id}/rerun")
    repeated = (await api.client.get(rerun.json()["links"]["self"])).json()
    assert repeated["reads_only"], "whoever runs it again"


async def test_one_that_never_began_may_be_tried_again_and_one_that_it_served_is_not(api: ApiApp) -> None:
    entry = await hosted_entry(api.sessions, api.demo.id)
    async with api.sessions.begin() as session:
        release = await releases.propose(session, api.demo.id, hosted(entry.id))
    await ended(api, "its own", score=0.0, release_id=release.id)
    await ended(api, "another's", score=0.0)
    with every_row() as row:
        for turns, expected in ((0, ["another's"]), (1, [])):
            with row(turns):
                await again(api, "failed")
                values = {"state": TaskState.FAILED, "finished_at": release.created_at, "turns": turns}
                async with api.sessions.begin() as session:
                    await session.execute(update(tables.Task).where(tables.Task.reads_only).values(values))
                assert await again(api, "failed") == expected


async def test_an_expert_is_known_and_asked_for_by_an_administrator(api: ApiApp) -> None:
    await asked(api, "failed", 404)
    await hosted_entry(api.sessions, api.demo.id)
    headers = await api.key("tasks")
    answer = await api.client.post("/v1/hosted-models/claude/tasks", json={"tasks": "failed"}, headers=headers)
    assert answer.status_code == 403
    other = await api.project("other")
    headers = await api.key("admin", project_id=other.id)
    answer = await api.client.post("/v1/hosted-models/claude/tasks", json={"tasks": "failed"}, headers=headers)
    assert answer.status_code == 404


async def expert_task(project: LedgerProject, **more: Any) -> UUID:
    """As it is queued."""
    entry = await hosted_entry(project.sessions, project.id)
    async with project.sessions.begin() as session:
        release = await releases.propose(session, project.id, hosted(entry.id))
    return await project.submit(release_id=release.id, pinned=True, reads_only=True, **more)


async def test_a_success_that_only_read_is_scored_and_leaves_skills_on_probation(project: LedgerProject) -> None:
    task_id = await expert_task(project, check_code="score = answer == 0")
    model = ScriptedChatModel(SKILL, DONE)
    async with hosted_runner(project, model):
        row = await project.ended(task_id)
    assert (row.state, row.score, row.answer, project.ledger.entries) == (TaskState.DONE, 1.0, 0, [])
    async with project.sessions() as session:
        [skill] = await skills.made_by(session, task_id)
        assert (await releases.active(session, project.id)).number == 1
    assert (skill.name, skill.state) == ("count_entries", SkillState.PROBATION)


async def test_a_task_that_may_only_read_ends_as_failed_where_it_wants_more(project: LedgerProject) -> None:
    entry = await hosted_entry(project.sessions, project.id)
    async with project.sessions.begin() as session:
        release = await releases.propose(session, project.id, hosted(entry.id))
        await releases.activate(session, release.id)  # meanwhile
        await session.execute(
            update(tables.Project).values(settings={"verifier": {"url": "https://example.org/"}})
        )
    scripts = ((WRITE, DONE), (CAUTIOUS, DONE), (SKILL, CAUTIOUS, DONE))
    with every_row() as row:
        for said, check in product(scripts, ("score = 1", None)):
            with row((said, check)):
                only: dict[str, Any] = {"release_id": release.id, "pinned": True, "reads_only": True}
                model = ScriptedChatModel(*said)
                task_id = await project.submit(check_code=check, **only)
                async with hosted_runner(project, model):
                    task = await project.ended(task_id)
                assert len(model.requests) == len(said) - 1, "it ends there"
                assert (task.state, task.score, task.stop) == (TaskState.FAILED, None, None)
                assert task.failure == "it may only read, and wanted to call ledger.add_entry"
                async with project.sessions() as session:
                    assert not await skills.made_by(session, task_id)
                    assert not (await session.scalars(select(tables.Verification))).all()
                    assert (await results.of_task(session, task_id)).turns
    assert project.ledger.entries == []


async def test_another_runner_still_only_lets_it_read(project: LedgerProject) -> None:
    task_id = await expert_task(project)
    turn = Turn(context_ids=(), sampled_ids=(), logprobs=(), text=CAUTIOUS, counted=CountedTokens(generated=4))
    async with project.sessions.begin() as session:
        row = await queue.claim(session, "dead", 60)
        assert row is not None
        await turns.begin(session, row.id, "dead", 0, turn)
        await queue.abandon(session, "dead")
    async with hosted_runner(project, ScriptedChatModel(DONE)):
        ended = await project.ended(task_id)
    assert (ended.state, ended.turns, project.ledger.entries) == (TaskState.FAILED, 1, [])
    assert "ledger.add_entry" in (ended.failure or "")

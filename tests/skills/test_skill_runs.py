"""Skills run with given arguments, as tasks without a model: over REST, by a runner, in the sandbox."""

from typing import Any
from uuid import UUID

import msgspec

from app.apis.calls.skill_guard import PARAMETER, AllowedOperation, SkillManifest
from app.base.values import Stop
from app.db.tables import Skill, TaskState
from app.skills import evidence, moves
from app.skills import store as skills
from tests.support.api_app import problem
from tests.support.approving import WRITES, ApprovingProject
from tests.support.rows import new_skill
from tests.support.scripted_engine import ScriptedEngine

WRITE = "def write_entry(text: str, *more: str) -> list:\n    {body}\n"
EACH = "return [apis.ledger.add_entry(text=each)['id'] for each in (text, *more)]"
CALL = WRITE.format(body=EACH)


async def add_skill(demo: ApprovingProject, source: str = CALL, principal: str = "") -> Skill:
    allowed = AllowedOperation("POST", False, {"text": [PARAMETER]})
    new = msgspec.structs.replace(
        new_skill("write_entry", source),
        apis=["ledger.add_entry"],
        manifest=msgspec.to_builtins(SkillManifest({"ledger.add_entry": allowed})),
        principal=principal,
    )
    async with demo.project.sessions.begin() as session:
        return await skills.add(session, demo.project.id, new)


async def submit(demo: ApprovingProject, skill: Skill, arguments: Any, **more: Any) -> UUID:
    answer = await demo.api.client.post(f"/v1/skills/{skill.id}/run", json={"arguments": arguments, **more})
    assert answer.status_code == 202, answer.text
    return UUID(answer.json()["id"])


async def run(demo: ApprovingProject, skill: Skill, arguments: Any) -> dict[str, Any]:
    """The task once it has ended. A model would answer nothing."""
    task_id = await submit(demo, skill, arguments)
    engine = ScriptedEngine(demo.project.tokenizer)
    async with demo.project.runner(engine):
        await demo.project.ended(task_id)
    assert engine.prompts == []
    shown: dict[str, Any] = (await demo.api.client.get(f"/v1/tasks/{task_id}")).json()
    return shown


async def test_a_skill_returns_its_answer_and_is_journalled_as_a_task(demo: ApprovingProject) -> None:
    skill = await add_skill(demo)
    task = await run(demo, skill, {"text": "one", "more": ['"two"\n```', "three"]})
    assert demo.written() == ["one", '"two"\n```', "three"]
    assert (task["state"], task["stop_reason"], task["answer"]) == ("done", "completed", [1, 2, 3])
    assert (task["turns"], task["calls"], task["generated_tokens"]) == (1, 3, 0)
    assert task["skill_run"]["skill_id"] == str(skill.id)
    assert [each["id"] for each in task["skills"]["used"]] == [str(skill.id)]
    events = await demo.project.events(UUID(task["id"]))
    calls = [(data["api"], data["skill"]) for kind, data in events if kind == "call"]
    assert calls == [("ledger.add_entry", "write_entry")] * 3


async def test_its_manifest_holds(demo: ApprovingProject) -> None:
    skill = await add_skill(demo, WRITE.format(body="return apis.ledger.add_entry(text=f'{text} and more')"))
    task = await run(demo, skill, {"text": "one"})
    assert demo.written() == []
    assert (task["state"], task["stop_reason"]) == ("failed", "error_limit")
    assert "the argument text of ledger.add_entry came from" in task["failure"]
    assert (await demo.api.client.get(f"/v1/skills/{skill.id}")).json()["state"] == "quarantined"


async def test_a_call_that_waits_for_approval_is_made_once_it_is_approved(demo: ApprovingProject) -> None:
    await demo.rules(WRITES)
    task_id = await submit(demo, await add_skill(demo), {"text": "one", "more": ["two"]})
    async with demo.project.runner(ScriptedEngine(demo.project.tokenizer)):
        await demo.decide(await demo.waiting(task_id), "approve")
        await demo.until_written(1)
        await demo.decide(await demo.waiting(task_id), "approve")
        row = await demo.project.ended(task_id)
    assert (row.state, row.answer, demo.written()) == (TaskState.DONE, [1, 2], ["one", "two"])


async def test_one_that_raises_fails_and_is_no_evidence_against_the_skill(demo: ApprovingProject) -> None:
    skill = await add_skill(demo)
    task = await run(demo, skill, {"more": ["one"]})
    assert task["state"] == "failed"
    assert task["failure"].endswith("write_entry() got an unexpected keyword argument 'more'")
    async with demo.project.sessions() as session:
        assert (await evidence.latest_outcomes(session, skill, 5)).failures == 0


async def test_a_skill_that_is_withdrawn_before_it_runs_does_nothing(demo: ApprovingProject) -> None:
    skill = await add_skill(demo)
    task_id = await submit(demo, skill, {"text": "one"})
    async with demo.project.sessions.begin() as session:
        await moves.retire(session, skill.id, "somebody")
    async with demo.project.runner(ScriptedEngine(demo.project.tokenizer)):
        row = await demo.project.ended(task_id)
    assert (row.state, demo.written()) == (TaskState.FAILED, [])
    assert "the skill was withdrawn" in (row.failure or "")


async def test_only_skills_that_the_principal_is_offered_can_be_run(demo: ApprovingProject) -> None:
    skill = await add_skill(demo)
    path, client = f"/v1/skills/{skill.id}/run", demo.api.client
    too_long = await client.post(path, json={"arguments": {"text": "x" * 100_001}})
    assert (too_long.status_code, "100,000 bytes" in too_long.text) == (400, True)
    refused = await client.post(path, headers=await demo.api.key("skills"))
    assert (refused.status_code, "lacks the scope 'tasks'" in refused.text) == (403, True)
    other = await demo.api.project("other")
    hidden = await client.post(path, headers=await demo.api.key("tasks", project_id=other.id))
    assert (hidden.status_code, problem(hidden)["error"]) == (404, "NotFoundError")
    async with demo.project.sessions.begin() as session:
        await moves.retire(session, skill.id, "somebody")
    gone = await client.post(path)
    assert (gone.status_code, "is retired: it is not offered" in gone.text) == (409, True)


async def test_it_is_submitted_once_by_key_and_again_by_rerun_but_not_replayed(demo: ApprovingProject) -> None:
    skill, client = await add_skill(demo), demo.api.client
    send = {"json": {"arguments": {"text": "one"}}, "headers": {"Idempotency-Key": "k"}}
    first, same = [(await client.post(f"/v1/skills/{skill.id}/run", **send)).json()["id"] for _ in range(2)]  # type: ignore[arg-type]
    assert first == same
    again = UUID((await client.post(f"/v1/tasks/{first}/rerun")).json()["id"])
    async with demo.project.runner(ScriptedEngine(demo.project.tokenizer)):
        rows = [await demo.project.ended(each) for each in (UUID(first), again)]
    assert [row.stop for row in rows] == [Stop.COMPLETED] * 2
    assert demo.written() == ["one", "one"]
    replay = await client.post(f"/v1/tasks/{first}/replay", json={"release": 1})
    assert (replay.status_code, "ran a skill" in replay.text) == (409, True)

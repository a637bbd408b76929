"""The skill routes: list, search, show, retire, restore, delete."""

from collections.abc import AsyncIterator
from uuid import UUID, uuid4

import pytest

from app.base.values import Policy, Stop, Task, Trajectory, Turn, Use
from app.db import tables
from app.db.database import Sessions
from app.skills import offers
from app.skills import store as skills
from app.skills.admission import admit
from app.tasks import queue
from tests.support.api_app import ApiApp, open_api_app, problem
from tests.support.rows import offer_of, record_offers

SOURCE = "def archive(name: str) -> int:\n    return apis.mail.archive(name=name)\n"


@pytest.fixture
async def api(committed: Sessions, database_url: str) -> AsyncIterator[ApiApp]:
    async with open_api_app(committed, database_url) as opened:
        yield opened


async def add(api: ApiApp, name: str, *, source: str = SOURCE, task_id: UUID | None = None) -> tables.Skill:
    new = skills.NewSkill(
        name=name,
        signature=f"{name}(name: str) -> int",
        source=source,
        apis=["mail.archive"],
        instruction="archive my mails from iris",
        scenario="archive",
        task_id=task_id,
    )
    async with api.sessions.begin() as session:
        return await skills.add(session, api.demo.id, new)


async def use(api: ApiApp, task_id: UUID, skill: tables.Skill, *, calls: int, returned: int) -> None:
    """Write the rows that a runner writes for an ended task that was offered a skill."""
    uses = (Use(skill.name, True, calls, returned),)
    turns = (Turn(context_ids=(1,), sampled_ids=(2,), logprobs=(-0.1,), text="", uses=uses),)
    offer = offer_of(skill, query_ngram=1)
    record = Trajectory(
        task=Task(task_id, "x"),
        policy=Policy(),
        profile="compact",
        turns=turns,
        stop=Stop.COMPLETED,
        offered=(offer,),
    )
    async with api.sessions.begin() as session:
        await queue.claim(session, "runner", 30)
        await record_offers(session, task_id, [offer])
        await offers.record_uses(session, record)
        ended = queue.TaskOutcome(state=tables.TaskState.DONE, stop=Stop.COMPLETED, score=1.0)
        assert await queue.finish(session, task_id, "runner", ended)


async def test_a_skill_shows_the_task_that_wrote_it_and_the_tasks_that_used_it(api: ApiApp) -> None:
    maker = await api.submit("archive my mails from iris")
    skill = await add(api, "archive", task_id=maker)
    async with api.sessions.begin() as session:
        await queue.claim(session, "runner", 30)
        await queue.finish(session, maker, "runner", queue.TaskOutcome(state=tables.TaskState.DONE))
    user = await api.submit("archive my mails from omar")
    await use(api, user, skill, calls=2, returned=1)

    uses = (await api.client.get(f"/v1/skills/{skill.id}/uses")).json()
    assert [(each["made_by"], each["task_id"]) for each in uses] == [(str(maker), str(user))]
    assert (uses[0]["calls"], uses[0]["returned"], uses[0]["score"], uses[0]["stop_reason"]) == (
        2,
        1,
        1.0,
        "completed",
    )

    shown = (await api.client.get(f"/v1/skills/{skill.id}")).json()
    assert shown["stats"] == {"offers": 1, "uses": 1, "successes": 1}
    assert (shown["source"], shown["task_id"]) == (SOURCE, str(maker))

    reference = {"id": str(skill.id), "name": "archive", "version": 1, "state": "active", "task_id": str(maker)}
    made = (await api.client.get(f"/v1/tasks/{maker}")).json()["skills"]
    assert made == {"offered": [], "withheld": [], "used": [], "written": [reference], "selection": None}
    used = (await api.client.get(f"/v1/tasks/{user}")).json()["skills"]
    assert used == {"offered": [reference], "withheld": [], "used": [reference], "written": [], "selection": None}


async def test_an_offered_skill_that_never_returned_was_not_used(api: ApiApp) -> None:
    skill = await add(api, "archive")
    task_id = await api.submit()
    await use(api, task_id, skill, calls=3, returned=0)
    shown = (await api.client.get(f"/v1/tasks/{task_id}")).json()["skills"]
    assert len(shown["offered"]) == 1
    assert shown["used"] == []


async def test_a_listing_is_filtered_by_name_state_scenario_and_api(api: ApiApp) -> None:
    await add(api, "archive")
    await add(api, "archive", source=SOURCE + "# better\n")
    await add(api, "count")
    for query, names in {
        "": ["count", "archive", "archive"],
        "name=archive": ["archive", "archive"],
        "state=superseded": ["archive"],
        "scenario=archive&state=active": ["count", "archive"],
        "scenario=other": [],
        "api=mail": ["count", "archive", "archive"],
        "api=mail.archive&limit=1": ["count"],
        "api=notes": [],
    }.items():
        listed = (await api.client.get(f"/v1/skills?{query}")).json()
        assert [each["name"] for each in listed["skills"]] == names, query
    assert (await api.client.get("/v1/skills?state=asleep")).status_code == 400


async def test_a_skill_is_retired_restored_and_deleted(api: ApiApp) -> None:
    first = await add(api, "archive")
    second = await add(api, "archive", source=SOURCE + "# better\n")
    versions = (await api.client.get(f"/v1/skills/{first.id}/versions")).json()
    assert [(each["version"], each["state"]) for each in versions] == [(2, "active"), (1, "superseded")]

    restored = await api.client.post(f"/v1/skills/{first.id}/restore")
    assert (restored.status_code, restored.json()["state"]) == (200, "active")
    assert (await api.client.get(f"/v1/skills/{second.id}")).json()["state"] == "superseded"

    assert (await api.client.post(f"/v1/skills/{first.id}/retire")).json()["state"] == "retired"
    assert (await api.client.delete(f"/v1/skills/{first.id}")).status_code == 204
    gone = (await api.client.get(f"/v1/skills/{first.id}")).json()
    assert (gone["state"], gone["source"]) == ("deleted", "")
    again = await api.client.post(f"/v1/skills/{first.id}/restore")
    assert again.status_code == 409
    assert problem(again)["error"] == "ConflictError"


async def test_a_skill_is_retired_in_favor_of_one_that_does_the_same(api: ApiApp) -> None:
    kept, other = await add(api, "archive"), await add(api, "put_away", source="def put_away(): ...")
    path = f"/v1/skills/{other.id}/retire"
    for skill_id, status, told in (
        (other.id, 409, "both are versions of put_away"),
        (uuid4(), 404, "has no skill with the id"),
    ):
        refused = await api.client.post(path, params={"in_favor_of": str(skill_id)})
        assert (refused.status_code, told in str(problem(refused)["detail"])) == (status, True)
    answer = (await api.client.post(path, params={"in_favor_of": str(kept.id)})).json()
    assert (answer["state"], answer["reason"]) == ("retired", "archive does the same")
    gone = await api.client.post(f"/v1/skills/{kept.id}/retire", params={"in_favor_of": str(other.id)})
    assert problem(gone)["detail"] == "skill put_away version 1 is retired: tasks would be offered neither"


async def test_a_search_returns_what_a_task_would_be_offered(api: ApiApp) -> None:
    api.search.offers = [offer_of(await add(api, "archive"), query_ngram=1)]
    found = (await api.client.get("/v1/skills/search", params={"q": "archive my mails", "limit": 5})).json()
    assert [(each["name"], each["ranks"], each["source"]) for each in found] == [
        ("archive", {"query_ngram": 1}, SOURCE)
    ]
    assert (await api.client.get("/v1/skills/search")).status_code == 400
    assert (await api.client.get("/v1/skills/search?q=x&project=nowhere")).status_code == 404


async def test_a_skill_of_another_project_is_not_found(api: ApiApp) -> None:
    skill = await add(api, "archive")
    other = await api.project("other")
    headers = await api.key("skills", project_id=other.id)
    for method, path in (("GET", ""), ("GET", "/uses"), ("GET", "/versions"), ("POST", "/retire"), ("DELETE", "")):
        answer = await api.client.request(method, f"/v1/skills/{skill.id}{path}", headers=headers)
        assert answer.status_code == 404, path
    assert (await api.client.get("/v1/skills", headers=headers)).json()["skills"] == []
    assert (await api.client.get(f"/v1/skills/{uuid4()}")).status_code == 404
    assert (await api.client.get(f"/v1/skills/{skill.id}")).json()["state"] == "active"


async def written(api: ApiApp, principal: str, source: str = SOURCE, taint: str = "") -> tables.Skill:
    """A skill as the project's policy admits it."""
    task_id = await api.submit()
    new = skills.NewSkill(
        task_id=task_id,
        name="archive",
        signature="archive(name: str) -> int",
        source=source,
        apis=["mail.archive"],
        instruction="archive my mails from iris",
        principal=principal,
        taint=taint,
        manifest={
            "operations": {"mail.archive": {"method": "POST", "safe": False, "arguments": {"name": ["parameter"]}}}
        },
    )
    async with api.sessions.begin() as session:
        return await admit(session, api.demo.id, new)


async def test_a_skill_is_approved_step_by_step_and_each_move_is_audited(api: ApiApp) -> None:
    skill = await written(api, "ann", taint="an answer of mail.list")
    shown = (await api.client.get(f"/v1/skills/{skill.id}")).json()
    assert (shown["state"], shown["principal"], shown["taint"]) == ("quarantined", "ann", "an answer of mail.list")
    assert shown["reason"] == "it was written after text from outside: an answer of mail.list"
    assert shown["manifest"]["operations"]["mail.archive"]["arguments"] == {"name": ["parameter"]}
    assert shown["standing"]["next_state"] == "probation"
    assert shown["standing"]["missing"] == [
        "a replay",
        "a score of the task that wrote it, by others than its key",
        "3 more successful uses",
    ]
    for state in ("probation", "active"):
        approved = await api.client.post(f"/v1/skills/{skill.id}/approve")
        assert (approved.status_code, approved.json()["state"]) == (200, state)
    assert approved.json()["standing"]["missing"] == []
    again = await api.client.post(f"/v1/skills/{skill.id}/approve")
    assert again.status_code == 409
    entries = (await api.client.get("/v1/audit")).json()["entries"]
    moves = [(each["actor"], each["detail"]["to"]) for each in entries if each["action"] == "skill moved"]
    assert moves == [("key test admin", "active"), ("key test admin", "probation"), ("server", "quarantined")]


async def test_a_listing_is_filtered_by_principal_and_new_states(api: ApiApp) -> None:
    await written(api, "ann", taint="an answer of mail.list")
    await written(api, "bob")
    for query, principals in {
        "principal=ann": ["ann"],
        "state=quarantined": ["ann"],
        "state=probation": ["bob"],
        "": ["bob", "ann"],
    }.items():
        listed = (await api.client.get(f"/v1/skills?{query}")).json()["skills"]
        assert [each["principal"] for each in listed] == principals, query


async def test_feedback_on_the_task_that_wrote_a_skill_takes_it_back(api: ApiApp) -> None:
    maker = await api.submit("archive my mails from iris")
    skill = await add(api, "archive", task_id=maker)
    async with api.sessions.begin() as session:
        await queue.claim(session, "runner", 30)
        await queue.finish(session, maker, "runner", queue.TaskOutcome(state=tables.TaskState.DONE))
    given = await api.client.post("/v1/feedback", json={"task_id": str(maker), "score": 0.1})
    assert given.status_code == 201
    shown = (await api.client.get(f"/v1/skills/{skill.id}")).json()
    assert (shown["state"], shown["reason"]) == ("probation", "the task that wrote it was scored 0.1")


async def test_the_value_of_skills_is_shown_for_all_and_for_one(api: ApiApp) -> None:
    skill, other = await add(api, "archive"), await add(api, "count")
    await use(api, await api.submit(), skill, calls=1, returned=1)
    everything = (await api.client.get("/v1/skills/value")).json()
    assert everything["offered"] == {"tasks": 1, "score": 1.0}
    assert everything["withheld"] == {"tasks": 0, "score": None}
    assert everything["difference"] is None
    assert [each["offered"]["tasks"] for each in everything["scenarios"]] == [1]
    for each, tasks in ((skill, 1), (other, 0)):
        shown = await api.client.get("/v1/skills/value", params={"skill": str(each.id)})
        assert shown.json()["offered"]["tasks"] == tasks
    refused = await api.client.get("/v1/skills/value", params={"skill": "archive"})
    assert problem(refused)["status"] == 400

"""What pages of the console show of a project's rows."""

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any
from uuid import UUID

import msgspec
import pytest
from sqlalchemy.ext.asyncio import AsyncSession

from app.db import queries, results, tables
from app.db.database import Sessions
from app.db.tables import SkillState
from app.releases import canary
from app.releases import store as releases
from app.skills import store as skills
from app.tasks.requests import TaskRequest
from tests.support.api_app import ApiApp, open_api_app
from tests.support.canary_project import Project, begin
from tests.support.console_pages import post_form, read_page
from tests.support.rows import new_skill, task_row

_DOCUMENT = {
    "openapi": "3.1.0",
    "servers": [{"url": "http://{place}.example", "variables": {"place": {"default": "north"}}}],
    "security": [{"key": []}],
    "components": {"securitySchemes": {"key": {"type": "apiKey", "in": "header", "name": "X-Key"}}},
    "paths": {
        "/cups": {"get": {"operationId": "list_cups", "summary": "Lists them"}},
        **{f"/cups/{number}": {"post": {"operationId": f"break_cup_{number}"}} for number in range(40)},
    },
}


@pytest.fixture
async def api(committed: Sessions, database_url: str) -> AsyncIterator[ApiApp]:
    async with open_api_app(committed, database_url) as opened:
        answer = await opened.client.post("/v1/apis", json={"name": "cups", "document": _DOCUMENT})
        assert answer.status_code == 201, answer.text
        yield opened


async def test_tasks_are_found_by_any_version_of_a_skill(api: ApiApp) -> None:
    async with api.sessions.begin() as session:
        versions = [await skills.add(session, api.demo.id, new_skill(source=f"def greet(): {n}")) for n in (1, 2)]
        for skill, name in zip([*versions, None], ("first", "second", "none"), strict=True):
            task = await task_row(session, api.demo.id, f"task with {name}")
            if skill is not None:
                session.add(tables.SkillOffer(task_id=task.id, skill_id=skill.id, position=0, ranks={}))
        old = versions[0].id
    by_name, by_id = [await read_page(api, f"/console/tasks?skill={each}", "tasks") for each in ("greet", old)]
    assert ["task with first" in by_name, "task with second" in by_name, "task with none" in by_name] == [1, 1, 0]
    assert ["task with first" in by_id, "task with second" in by_id] == [1, 0]


async def test_the_page_of_an_api_leads_to_its_calls_that_failed_in_tasks(api: ApiApp) -> None:
    other = await api.project("other")
    async with api.sessions.begin() as session:
        task_id = await _call(session, api.demo.id, "cups.list_cups", "the shelf is empty")
        await _call(session, api.demo.id, "cups.list_cups", None)
        await _call(session, api.demo.id, "mugs.list_mugs", "no mugs")
        await _call(session, other.id, "cups.list_cups", "not yours")
    shown = await read_page(api, "/console/apis/cups?project=demo", "tasks")
    assert "the shelf is empty" in shown
    assert f"/console/tasks/{task_id}?project=demo#turn-3" in shown
    assert shown.count("#turn-") == 1


async def _call(session: AsyncSession, project_id: UUID, name: str, error: str | None) -> UUID:
    task = await task_row(session, project_id)
    data: dict[str, Any] = {"turn": 3, "seq": 0, "api": name, "arguments": {}, "skill": None, "error": error}
    await results.append(session, task.id, "call", data)
    return task.id


async def test_the_form_of_a_task_shows_what_it_can_call(api: ApiApp) -> None:
    shown = await read_page(api, "/console/tasks/new", "tasks")
    assert "41 operations" in shown
    assert "reads · Lists them" in shown
    assert shown.count("<small>changes</small>") == 29  # of 30 that are shown
    assert "11 more" in shown
    assert "state missing" in shown
    assert 'placeholder="place = north"' in shown


async def test_the_form_of_a_task_has_what_rest_takes_and_it_is_taken(api: ApiApp) -> None:
    entered = {
        "instruction": "break a cup",
        "conversation": "user: which one?",
        "scenario": "break cups",
        "principal": "iris",
        "priority": "7",
        "variables": "place = south\n\nkind=a=b",
        "check": "score = 1.0",
        "use_skills": "false",
        "explore": "false",
    }
    shown = await read_page(api, "/console/tasks/new", "tasks")
    fields = {field.encode_name for field in msgspec.structs.fields(TaskRequest)} - {"project"}
    assert fields == entered.keys()
    assert [name for name in fields if f' name="{name}"' not in shown] == []
    wrong = {**entered, "priority": "many", "variables": "place"}
    refused = await post_form(api, "/console/tasks", wrong, "tasks", status=400)
    assert "write one on each line, as name = value" in refused
    assert ">user: which one?</textarea>" in refused
    await post_form(api, "/console/tasks", entered, "tasks")
    [task] = (await api.client.get("/v1/tasks")).json()["tasks"]
    stored = (await api.client.get(f"/v1/tasks/{task['id']}")).json()
    assert {name: stored[name] for name in fields - {"explore"}} == {
        **{name: text for name, text in entered.items() if name != "explore"},
        "priority": 7,
        "variables": {"place": "south", "kind": "a=b"},
        "use_skills": False,
    }
    assert stored["exploration"] == "no"


async def test_a_task_is_run_again_with_what_is_entered(api: ApiApp) -> None:
    async with api.sessions.begin() as session:
        task = await task_row(session, api.demo.id, "break a cup")
    again = {"instruction": "break two cups", "release": ""}
    await post_form(api, f"/console/tasks/{task.id}/rerun", again, "tasks")
    found = (await api.client.get(f"/v1/tasks?rerun_of={task.id}")).json()["tasks"]
    assert [each["instruction"] for each in found] == ["break two cups"]


async def test_the_race_of_a_canary_is_kept_after_its_end(api: ApiApp) -> None:
    async with api.sessions.begin() as session:
        active = (await releases.active(session, api.demo.id)).id
        project = Project(api.sessions, api.demo.id, (await releases.propose(session, api.demo.id, "f00d")).id)
    await begin(project)
    for _ in range(10):
        await project.ended(project.candidate, 1.0)
        await project.ended(active, 0.0)
    await canary.end(api.sessions, project.candidate, "ann")
    await project.ended(active, 1.0, count=20)
    own = f"/console/releases/{project.candidate}"
    assert "Score: canary minus baseline" in await read_page(api, own, "tasks")
    race = (await read_page(api, f"{own}?file=race", "tasks")).splitlines()
    assert race[0] == "until,reward,reward_low,reward_high,errors,errors_low,errors_high"
    assert float(race[-1].split(",")[1]) == pytest.approx(1.0)
    figures = (await read_page(api, f"{own}?file=canary", "tasks")).splitlines()
    assert figures[0].startswith("measure,release_1,release_1_low,release_1_high,release_2,")
    assert figures[1].startswith("Score,0.0,,,1.0,,,1.0,")


async def test_a_release_that_waits_for_a_model_server_says_so(api: ApiApp) -> None:
    async with api.sessions.begin() as session:
        release = await releases.propose(session, api.demo.id, "f00d")
        await releases.approve(session, release.id, {"verdict": "promote"})
        await releases.note_waiting(session, release.id, "no model server answers: start one")
    page = await read_page(api, f"/console/releases/{release.id}", "tasks")
    assert "It waits: no model server answers: start one." in page


async def test_what_a_skill_is_worth_is_downloaded(api: ApiApp) -> None:
    async with api.sessions.begin() as session:
        skill = await skills.add(session, api.demo.id, new_skill())
        for withheld, score in ((False, 1.0), (False, 1.0), (True, 0.0), (True, 1.0)):
            task = await task_row(session, api.demo.id)
            task.score, task.finished_at, task.scenario = score, task.created_at, "greetings"
            edge = {"task_id": task.id, "skill_id": skill.id}
            session.add(
                tables.WithheldSkill(**edge) if withheld else tables.SkillOffer(position=0, ranks={}, **edge)
            )
        own = f"/console/skills/{skill.id}"
    assert f"{own}?file=value" in await read_page(api, own, "skills")
    header, *rows = (await read_page(api, f"{own}?file=value", "skills")).splitlines()
    assert header.startswith(
        "scenario,tasks_with,score_with,tasks_without,score_without,difference,difference_low,"
    )
    assert [row.split(",")[:6] for row in rows] == [
        [name, "2", "1.0", "2", "0.5", "0.5"] for name in ("all", "greetings")
    ]


async def test_the_first_page_leads_to_all_that_needs_a_person(api: ApiApp) -> None:
    async with api.sessions.begin() as session:
        later = await queries.now(session) + timedelta(hours=1)
        for number in range(7):
            task = await task_row(session, api.demo.id)
            call: dict[str, Any] = {"seq": 0, "turn": 0, "api": "cups.break_cup", "arguments": {}, "digest": ""}
            session.add(tables.Approval(task_id=task.id, project_id=api.demo.id, expires_at=later, **call))
            skill = await skills.add(session, api.demo.id, new_skill(f"greet_{number}"))
            skill.state = SkillState.QUARANTINED
    shown = await read_page(api, "/console", "admin")
    assert "All 7 calls" in shown
    assert "All 7 skills" in shown
    shown = await read_page(api, "/console", "tasks")
    assert "All 7" not in shown


async def test_a_skill_is_merged_into_one_of_any_name(api: ApiApp) -> None:
    async with api.sessions.begin() as session:
        one, kept, held = [
            await skills.add(session, api.demo.id, new_skill(name)) for name in ("greet", "welcome", "wave")
        ]
        for skill in (one, kept, held):
            skill.state, skill.apis, skill.held = SkillState.ACTIVE, [f"mail.{skill.name}"], skill is held
        address = f"/console/skills/change?move=merge&skill={one.id}&named="
    assert "Merge greet into welcome?" in await read_page(api, f"{address}welcome", "skills")
    for name in ("wave", "nothing"):
        refused = await read_page(api, f"{address}{name}", "skills", status=400)
        assert "is offered to tasks" in refused

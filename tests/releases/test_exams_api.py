"""Exams over REST: made of given tasks or of the log, in versions, with the results of releases."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import delete

from app.base.run_settings import RunSettings
from app.base.values import Stop
from app.db import tables
from app.db.database import Sessions
from app.db.tables import ExamSource
from app.projects import store as projects
from app.projects.kinds import is_held_out, kind_of
from app.releases import store as releases
from app.releases.exams import store as exams
from app.releases.exams.store import NewEvaluation, NewExamTask
from app.runs import store as runs
from tests.support.api_app import ApiApp, open_api_app, problem
from tests.support.scripted_engine import byte_tokenizer
from tests.support.served_project import ServedProject

CHECK = "score = 1.0"


@pytest.fixture
async def api(committed: Sessions, database_url: str) -> AsyncIterator[ApiApp]:
    async with open_api_app(committed, database_url) as opened:
        yield opened


async def serve(
    api: ApiApp, tmp_path: Path, *scores: float | None, scenario: str | None = "greet", **more: Any
) -> list[UUID]:
    """Scored tasks that have ended."""
    async with api.sessions.begin() as session:
        project = await projects.by_id(session, api.demo.id)
        served = ServedProject(session, project, byte_tokenizer(tmp_path))
        for score in scores:
            columns: dict[str, Any] = {"instruction": f"say {scenario}", "finished_at": datetime.now(UTC)}
            columns |= more
            await served.task(score, scenario=scenario, **columns)
        return served.tasks


def given(*scenarios: str | None) -> list[dict[str, object]]:
    return [{"instruction": f"do {each}", "scenario": each, "check": CHECK} for each in scenarios]


async def made(api: ApiApp, **body: object) -> dict[str, Any]:
    answer = await api.client.post("/v1/exams", json={"name": "mine", **body})
    assert answer.status_code == 201, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def test_an_exam_of_given_tasks_has_a_version_for_each_content(api: ApiApp) -> None:
    first = await made(api, tasks=given("a", "a", None))
    assert (first["version"], first["source"], first["size"]) == (
        1,
        "submitted",
        {
            "tasks": 3,
            "kinds": 2,
            "scenarios": 2,
            "checks": 3,
            "logged": 0,
            "checked_kinds": 2,
            "checked_scenarios": 2,
            "solved_kinds": 0,
            "solved_scenarios": 0,
            "learned": 0,
        },
    )
    assert (first["decides_on"], first["waits_for"]) == ([], "it has 2 scenarios, the gate needs at least 30")
    assert await made(api, tasks=given("a", "a", None)) == first
    second = await made(api, tasks=given(*map(str, range(30))))
    assert (second["version"], second["decides_on"], second["waits_for"]) == (2, ["staging"], None)
    assert second["digest"] != first["digest"]
    [listed] = (await api.client.get("/v1/exams")).json()
    assert listed == second
    shown = (await api.client.get("/v1/exams/mine", params={"version": 1})).json()
    assert (await api.client.get("/v1/exams/mine", params={"digest": first["digest"][:12]})).json() == shown
    both = {"digest": first["digest"], "version": 2}
    gone = await api.client.get("/v1/exams/mine", params=both)
    assert f"no exam 'mine' in version 2 with the digest {first['digest']}" in str(problem(gone))
    assert shown["exam"] == first
    assert shown["tasks"][2] == {
        "instruction": "do None",
        "scenario": None,
        "variables": {},
        "check": CHECK,
        "task_id": None,
    }


async def test_an_exam_of_the_log_has_the_best_of_each_kind(api: ApiApp, tmp_path: Path) -> None:
    ids = await serve(api, tmp_path, 0.0, 1.0, None, 1.0, 0.5)
    exam = await made(api, from_log={"tasks_each": 2})
    size = dict.fromkeys(("kinds", "scenarios", "solved_kinds", "solved_scenarios"), 1)
    size |= dict.fromkeys(("checks", "checked_kinds", "checked_scenarios", "learned"), 0)
    assert (exam["source"], exam["size"]) == ("log", size | {"tasks": 2, "logged": 2})
    shown = (await api.client.get("/v1/exams/mine")).json()
    assert [each["task_id"] for each in shown["tasks"]] == [str(ids[1]), str(ids[3])]
    twice = await api.client.post("/v1/exams", json={"name": "mine", "from_log": {"tasks": [str(ids[0])] * 9}})
    assert twice.status_code == 400
    assert f"tasks that are named more than once: {ids[0]}" in str(problem(twice))
    named = await made(api, from_log={"tasks": [str(ids[0])]})
    assert (named["version"], named["size"]) == (
        2,
        size | {"tasks": 1, "logged": 1, "solved_kinds": 0, "solved_scenarios": 0},
    )


async def test_an_exam_without_checks_decides_on_recorded_calls_alone(api: ApiApp, tmp_path: Path) -> None:
    for number in range(30):
        await serve(api, tmp_path, 1.0, scenario=f"kind {number}")
    exam = await made(api, from_log={})
    assert (exam["decides_on"], exam["waits_for"]) == (["recorded"], None)


async def test_unlabelled_tasks_with_the_same_instruction_are_one_scenario(api: ApiApp, tmp_path: Path) -> None:
    for number in range(10):
        await serve(api, tmp_path, *[1.0] * 3, scenario=None, instruction=f"do  number {number}")
    exam = await made(api, from_log={})
    assert (exam["size"]["tasks"], exam["size"]["scenarios"], exam["size"]["solved_scenarios"]) == (30, 10, 10)
    assert (exam["decides_on"], exam["waits_for"]) == ([], "it has 10 scenarios, the gate needs at least 30")


async def test_recorded_calls_decide_on_tasks_that_were_solved_and_have_their_record(
    api: ApiApp, tmp_path: Path
) -> None:
    for number in range(28):
        await serve(api, tmp_path, 1.0, scenario=f"kind {number}")
    await serve(api, tmp_path, 0.4, scenario="failed")
    await serve(api, tmp_path, 1.0, scenario="unfinished", stop=Stop.TURN_LIMIT)
    [erased] = await serve(api, tmp_path, 1.0, scenario="erased")
    async with api.sessions.begin() as session:
        await session.execute(delete(tables.Trajectory).where(tables.Trajectory.task_id == erased))
    exam = await made(api, from_log={})
    assert (exam["size"]["scenarios"], exam["size"]["logged"], exam["size"]["solved_scenarios"]) == (31, 31, 28)
    assert exam["decides_on"] == []
    assert exam["waits_for"].startswith("28 of its scenarios of 28 kinds were solved by tasks that were served")


async def test_an_exam_of_which_most_was_not_solved_decides_nothing_yet(api: ApiApp, tmp_path: Path) -> None:
    for number in range(61):
        await serve(api, tmp_path, float(number < 30), scenario=f"kind {number}")
    exam = await made(api, from_log={})
    assert (exam["size"]["scenarios"], exam["size"]["solved_scenarios"], exam["decides_on"]) == (61, 30, [])
    assert exam["waits_for"].endswith("the gate needs 30 of either, and half of all 61 kinds, at least 10")


async def test_few_kinds_are_enough_if_many_of_their_tasks_were_solved(api: ApiApp, tmp_path: Path) -> None:
    for number in range(10):
        await serve(api, tmp_path, *[1.0] * 10, scenario=f"kind {number}")
    exam = await made(api, from_log={"tasks_each": 7})
    assert exam["size"] | {"kinds": 10, "tasks": 70, "scenarios": 30, "solved_kinds": 10} == exam["size"]
    assert (exam["decides_on"], exam["waits_for"]) == (["recorded"], None)
    fewer = await made(api, from_log={"tasks_each": 10, "kinds": 9})
    assert fewer["waits_for"] == "its tasks are of 9 kinds, the gate needs at least 10"


async def test_an_exam_that_has_enough_scenarios_for_nothing_says_what_each_needs(
    api: ApiApp, tmp_path: Path
) -> None:
    """Half of its scenarios were served and have no check, the others are the other way round."""
    for number in range(15):
        await serve(api, tmp_path, 1.0, scenario=f"kind {number}")
    async with api.sessions.begin() as session:
        logged = await exams.from_log(session, api.demo.id)
        checked = [NewExamTask(instruction=f"do {number}", check_code=CHECK) for number in range(15)]
        await exams.put(session, api.demo.id, "mine", ExamSource.LOG, [*logged, *checked])
    [exam] = (await api.client.get("/v1/exams")).json()
    assert exam["decides_on"] == []
    assert exam["waits_for"] == (
        "15 of its scenarios of 15 kinds were solved by tasks that were served, as recorded calls need, 15 of 15 "
        "kinds have checks, as staging needs: the gate needs 30 of either, and half of all 30 kinds, at least 10"
    )


async def test_a_task_that_is_erased_is_gone_from_its_exam(api: ApiApp, tmp_path: Path) -> None:
    ids = await serve(api, tmp_path, 1.0, 1.0)
    await made(api, from_log={})
    async with api.sessions.begin() as session:
        await session.execute(delete(tables.Task).where(tables.Task.id == ids[0]))
    shown = (await api.client.get("/v1/exams/mine")).json()
    assert [each["task_id"] for each in shown["tasks"]] == [str(ids[1])]


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ({}, "send either `tasks` or `from_log`"),
        ({"tasks": given("a"), "from_log": {}}, "send either `tasks` or `from_log`"),
        ({"tasks": [{"instruction": "do a"}]}, "check"),
        ({"tasks": [{"instruction": "do a", "check": "score ="}]}, "check: not valid Python"),
        ({"from_log": {}}, "from_log: no scored task of this project is among these"),
        ({"name": "own-work", "tasks": given("a")}, "'own-work' is the exam of the setting holdout_percent"),
        ({"from_log": {"tasks": ["00000000-0000-0000-0000-000000000001"], "kinds": 3}}, "name either `tasks`"),
    ],
)
async def test_an_exam_that_cannot_examine_is_refused(api: ApiApp, body: dict[str, object], error: str) -> None:
    answer = await api.client.post("/v1/exams", json={"name": "mine", **body})
    assert error in str(problem(answer)["detail"])
    assert (await api.client.get("/v1/exams")).json() == []


async def test_tasks_of_another_project_are_refused(api: ApiApp, tmp_path: Path) -> None:
    [theirs] = await serve(api, tmp_path, 1.0)
    await api.project("other")
    body = {"name": "mine", "from_log": {"tasks": [str(theirs)]}}
    answer = await api.client.post("/v1/exams", params={"project": "other"}, json=body)
    assert f"tasks that are no scored tasks of this project: {theirs}" in str(problem(answer)["detail"])


async def test_the_results_are_those_of_each_release_in_any_version(api: ApiApp) -> None:
    first = await made(api, tasks=given("a"))
    await api.client.delete("/v1/exams/mine")
    again = await made(api, tasks=given("b"))
    assert (first["version"], again["version"]) == (1, 1)
    async with api.sessions.begin() as session:
        active = await releases.active(session, api.demo.id)
        digests: tuple[dict[str, str], ...] = ({}, {"digest": first["digest"]}, {"digest": again["digest"]})
        for named, sgc in zip(digests, (20.0, 40.0, 60.0), strict=True):
            new = NewEvaluation(
                model="base",
                environment="exam?name=mine",
                settings={"exam": {"name": "mine", "version": 1, "on": "recorded", **named}, "coverage": 0.9},
                figures={"sgc": {"mean": sgc}},
                release_id=active.id,
            )
            await exams.add(session, api.demo.id, new)
    results = (await api.client.get("/v1/exams/mine/results")).json()
    shown = [(each["release"], each["version"], each["digest"], each["figures"]) for each in results]
    assert {(each["on"], each["coverage"]) for each in results} == {("recorded", 0.9)}
    assert shown == [
        (1, 1, digest, {"sgc": {"mean": sgc}})
        for digest, sgc in ((None, 20.0), (first["digest"], 40.0), (again["digest"], 60.0))
    ]
    own = (await api.client.get("/v1/exams/mine/results", params={"digest": again["digest"]})).json()
    assert own == results[2:]


async def test_tasks_of_kinds_that_a_served_release_learned_from_are_counted(api: ApiApp, tmp_path: Path) -> None:
    learned = await serve(api, tmp_path, 1.0, scenario="learned")
    unlabelled = await serve(api, tmp_path, 1.0, scenario=None)
    tried = await serve(api, tmp_path, 1.0, scenario="tried")
    async with api.sessions.begin() as session:
        for ids, is_served in (([*learned, *unlabelled], True), (tried, False)):
            run = await runs.create(session, api.demo.id, RunSettings())
            await releases.record(session, run.id, "base", ids)
            release = await releases.propose(session, api.demo.id, f"adapter {len(ids)}", run.id)
            if is_served:
                await releases.activate(session, release.id)
    new = {"instruction": "say it of learned in other words", "scenario": "learned", "check": CHECK}
    logged = await made(api, from_log={})
    assert (logged["size"]["tasks"], logged["size"]["learned"]) == (3, 2)
    assert (await made(api, tasks=[new, *given("new")]))["size"]["learned"] == 1


async def test_a_deleted_exam_is_gone_in_all_versions(api: ApiApp) -> None:
    await made(api, tasks=given("a"))
    await made(api, tasks=given("b"))
    assert (await api.client.delete("/v1/exams/mine")).status_code == 204
    assert "no exam 'mine'" in str(problem(await api.client.get("/v1/exams/mine"))["detail"])
    assert (await api.client.delete("/v1/exams/mine")).status_code == 404


async def test_the_held_out_exam_grows_with_the_log(api: ApiApp, tmp_path: Path) -> None:
    project = api.demo.id
    await api.client.patch("/v1/projects/demo", json={"settings": {"holdout_percent": 50}})
    kinds = [f"kind {number}" for number in range(20)]
    held = [kind for kind in kinds if is_held_out(project, kind, 50)]
    assert 0 < len(held) < 20
    for number, kind in enumerate(kinds):
        await serve(api, tmp_path, 1.0, scenario=kind)
        async with api.sessions.begin() as session:
            exam = await exams.grow_holdout(session, project, exams.by_name)
        assert (exam is None) == (not set(kinds[: number + 1]) & set(held))
    assert exam is not None
    assert exam.version == len(held)
    shown = (await api.client.get("/v1/exams/own-work")).json()
    assert sorted(each["scenario"] for each in shown["tasks"]) == sorted(held)


async def test_the_held_out_exam_keeps_its_latest_versions(api: ApiApp, tmp_path: Path) -> None:
    await api.client.patch("/v1/projects/demo", json={"settings": {"holdout_percent": 50}})
    [kind, *_] = [name for name in map(str, range(20)) if is_held_out(api.demo.id, name, 50)]
    for _ in range(23):  # of three tasks each, the latest
        await serve(api, tmp_path, 1.0, scenario=kind)
        async with api.sessions.begin() as session:
            await exams.grow_holdout(session, api.demo.id, exams.by_name)
    versions = [
        (await api.client.get("/v1/exams/own-work", params={"version": version})).status_code
        for version in range(1, 24)
    ]
    assert versions == [404] * 3 + [200] * 20


def test_a_share_of_the_kinds_is_held_out_and_always_the_same() -> None:
    project = UUID(int=7)
    kinds = [f"kind {number}" for number in range(4000)]
    held = {kind for kind in kinds if is_held_out(project, kind, 10)}
    assert 320 < len(held) < 480
    assert held < {kind for kind in kinds if is_held_out(project, kind, 20)}
    assert not any(is_held_out(project, kind, 0) for kind in kinds)
    assert kind_of("Say  HELLO", None) == "say hello"
    assert kind_of("Say  HELLO", "greet") == "greet"

"""Runs of practice are asked for over REST, the command line and the console, with what their hours buy."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import pytest

from app.db.database import Sessions
from app.db.tables import RunState
from tests.support.api_app import ApiApp, open_api_app, problem
from tests.support.console_pages import post_form, read_page
from tests.support.every_row import every_row
from tests.support.http_server import served
from tests.support.practised_project import add_apis
from tests.support.sage_command import SageCommand

PRACTICE: dict[str, Any] = {"kind": "practice", "environment": "practice?api=sensors"}


def figures(solved: float) -> dict[str, Any]:
    return {"scenarios": 90, **{name: {"mean": solved, "low": solved, "high": solved} for name in ("sgc", "tgc")}}


DONE: dict[str, Any] = {
    "decision": "passed",
    "evidence": {
        "candidate": figures(40),
        "incumbent": figures(10),
        "forgetting": {"candidate": figures(65), "incumbent": figures(64)},
    },
    "data": {
        "practice": {
            "api": "sensors",
            "model": "",
            "hours": 5.0,
            "stages": {"demonstrations": 900, "rollouts": 5400},
            "demonstrations": 4000,
            "tried": 4100,
            "dropped": {"the task failed": 100},
            "paraphrased": 3000,
            "paraphraser_failure": "it is out of credit",
            "supervised_steps": 300,
            "rounds": 10,
            "rolled_out": 960,
            "operations": 7,
            "skills": [{"id": f"{UUID(int=7)}", "name": "count_sensors", "version": 1, "state": "probation"}],
            "left_out": {"POST /sensors/{id}/sync": "what it does cannot be told from the document"},
        }
    },
}


@pytest.fixture
async def api(committed: Sessions, database_url: str) -> AsyncIterator[ApiApp]:
    async with open_api_app(committed, database_url) as opened:
        await add_apis(committed, opened.demo.id)
        yield opened


async def refusal(api: ApiApp, **settings: Any) -> str:
    answer = await api.client.post("/v1/training-runs", json={"settings": {**PRACTICE, **settings}})
    return "" if answer.status_code == 202 else str(problem(answer)["detail"])


async def test_what_is_bound_to_fail_is_refused(api: ApiApp) -> None:
    refused: list[tuple[dict[str, Any], str]] = [
        (
            {"environment": ""},
            "a run of kind practice needs an API of the project: set environment=practice?api=NAME",
        ),
        ({"environment": "office"}, "set environment=practice?api=NAME"),
        ({"environment": "practice"}, "set environment=practice?api=NAME"),
        ({"environment": "trainer.practice.environments:load_environment"}, "registered parts only"),
        (
            {"environment": "practice?api=sensor"},
            "no API sensor with an OpenAPI document: it can practise ping, sens",
        ),
        ({"environment": "practice?api=tools"}, "no API tools with an OpenAPI document"),
        ({"hours": 0.04}, ">= 0.05"),
        ({"hours": 49}, "<= 48"),
        ({"gate_scenarios": 0}, "too few to compare releases by"),
        ({"releases": "1"}, "releases are what a run of kind exam examines"),
        ({"kind": "exam", "environment": "practice?api=sensor"}, "no API sensor"),
        ({"environment": "practice?api=sensors&paraphraser=wise"}, "paraphraser=wise: this project has no hosted"),
        (
            {"kind": "exam", "environment": "practice?api=sensors&paraphraser=wise"},
            "only runs of kind practice have",
        ),
    ]
    with every_row() as row:
        for settings, message in refused:
            with row(f"{settings}"):
                assert message in await refusal(api, **settings)
    assert (await api.client.get("/v1/training-runs")).json()["runs"] == []
    assert await refusal(api) == ""


async def test_the_answer_says_what_the_hours_buy_by_the_latest_such_run(api: ApiApp) -> None:
    first = (await api.client.post("/v1/training-runs", json={"settings": PRACTICE})).json()
    assert first["estimate"] == "in 2.5 h: how much it learns is measured in its first minutes"
    shell = SageCommand(api, "")
    await shell.execute_run(result=DONE)
    ended = (await api.client.get(f"/v1/training-runs/{first['id']}")).json()
    assert (ended["state"], ended["estimate"]) == ("done", None)
    second = (await api.client.post("/v1/training-runs", json={"settings": PRACTICE})).json()
    assert second["estimate"] == (
        "in 2.5 h: about 2,000 demonstrations, 150 supervised steps and 480 tasks of rollouts, "
        "by the speed of the latest such run"
    )
    assert (await api.client.get(f"/v1/training-runs/{second['id']}")).json()["estimate"] == second["estimate"]
    other = (await api.client.post("/v1/training-runs", json={"settings": {"kind": "exam"}})).json()
    assert other["estimate"] is None


async def test_a_run_that_ended_without_a_result_has_no_estimate(api: ApiApp) -> None:
    shell = SageCommand(api, "")
    failed = (await api.client.post("/v1/training-runs", json={"settings": PRACTICE})).json()["id"]
    await shell.execute_run(state=RunState.FAILED, failure="the disk is full")
    cancelled = (await api.client.post("/v1/training-runs", json={"settings": PRACTICE})).json()["id"]
    assert (await api.client.post(f"/v1/training-runs/{cancelled}/cancel")).status_code < 300
    for run_id, state in ((failed, "failed"), (cancelled, "cancelled")):
        ended = (await api.client.get(f"/v1/training-runs/{run_id}")).json()
        assert (ended["state"], ended["estimate"]) == (state, None)


async def test_a_run_of_another_model_says_nothing_about_the_hours(api: ApiApp) -> None:
    await api.client.post("/v1/training-runs", json={"settings": PRACTICE})
    practised = DONE["data"]["practice"] | {"model": "another"}
    await SageCommand(api, "").execute_run(result={**DONE, "data": {"practice": practised}})
    second = (await api.client.post("/v1/training-runs", json={"settings": PRACTICE})).json()
    assert second["estimate"] == "in 2.5 h: how much it learns is measured in its first minutes"


async def test_a_schedule_can_practise(api: ApiApp) -> None:
    body = {"every_hours": 24, "settings": PRACTICE}
    answer = await api.client.put("/v1/schedule", json=body)
    assert (answer.status_code, answer.json()["problems"]) == (200, [])
    body["settings"] = {**PRACTICE, "environment": "practice?api=gone"}
    assert "no API gone" in str(problem(await api.client.put("/v1/schedule", json=body))["detail"])


async def test_the_command_starts_a_run_and_says_what_the_hours_buy(api: ApiApp) -> None:
    async with served(api) as client:
        shell = SageCommand(api, str(client.base_url))
        ended = await shell.run("practice", "sensors", "--hours", "6")
        assert ended.code == 0, ended.err
        run_id = await shell.run_id()
        assert ended.out.splitlines() == [
            f"run {run_id}: in 6 h: how much it learns is measured in its first minutes",
            f"follow it with: sage runs {run_id} --follow",
        ]
        run = (await api.client.get(f"/v1/training-runs/{run_id}")).json()
        assert (run["kind"], run["settings"]["environment"], run["settings"]["hours"]) == (
            "practice",
            "practice?api=sensors",
            6,
        )
        for arguments, message in (
            (("nothing",), "no API nothing with an OpenAPI document"),
            (("sensors", "--paraphraser", "wise"), "paraphraser=wise: this project has no hosted model"),
        ):
            refused = await shell.run("practice", *arguments)
            assert (refused.code, message in refused.err) == (6, True)


async def test_a_run_is_watched_to_its_end(api: ApiApp) -> None:
    async with served(api) as client:
        shell = SageCommand(api, str(client.base_url))
        watching = asyncio.create_task(shell.run("practice", "store", "--hours", "1", "--watch"))
        await shell.execute_run({"stage": "supervised", "loss": 0.5}, result=DONE)
        ended = await watching
        assert (ended.code, "in 1 h: how much" in ended.err) == (0, True), ended.err
        assert "step 1" in ended.err
        assert ["decision", "passed"] in [line.split() for line in ended.out.splitlines()]


async def test_the_console_offers_practice_on_an_api_and_shows_what_a_run_practised(api: ApiApp) -> None:
    page = await read_page(api, "/console/apis/sensors", "admin")
    assert "/console/runs/new?project=demo&amp;practice=sensors" in page
    assert "practice=" not in await read_page(api, "/console/apis/tools", "admin")
    assert "practice=" not in await read_page(api, "/console/apis/sensors", "tasks")
    form = await read_page(api, "/console/runs/new?practice=sensors", "admin")
    assert 'value="practice?api=sensors"' in form
    fields = {"kind": "practice", "environment": "practice?api=sensors", "hours": "3"}
    await post_form(api, "/console/runs/new", fields, "admin")
    shell = SageCommand(api, "")
    run_id = await shell.run_id()
    assert "In 3 h: how much" in await read_page(api, f"/console/runs/{run_id}", "admin")
    await shell.execute_run(result=DONE)
    shown = await read_page(api, f"/console/runs/{run_id}", "admin")
    for text in (
        "4,000 of 4,100 demonstrations on sensors were right",
        "A hosted model worded the tasks of 3,000 demonstrations.",
        "The hosted model that was to word tasks failed last with: it is out of credit",
        "What could not be practised",
        "POST /sensors/{id}/sync",
        "Learned before",
        "count_sensors",
        "40.0",
    ):
        assert text in shown, text

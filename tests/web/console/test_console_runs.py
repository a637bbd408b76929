"""The pages of training runs."""

import re
from uuid import UUID

import httpx
import pytest
from playwright.async_api import Page, expect

from app.db import tables
from app.db.tables import RunState
from app.runs import store as runs
from app.runs.pages import drop_advice
from tests.support.grown_console import GrownConsole
from tests.support.served_scores import serve_scored
from tests.web.console.conftest import CheckPage
from trainer.rewards import DropReason

pytestmark = pytest.mark.slow  # in a browser


def _path(grown: GrownConsole, state: str) -> str:
    return f"/console/runs/{grown.project.runs[state]}"


async def _run(grown: GrownConsole, run_id: UUID) -> tables.TrainingRun:
    async with grown.api.sessions() as session:
        return await runs.get(session, run_id)


async def test_a_run_that_has_ended_is_right_everywhere(check_grown: CheckPage, grown: GrownConsole) -> None:
    page = await check_grown(_path(grown, "done"))
    for name in ("Score", "Turns of a task", "Entropy of a token, nats", "Share of clipped tokens"):
        await expect(page.get_by_role("img", name=name, exact=True)).to_be_visible()
    dropped = page.get_by_role("row").filter(has_text="equal_rewards")
    await expect(dropped).to_contain_text("wait for tasks that succeed and tasks that fail")
    await expect(page.get_by_text("168 of 412 tasks were kept")).to_be_visible()


async def test_a_run_that_goes_on_is_right_everywhere(check_grown: CheckPage, grown: GrownConsole) -> None:
    page = await check_grown(_path(grown, "running"))
    await expect(page.get_by_role("button", name="Cancel", exact=True).first).to_be_visible()


async def test_releases_that_were_examined_are_compared_with_the_active_one(
    check_grown: CheckPage, grown: GrownConsole
) -> None:
    page = await check_grown(_path(grown, "examined"))
    await expect(page.get_by_role("heading", name="Releases on the same 60 scenarios")).to_be_visible()
    rows = page.get_by_role("region", name="Releases").get_by_role("row")
    await expect(rows).to_have_count(4)
    await expect(rows.nth(1)).to_contain_text("60.0 [53.0, 67.0]")
    await expect(rows.nth(2)).to_contain_text("51.0 [44.0, 58.0]")
    await expect(rows.nth(2)).to_contain_text("-9.0 [-16.0, -2.0]")
    await expect(page.get_by_text("No step is done yet")).to_have_count(0)


async def test_the_form_of_a_run_is_right_everywhere(check_grown: CheckPage) -> None:
    page = await check_grown("/console/runs/new")
    await expect(page.get_by_label("Kind")).to_have_value("logged")


async def test_the_list_is_right_everywhere(check_grown: CheckPage) -> None:
    page = await check_grown("/console/runs")
    await expect(page.get_by_text("Trains every 1 d or after 300 scored tasks")).to_be_visible()


async def test_the_form_of_the_schedule_is_right_everywhere(check_grown: CheckPage) -> None:
    page = await check_grown("/console/runs/schedule")
    await expect(page.get_by_role("heading", level=1)).to_be_visible()


async def test_every_reason_for_dropping_a_task_is_explained() -> None:
    assert drop_advice().keys() >= {reason.value for reason in DropReason}


async def test_a_run_is_started_cancelled_and_retried(grown_page: Page, grown: GrownConsole) -> None:
    await grown_page.goto("/console/runs")
    await grown_page.get_by_role("link", name="Start a run").click()
    await grown_page.get_by_label("Steps", exact=True).fill("many")
    await grown_page.get_by_role("button", name="Start the run").click()
    await expect(grown_page.get_by_text("enter a whole number")).to_be_visible()
    await grown_page.get_by_label("Steps", exact=True).fill("7")
    await grown_page.locator("summary", has_text="Gate").click()
    await grown_page.get_by_label("Gate scenarios").fill("5")
    await grown_page.get_by_role("button", name="Start the run").click()
    await expect(grown_page.get_by_text("5 is too few for the gate to decide")).to_be_visible()
    await grown_page.get_by_label("Gate scenarios").fill("0")
    await grown_page.get_by_role("button", name="Start the run").click()
    await expect(grown_page.get_by_role("alert")).to_contain_text(
        "were sampled at temperature 1, and the run needs 2"
    )
    async with grown.api.sessions.begin() as session:
        await serve_scored(session, grown.project.id, 1.0, 0.0)
    await grown_page.get_by_role("button", name="Start the run").click()
    await expect(grown_page.get_by_role("status").first).to_have_text("the run waits for a worker")
    run = await _run(grown, grown.api.wakes.runs[-1])
    assert (run.settings["steps"], run.settings["gate_scenarios"], run.settings["promote"]) == (7, 0, True)
    await grown_page.get_by_role("button", name="Cancel", exact=True).first.click()
    await grown_page.get_by_role("button", name="Cancel the run").click()
    await expect(grown_page.get_by_text("cancelled").first).to_be_visible()
    await grown_page.get_by_role("button", name="Retry").first.click()
    await grown_page.get_by_role("dialog").get_by_role("button", name="Retry").click()
    await expect(grown_page.get_by_role("status").first).to_contain_text("queued again")


async def test_steps_appear_while_the_run_makes_them(grown_page: Page, grown: GrownConsole) -> None:
    run_id = grown.project.runs["running"]
    await grown_page.goto(_path(grown, "running"))
    await expect(grown_page.get_by_text("9 of 24 steps")).to_be_visible()
    owner = (await _run(grown, run_id)).owner
    assert owner is not None
    async with grown.api.sessions.begin() as session:
        await runs.append_step(session, run_id, owner, 10, {"outcome": 0.875}, total=24)
    await expect(grown_page.get_by_text("10 of 24 steps")).to_be_visible()
    async with grown.api.sessions.begin() as session:
        data = {"tasks": 40, "trajectories": 25, "dropped": {"stale": 15}}
        result = {"decision": "passed", "reason": "it solves more scenarios", "data": data}
        await runs.finish(session, run_id, owner, RunState.DONE, result=result)
    await expect(grown_page.get_by_text("The gate: passed")).to_be_visible()
    await expect(grown_page.get_by_text("25 of 40 tasks were kept")).to_be_visible()
    dropped = grown_page.get_by_role("row").filter(has_text="stale")
    await expect(dropped).to_contain_text("raise max_staleness, or wait")
    await expect(grown_page.get_by_role("button", name="Cancel", exact=True)).to_have_count(0)


async def test_the_schedule_is_stored_and_deleted(grown_page: Page) -> None:
    await grown_page.goto("/console/runs/schedule")
    await grown_page.get_by_label("Every so many hours").fill("")
    await grown_page.get_by_label("After so many newly scored tasks").fill("0")
    await grown_page.get_by_role("button", name="Store the schedule").click()
    await expect(grown_page.get_by_text(re.compile("must be between 1 and"))).to_be_visible()
    await grown_page.get_by_label("After so many newly scored tasks").fill("500")
    await grown_page.get_by_role("button", name="Store the schedule").click()
    await expect(grown_page.get_by_text("Trains after 500 scored tasks, ")).to_be_visible()
    await expect(grown_page.get_by_text("None begins before the trial of release 30 ends.")).to_be_visible()
    await grown_page.get_by_role("link", name="Schedule").click()
    await grown_page.get_by_role("button", name="Delete the schedule").click()
    await grown_page.get_by_role("button", name="Delete", exact=True).click()
    await expect(grown_page.get_by_text("Nothing trains by itself")).to_be_visible()


async def test_runs_are_for_administrators_of_the_project(grown: GrownConsole) -> None:
    other = (await grown.api.project("nowhere near")).id
    async with httpx.AsyncClient(base_url=grown.url, timeout=300) as client:
        for scopes, project_id, status in ((["tasks"], None, 403), (["admin"], other, 404)):
            headers = {"Cookie": f"{grown.cookie}={await grown.session(*scopes, project_id=project_id)}"}
            for rest in ("", "/live", "?file=csv"):
                assert (await client.get(_path(grown, "done") + rest, headers=headers)).status_code == status


async def test_the_log_of_a_run_is_shown_where_it_is(check_grown: CheckPage, grown: GrownConsole) -> None:
    run_id = grown.project.runs["failed"]
    missing = await grown.api.client.get(f"/v1/training-runs/{run_id}/log")
    assert missing.status_code == 404
    async with grown.api.sessions.begin() as session:
        await runs.store(session, run_id, "<b>loss is nan</b>\n")
    page = await check_grown(_path(grown, "failed"))
    await expect(page.get_by_label("Log", exact=True)).to_have_text("<b>loss is nan</b>")
    shown = await grown.api.client.get(f"/v1/training-runs/{run_id}/log")
    assert shown.text == "<b>loss is nan</b>\n"

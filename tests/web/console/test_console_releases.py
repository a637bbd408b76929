"""The pages of releases, of a project with thirty: 28 is active, 30 a canary."""

import re

import httpx
import pytest
from playwright.async_api import Page, expect

from app.base.errors import AdapterError
from app.db.tables import ReleaseState
from app.releases import store as releases
from tests.support.grown_console import GrownConsole
from tests.web.console.conftest import CheckPage

pytestmark = pytest.mark.slow  # in a browser


def _path(grown: GrownConsole, number: int, rest: str = "") -> str:
    return f"/console/releases/{grown.project.releases[number]}{rest}"


async def _active(grown: GrownConsole) -> int:
    async with grown.api.sessions() as session:
        return (await releases.active(session, grown.project.id)).number


async def test_the_list_is_right_everywhere(check_grown: CheckPage) -> None:
    page = await check_grown("/console/releases")
    await expect(page.get_by_role("img", name="Which release was active")).to_be_visible()
    await page.get_by_text("Numbers").click()
    periods = page.get_by_role("region", name="What served when")
    rolled_back = periods.get_by_role("row").filter(has_text="release 10")
    await expect(rolled_back).to_have_count(2)  # before release 11, and after it


async def test_the_page_of_a_canary_is_right_everywhere(check_grown: CheckPage, grown: GrownConsole) -> None:
    page = await check_grown(_path(grown, 30))
    await expect(page.get_by_role("img", name="Score: canary minus baseline")).to_be_visible()
    await expect(page.get_by_text("It serves 20 % of the new tasks")).to_be_visible()
    await expect(page.get_by_text("Not counted: scenarios that did not come again, ")).to_be_visible()
    figures = page.get_by_role("region", name="Exam")
    await expect(figures.get_by_role("row").nth(1)).to_contain_text(re.compile(r"Scenarios solved, %.*\[.*\]"))


async def test_a_comparison_is_right_everywhere(check_grown: CheckPage) -> None:
    page = await check_grown("/console/releases/compare?from=16&to=17")
    await expect(page.get_by_text("clear_entries")).to_be_visible()  # the document of 17 has it
    await page.get_by_label("From").select_option(label="release 6, retired")
    await expect(page.get_by_role("heading", name="Release 17 against release 6")).to_be_visible()
    await expect(page.get_by_text("were never compared with each other")).to_be_visible()


async def test_a_comparison_shows_what_the_policy_reads_now(check_grown: CheckPage) -> None:
    page = await check_grown("/console/releases/compare?from=16&to=21")
    await page.get_by_text("What the policy reads around a task").click()
    await expect(page.get_by_text("-Rule 1.")).to_be_visible()
    await expect(page.get_by_text("+Rule 2.")).to_be_visible()


async def test_the_question_before_a_roll_back_is_right_everywhere(
    check_grown: CheckPage, grown: GrownConsole
) -> None:
    page = await check_grown(_path(grown, 27, "/activate"))
    await expect(page.get_by_text("Release 27 serves all new tasks; release 28 retires")).to_be_visible()
    await check_grown(_path(grown, 27, "/canary/start"))
    assert await _active(grown) == 28


async def test_a_person_finds_whether_release_7_is_better_than_6(grown_page: Page) -> None:
    await grown_page.goto("/console")
    await grown_page.get_by_role("link", name="Releases").click()
    await grown_page.get_by_role("link", name="Release 7", exact=True).click()
    await expect(grown_page.get_by_text("Better than release 6")).to_be_visible()
    await expect(grown_page.get_by_text(re.compile(r"points more of the scenarios .*\+\d"))).to_be_visible()


async def test_a_person_undoes_a_promotion(grown_page: Page, grown: GrownConsole) -> None:
    await grown_page.goto("/console")
    await grown_page.get_by_role("link", name="Releases").click()
    await grown_page.get_by_role("link", name="Roll back to release 27").click()
    await expect(grown_page.get_by_text("are withdrawn: the agent may write them again")).to_be_visible()
    await grown_page.get_by_role("button", name="Roll back to release 27").click()
    await expect(grown_page.get_by_role("status")).to_have_text("release 27 serves all new tasks")
    assert await _active(grown) == 27
    await grown_page.goto(_path(grown, 28, "/activate"))
    await grown_page.get_by_role("button", name="Activate release 28").click()
    await expect(grown_page.get_by_role("status")).to_have_text("release 28 serves all new tasks")


async def test_rejected_weights_serve_only_after_consent(grown_page: Page, grown: GrownConsole) -> None:
    await grown_page.goto(_path(grown, 29, "/activate"))
    await grown_page.get_by_role("button", name="Activate release 29").click()  # the browser asks for the consent
    assert await _active(grown) == 28
    await grown_page.get_by_label(re.compile("Release 29 was rejected")).check()
    await grown_page.get_by_role("button", name="Activate release 29").click()
    await expect(grown_page.get_by_role("status")).to_have_text("release 29 serves all new tasks")
    await grown_page.get_by_role("link", name="Roll back to release 28").click()
    await grown_page.get_by_role("button", name="Roll back to release 28").click()
    await expect(grown_page.get_by_role("status")).to_have_text("release 28 serves all new tasks")


async def test_what_the_model_servers_refuse_is_told_and_changes_nothing(
    grown_page: Page, grown: GrownConsole
) -> None:
    await grown_page.goto(_path(grown, 26, "/activate"))
    grown.api.loads.refusal = AdapterError("its weights are not finite")
    try:
        await grown_page.get_by_role("button", name="Roll back to release 26").click()
        await expect(grown_page.get_by_role("alert")).to_have_text("its weights are not finite")
    finally:
        grown.api.loads.refusal = None
    assert await _active(grown) == 28


async def test_a_canary_is_ended_and_another_one_started(grown_page: Page, grown: GrownConsole) -> None:
    await grown_page.goto(_path(grown, 30))
    await grown_page.get_by_role("link", name="End the canary").click()
    await expect(grown_page.get_by_text("Release 28 serves all new tasks.")).to_be_visible()
    await grown_page.get_by_role("button", name="End the canary").click()
    await expect(grown_page.get_by_role("status")).to_contain_text("no canary any more")
    await expect(grown_page.get_by_text("It ended: wait")).to_be_visible()
    await grown_page.get_by_role("link", name="Start a canary").click()
    share = grown_page.get_by_label("Share of the new tasks")
    await share.fill("250")
    await grown_page.get_by_role("button", name="Start the canary").click()
    await expect(grown_page.get_by_text("must be at most 100")).to_be_visible()
    await share.fill("12.5")
    await grown_page.get_by_role("button", name="Start the canary").click()
    await expect(grown_page.get_by_role("status")).to_contain_text("serves 12.5 % of the new tasks as a canary")
    async with grown.api.sessions() as session:
        row = await releases.get(session, grown.project.releases[30])
    assert (row.state, row.canary_percent) == (ReleaseState.CANARY, 12.5)


async def test_only_administrators_of_the_project_change_what_serves(grown: GrownConsole) -> None:
    other = (await grown.api.project("far away")).id
    async with httpx.AsyncClient(base_url=grown.url, timeout=300) as client:
        for scopes, project_id, shown, asked in (
            (["tasks"], None, 200, 403),
            (["admin"], other, 404, 404),
            (["admin"], grown.project.id, 200, 200),
        ):
            headers = {"Cookie": f"{grown.cookie}={await grown.session(*scopes, project_id=project_id)}"}
            page = await client.get(_path(grown, 5), headers=headers)
            question = await client.get(_path(grown, 5, "/activate"), headers=headers)
            assert (page.status_code, question.status_code) == (shown, asked)
            if shown == 200:
                assert ("/activate" in page.text) is (asked == 200)


async def test_charts_are_downloaded_as_numbers(grown: GrownConsole) -> None:
    headers = {"Cookie": f"{grown.cookie}={await grown.session('tasks')}"}
    async with httpx.AsyncClient(base_url=grown.url, headers=headers, timeout=300) as client:
        served = (await client.get("/console/releases?file=csv")).text.splitlines()
        race = (await client.get(_path(grown, 30) + "?file=race")).text.splitlines()
    assert served[0] == "release,as,since,until"
    assert [line.split(",")[:2] for line in served[1:3]] == [["1", "active"], ["2", "active"]]
    assert race[0] == "until,reward,reward_low,reward_high,errors,errors_low,errors_high"


async def test_the_question_before_the_end_of_a_canary_is_right_everywhere(
    check_grown: CheckPage, grown: GrownConsole
) -> None:
    page = await check_grown(_path(grown, 30, "/canary/end"))
    await expect(page.get_by_role("button", name="End the canary")).to_be_visible()


async def test_figures_are_downloaded(grown_page: Page, grown: GrownConsole) -> None:
    for address, first in (
        (_path(grown, 7, "?file=exam"), '"Scenarios solved, %",'),
        (_path(grown, 30, "?file=canary"), "Score,"),
        ("/console/releases/compare?from=16&to=17&file=served", "Score,"),
    ):
        answer = await grown_page.request.get(address)
        header, row, *_ = (await answer.text()).splitlines()
        assert header.endswith(",difference,difference_low,difference_high,from"), address
        assert row.startswith(first), address
    unknown = await grown_page.request.get(_path(grown, 7, "?file=nothing"))
    assert unknown.status == 404

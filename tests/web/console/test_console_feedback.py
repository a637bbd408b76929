"""The page of wanted feedback."""

import pytest
from playwright.async_api import expect

from tests.support.console_server import ConsoleServer
from tests.web.console.conftest import CheckPage

pytestmark = pytest.mark.slow  # in a browser


async def test_a_task_is_scored_where_its_score_is_wanted(check_page: CheckPage, console: ConsoleServer) -> None:
    task_id = await console.done("count the entries, <i>once more</i>")
    page = await check_page("/console/feedback")
    row = page.get_by_role("row", name="once more")
    await row.get_by_role("textbox").fill("well counted")
    await row.get_by_role("button", name="Solved").click()
    await expect(page.get_by_role("status")).to_contain_text("stored the score")
    await expect(row).to_have_count(0)
    given = (await console.api.client.get("/v1/feedback", params={"task_id": str(task_id)})).json()
    assert [(each["score"], each["comment"]) for each in given] == [(1.0, "well counted")]

"""The pages of the menu, of a project with 10,000 tasks, and without a script."""

import pytest
from playwright.async_api import Browser, expect

from app.web.pages import NAVIGATION
from tests.support.grown_console import GrownConsole
from tests.web.console.conftest import CheckPage

pytestmark = pytest.mark.slow  # in a browser

_TABLES = {
    "/console": "Costs by scenario, with and without skills",
    "/console/feedback": "Tasks without a score",
    "/console/releases": "Releases",
    "/console/runs": "Training runs",
    "/console/usage": "Limits",
    "/console/audit": "Audit entries",
    "/console/health": "Disks",
}  # of pages whose table is not named as they are
_EMPTY = {
    "/console/approvals": "No call waits for a person.",
    "/console/models": "No hosted models.",
    "/console/secrets": "No secrets are stored.",
    "/console/webhooks": "No messages yet.",
}


@pytest.mark.parametrize(
    "path", ["/console", *(f"/console/{each}" for each in ("tasks", "feedback", "usage", "audit"))]
)
async def test_a_page_of_a_large_project_is_right_everywhere(check_grown: CheckPage, path: str) -> None:
    page = await check_grown(path)
    await expect(page.get_by_role("region", name=_TABLES.get(path, "Tasks"))).to_be_visible()


async def test_the_pages_can_be_read_without_a_script(chromium: Browser, grown: GrownConsole) -> None:
    context = await chromium.new_context(base_url=grown.url, java_script_enabled=False)
    await grown.sign_in(context)
    page = await context.new_page()
    for entry in NAVIGATION:
        await page.goto(entry.path)
        await expect(page.get_by_role("heading", level=1)).to_be_visible()
        if entry.path in _EMPTY:
            await expect(page.get_by_text(_EMPTY[entry.path])).to_be_visible()
        else:
            table = page.get_by_role("region", name=_TABLES.get(entry.path, entry.title), exact=True)
            await expect(table.get_by_role("row").nth(1)).to_be_visible()
    parts = (("Skills", grown.project.best, "Versions"), ("Releases", "Release 27", "Exam"))
    for title, name, part in parts:
        await page.goto(f"/console/{title.lower()}")
        table = page.get_by_role("region", name=title, exact=True)
        await table.get_by_role("link", name=name, exact=True).first.click()
        await expect(page.get_by_role("heading", level=1)).to_contain_text(name)
        await expect(page.get_by_role("region", name=part, exact=True)).to_be_visible()
    await page.goto(f"/console/runs/{grown.project.runs['done']}")
    await expect(page.get_by_role("heading", level=1)).to_have_text("Logged run")
    await expect(page.get_by_role("region", name="Dropped tasks")).to_be_visible()
    await context.close()

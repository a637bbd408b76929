"""Finding tasks, and sending one, as a person does."""

import pytest
from playwright.async_api import Page, expect

from tests.support.console_server import ConsoleServer
from tests.support.page_checks import check_shown
from tests.web.console.conftest import CheckPage

pytestmark = pytest.mark.slow  # in a browser


async def test_the_list_is_right_everywhere(check_page: CheckPage) -> None:
    page = await check_page("/console/tasks")
    await expect(page.get_by_role("heading", level=1)).to_have_text("Tasks")


async def test_the_form_of_a_new_task_is_right_everywhere(check_page: CheckPage) -> None:
    page = await check_page("/console/tasks/new")
    await page.get_by_text("apis.ledger").click()
    await expect(page.get_by_role("listitem").filter(has_text="list_entries")).to_contain_text("reads")
    await expect(page.get_by_role("listitem").filter(has_text="add_entry")).to_contain_text("changes")
    await check_shown(page)


async def test_filters_replace_the_table_and_stay_in_the_address(page: Page) -> None:
    await page.goto("/console/tasks")
    rows = page.get_by_role("region", name="Tasks").get_by_role("row")
    await page.get_by_label("Search the instructions").fill("amounts")
    await expect(rows).to_have_count(1 + 2)
    await page.get_by_label("Score").select_option("solved: 0.5 and more")
    await expect(page.get_by_text("No task matches.")).to_be_visible()
    await page.reload()
    await expect(page.get_by_label("Search the instructions")).to_have_value("amounts")
    await page.get_by_label("Score").select_option("any")
    await page.get_by_label("Release").fill("2")
    await expect(rows).to_have_count(1 + 1)
    await page.get_by_label("Release").fill("77")
    await expect(page.get_by_role("alert")).to_contain_text("Release: ")


async def test_the_list_and_a_task_work_without_a_script(console: ConsoleServer, chromium: object) -> None:
    context = await chromium.new_context(base_url=console.url, java_script_enabled=False)  # type: ignore[attr-defined]
    await console.sign_in(context)
    page = await context.new_page()
    await page.goto("/console/tasks")
    await page.get_by_label("Search the instructions").fill("rice")
    await page.get_by_role("button", name="Filter").click()
    await expect(page.get_by_role("link", name="write rice into the ledger")).to_be_visible()
    await expect(page.get_by_role("link", name="write tea into the ledger")).to_have_count(0)
    await page.get_by_role("link", name="write rice into the ledger").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("write rice into the ledger")
    turn = page.get_by_role("region", name="Timeline").get_by_role("listitem").filter(has_text="Turn 1")
    await turn.get_by_text("ledger.add_entry", exact=True).click()
    await expect(turn.get_by_role("heading", name="Answer")).to_be_visible()
    await context.close()


async def test_the_console_is_used_with_the_keyboard_alone(page: Page) -> None:
    keys = page.keyboard
    await page.goto("/console")
    await keys.press("Tab")
    await expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    await keys.press("Enter")
    await expect(page.get_by_role("main")).to_be_focused()
    await keys.press("?")
    help_ = page.get_by_role("dialog", name="Keyboard")
    await expect(help_).to_be_visible()
    await keys.press("Escape")
    await expect(help_).to_be_hidden()
    await keys.type("gt")
    await page.wait_for_url("**/console/tasks?project=demo")
    await keys.press("/")
    await keys.type("milk")
    await expect(page.get_by_role("region", name="Tasks").get_by_role("row")).to_have_count(1 + 1)
    await keys.press("Shift+Tab")  # out of the field, in which keys are letters
    await keys.press("j")
    await expect(page.get_by_role("link", name="write milk into the ledger")).to_be_focused()
    await keys.press("Enter")
    await expect(page.get_by_role("heading", level=1)).to_have_text("write milk into the ledger")


async def test_a_change_is_confirmed_with_the_keyboard(page: Page, console: ConsoleServer) -> None:
    await page.goto(f"/console/tasks/{await console.done('count the entries, please')}")
    await page.get_by_role("button", name="Run again").focus()
    await page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog", name="Run this task again?")
    await expect(dialog.get_by_role("button", name="Cancel")).to_be_focused()
    await page.keyboard.press("Tab")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("status")).to_contain_text("queued again, as this new one")

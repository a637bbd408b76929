"""Finding tasks, and sending one, as a person does."""

from playwright.async_api import Page, expect

from tests.console.conftest import CheckPage
from tests.console.console_server import ConsoleServer


async def test_the_list_is_right_everywhere(check_page: CheckPage) -> None:
    page = await check_page("/console/tasks")
    await expect(page.get_by_role("heading", level=1)).to_have_text("Tasks")


async def test_the_form_of_a_new_task_is_right_everywhere(check_page: CheckPage) -> None:
    page = await check_page("/console/tasks/new")
    await expect(page.get_by_text("apis.ledger")).to_be_visible()


async def test_filters_replace_the_table_and_stay_in_the_address(page: Page) -> None:
    await page.goto("/console/tasks")
    rows = page.get_by_role("region", name="Tasks").get_by_role("row")
    await page.get_by_label("Search the instructions").fill("amounts")
    await expect(rows).to_have_count(1 + 2)
    await page.get_by_label("Score").select_option("0.5 and more")
    await expect(page.get_by_text("No task matches.")).to_be_visible()
    await page.reload()
    await expect(page.get_by_label("Search the instructions")).to_have_value("amounts")
    await page.get_by_label("Score").select_option("any")
    await page.get_by_label("Release").fill("2")
    await expect(rows).to_have_count(1 + 1)
    await page.get_by_label("Release").fill("77")
    await expect(page.get_by_role("alert")).to_contain_text("Release: ")


async def test_the_list_works_without_a_script(console: ConsoleServer, chromium: object) -> None:
    context = await chromium.new_context(base_url=console.url, java_script_enabled=False)  # type: ignore[attr-defined]
    await console.sign_in(context)
    page = await context.new_page()
    await page.goto("/console/tasks")
    await page.get_by_label("Search the instructions").fill("rice")
    await page.get_by_role("button", name="Filter").click()
    await expect(page.get_by_role("link", name="write rice into the ledger")).to_be_visible()
    await expect(page.get_by_role("link", name="write tea into the ledger")).to_have_count(0)
    await context.close()

"""The page of a task, as a person reads and uses it."""

from playwright.async_api import Page, expect

from tests.console.conftest import CheckPage
from tests.console.console_server import ConsoleServer


async def test_the_page_tells_why_a_task_failed(check_page: CheckPage, console: ConsoleServer) -> None:
    [task] = (await console.api.client.get("/v1/tasks?q=amounts&limit=1")).json()["tasks"]
    page = await check_page(task["links"]["console"] if "links" in task else f"/console/tasks/{task['id']}")
    await expect(page.get_by_text("KeyError: 'balance'")).to_be_visible()
    await expect(page.get_by_text("the answer is 5")).to_be_visible()


async def test_a_task_with_a_skill_is_right_everywhere(check_page: CheckPage, console: ConsoleServer) -> None:
    [task] = (await console.api.client.get("/v1/tasks?q=oats&limit=1")).json()["tasks"]
    page = await check_page(f"/console/tasks/{task['id']}")
    await expect(page.get_by_text("Called the skill write_entry 1: 1 time, 1 returned.")).to_be_visible()


async def test_a_task_is_sent_and_followed_until_it_has_ended(page: Page, console: ConsoleServer) -> None:
    console.policy.gate.clear()
    await page.goto("/console/tasks/new")
    await page.get_by_label("Instruction").fill("write honey slowly into the ledger")
    await page.get_by_label("Scenario").fill("slow notes")
    await page.get_by_role("button", name="Send").click()
    await expect(page.get_by_role("status")).to_contain_text("The task is queued.")
    await expect(page.get_by_role("heading", name="Turn 1")).to_be_visible(timeout=15_000)
    await expect(page.get_by_text("ledger.add_entry", exact=True)).to_be_visible()
    await expect(page.get_by_role("heading", name="Turn 2")).to_have_count(0)
    console.policy.gate.set()
    await expect(page.get_by_role("heading", name="Done")).to_be_visible(timeout=15_000)
    await expect(page.get_by_role("button", name="Good")).to_be_visible()

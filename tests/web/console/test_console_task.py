"""The page of a task, as a person reads and uses it."""

import re

import httpx
import pytest
from playwright.async_api import BrowserContext, Page, Route, expect

from app.tasks.shadows import ShadowRunner
from tests.support.console_server import ConsoleServer
from tests.support.page_checks import check_shown
from tests.web.console.conftest import CheckPage

pytestmark = pytest.mark.slow  # in a browser


async def test_the_page_tells_why_a_task_failed(check_page: CheckPage, console: ConsoleServer) -> None:
    [task] = (await console.api.client.get("/v1/tasks?q=amounts&limit=1")).json()["tasks"]
    page = await check_page(f"/console/tasks/{task['id']}")
    await expect(page.get_by_text("KeyError: 'balance'")).to_be_visible()
    await expect(page.get_by_text("the answer is 5")).to_be_visible()


async def test_a_person_finds_why_a_task_failed(page: Page) -> None:
    await page.goto("/console")
    await page.get_by_role("link", name="Tasks", exact=True).click()
    await page.get_by_label("Score").select_option("failed: below 0.5")
    await page.get_by_role("link", name="sum the amounts in the ledger for Iris").click()
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
    await expect(page.get_by_role("heading", name="Turn 1")).to_be_visible()
    await expect(page.get_by_text("ledger.add_entry", exact=True)).to_be_visible()
    await expect(page.get_by_role("heading", name="Turn 2")).to_have_count(0)
    skills = page.get_by_role("region", name="Skills")
    await expect(skills.get_by_role("listitem").filter(has_text="not similar enough").first).to_be_visible()
    await page.get_by_text("ledger.add_entry", exact=True).click()
    await expect(page.get_by_role("heading", name="Arguments")).to_be_visible()
    await page.get_by_text("The prompt that it read").click()
    await expect(page.get_by_text("write honey slowly into the ledger").last).to_be_visible()
    console.policy.gate.set()
    await expect(page.get_by_role("heading", name="Done")).to_be_visible()
    await expect(page.get_by_role("button", name="Solved")).to_be_visible()
    await expect(page.get_by_role("heading", name="Arguments")).to_be_visible()
    await expect(page.get_by_role("button", name="Cancel", exact=True)).to_have_count(0)


async def test_a_page_whose_stream_connects_after_the_end_shows_the_end(
    page: Page, console: ConsoleServer
) -> None:
    console.policy.gate.clear()
    task_id = await console.api.submit("write jelly slowly into the ledger", project="demo")

    async def connect_late(route: Route) -> None:
        console.policy.gate.set()
        await console.project.ended(task_id)
        await route.continue_(url=re.sub(r"after=\d+", "after=1000", route.request.url))  # has all events

    await page.route("**/live?after=*", connect_late)
    await page.goto(f"/console/tasks/{task_id}")
    await expect(page.get_by_role("heading", name="Done")).to_be_visible()
    await expect(page.get_by_role("button", name="Solved")).to_be_visible()


async def test_a_stream_goes_on_after_the_last_block_that_the_browser_has(console: ConsoleServer) -> None:
    """A browser that lost its connection sends the number of the last message."""
    [task] = (await console.api.client.get("/v1/tasks?q=oats&limit=1")).json()["tasks"]
    address = f"{console.url}/console/tasks/{task['id']}/live"
    cookie = {f"sage_console_{httpx.URL(console.url).port}": await console.session()}
    async with httpx.AsyncClient(cookies=cookie, timeout=300) as browser:
        whole = (await browser.get(address)).text
        assert [f'id="turn-{number}"' in whole for number in range(2)] == [True, True]
        assert "event: end" in whole
        numbers = re.findall(r"^id: (\d+)", whole, re.MULTILINE)
        last = str(int(numbers[-1]) - 1)
        rest = (await browser.get(address, headers={"Last-Event-ID": last})).text
        assert 'id="end"' in rest
        assert 'id="turn-' not in rest, "nothing is sent twice"
        assert (await browser.get(address, headers={"Last-Event-ID": numbers[-1]})).status_code == 204


async def test_a_person_scores_a_turn_and_runs_the_task_again(page: Page, console: ConsoleServer) -> None:
    task_id = await console.done("count the entries, please", scenario="counts")
    await page.goto(f"/console/tasks/{task_id}")
    await page.get_by_label("Comment").fill("it read page after page")
    await page.get_by_label("About").select_option("turn 1")
    await page.get_by_role("button", name="Half").click()
    await expect(page.get_by_role("status")).to_contain_text("The score is stored.")
    await expect(page.get_by_text("solved 0.5 by a person")).to_be_visible()
    turn = page.get_by_role("listitem").filter(has=page.get_by_role("heading", name="Turn 1"))
    await expect(turn.get_by_text("key ann: solved 0.5, it read page after page")).to_be_visible()
    await page.get_by_role("button", name="Run again").click()
    dialog = page.get_by_role("dialog", name="Run this task again?")
    await expect(dialog).to_contain_text("Its calls go out again")
    await check_shown(page)
    await dialog.get_by_role("button", name="Run again").click()
    await expect(page.get_by_role("status")).to_contain_text("queued again, as this new one")
    await expect(page.get_by_role("heading", name="Done")).to_be_visible()
    await page.get_by_role("link", name="an earlier task").click()
    await page.wait_for_url(f"**/console/tasks/{task_id}")


async def test_a_person_approves_the_call_that_a_task_waits_for(page: Page, console: ConsoleServer) -> None:
    client = console.api.client
    await client.patch("/v1/projects/demo", json={"settings": {"approvals": {"default": "write"}}})
    try:
        task_id = await console.api.submit("write pepper into the ledger", project="demo", use_skills=False)
        await page.goto(f"/console/tasks/{task_id}")
        asks = page.get_by_role("region", name="It asks to call ledger.add_entry")
        await expect(asks).to_contain_text('"pepper"')
        await check_shown(page)
        await page.goto("/console")
        await page.get_by_role("link", name="ledger.add_entry").click()
        await page.get_by_role("button", name="Approve").click()
        await expect(page.get_by_text("was approved by key ann")).to_be_visible()
        await expect(page.get_by_role("heading", name="Done")).to_be_visible()
    finally:
        await client.patch("/v1/projects/demo", json={"settings": {"approvals": {"default": "never"}}})


async def test_a_task_stands_beside_its_replay_by_another_release(
    check_page: CheckPage, page: Page, console: ConsoleServer
) -> None:
    [task] = (await console.api.client.get("/v1/tasks?q=oats&limit=1")).json()["tasks"]
    await page.goto(f"/console/tasks/{task['id']}")
    await page.get_by_role("combobox", name="Release").select_option("1, retired")
    await page.get_by_role("button", name="Replay side by side").click()
    await expect(page.get_by_role("status")).to_contain_text("Release 1 does the task again.")
    project = console.project
    async with ShadowRunner(project.sessions, project.executor(console.policy), lambda: True, pause=0.1):
        await expect(page.get_by_role("region", name="Both sides")).to_be_visible()
    page = await check_page(f"/console/tasks/{task['id']}/replay?release=1")
    await expect(page.get_by_role("heading", name="Turn 2")).to_contain_text("the same")
    await check_page(f"/console/tasks/{task['id']}/replay")
    await page.get_by_role("combobox", name="Release").select_option("1, retired")
    await page.get_by_role("button", name="Replay side by side").click()
    await expect(page.get_by_role("region", name="Both sides")).to_be_visible()


async def test_a_key_without_the_scope_sees_that_it_lacks_it(
    context: BrowserContext, console: ConsoleServer
) -> None:
    await console.sign_in(context, "skills")
    page = await context.new_page()
    answer = await page.goto("/console/tasks")
    assert answer is not None
    assert answer.status == 403
    await expect(page.get_by_text("This key lacks the scope 'tasks'")).to_be_visible()
    await expect(page.get_by_role("link", name="Tasks")).to_have_count(0)

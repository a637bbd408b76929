"""The first page, and signing in to it."""

import asyncio
import csv
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from playwright.async_api import BrowserContext, expect

from app.base.files import write_admin_key
from app.base.settings import Settings
from app.machine.up import console_link
from app.projects import keys
from tests.support.console_server import ConsoleServer
from tests.support.page_checks import PageWatch, check_everywhere
from tests.web.console.conftest import CheckPage, open_console

pytestmark = pytest.mark.slow  # in a browser


@pytest.fixture(scope="module")
async def console(server_url: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ConsoleServer]:
    """A server to whose history no other test adds: its figures are checked."""
    async with open_console(server_url, tmp_path_factory) as server:
        yield server


async def test_home_is_right_everywhere(check_page: CheckPage) -> None:
    page = await check_page("/console")
    await expect(page.get_by_role("heading", level=1)).to_have_text("Is it learning?")
    await expect(
        page.get_by_text("75 % of the latest 4 scored tasks succeeded, 75 % of the 4 before.")
    ).to_be_visible()
    await expect(page.get_by_text("have no score and")).to_be_visible()
    await page.get_by_role("figure").filter(has_text="Success").get_by_text("Numbers").first.click()
    numbers = page.get_by_role("region", name="Success by day")
    await expect(numbers.get_by_role("row")).to_have_count(1 + 9)
    async with page.expect_download() as download:
        await page.get_by_role("link", name="Download as CSV").first.click()
    text = await asyncio.to_thread((await (await download.value).path()).read_text)
    rows = list(csv.DictReader(text.splitlines()))
    assert [row["success"] for row in rows] == ["1.0"] * 3 + ["0.0", ""] + ["1.0"] * 3 + ["0.0"]


async def test_a_person_signs_in_with_a_key_and_out(context: BrowserContext, console: ConsoleServer) -> None:
    page = await context.new_page()
    await check_everywhere(PageWatch(page, console.url), "/console?project=demo")
    await page.get_by_label("Key").fill("sage_wrong")
    await page.get_by_role("button", name="Sign in").click()
    await expect(page.get_by_role("alert")).to_have_text("this key is unknown or was revoked")
    await page.get_by_label("Key").fill((await console.api.key("tasks"))["Authorization"].removeprefix("Bearer "))
    await page.get_by_role("button", name="Sign in").click()
    await page.wait_for_url("**/console?project=demo")
    await page.set_viewport_size({"width": 1600, "height": 1000})
    await page.get_by_role("button", name="Sign out").click()
    await expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    await page.goto("/console")
    await expect(page.get_by_role("heading", name="Sign in")).to_be_visible()


async def test_the_link_that_the_server_prints_signs_in_once(
    context: BrowserContext, console: ConsoleServer, tmp_path: Path
) -> None:
    async with console.api.sessions.begin() as session:
        _, secret = await keys.create(session, "first admin", ["admin"])
    write_admin_key(tmp_path, secret)
    address = httpx.URL(console.url)
    link = await console_link(
        console.database_url, Settings(data_dir=tmp_path, host=address.host, port=address.port or 0)
    )
    page = await context.new_page()
    await page.goto(link)  # a preview of it uses nothing up
    await page.goto(link)
    await page.get_by_role("button", name="Sign in as first admin").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("Is it learning?")
    await page.goto(link)
    await expect(page.get_by_role("alert")).to_contain_text("This link was used already")


async def test_the_page_of_an_error_has_the_layout(check_page: CheckPage) -> None:
    page = await check_page("/console/nowhere", 404)
    await expect(page.get_by_text("The console has no page /nowhere.")).to_be_visible()
    await page.set_viewport_size({"width": 1600, "height": 1000})
    await expect(page.get_by_role("navigation", name="Console")).to_be_visible()


async def test_the_theme_is_chosen_and_kept(check_page: CheckPage) -> None:
    page = await check_page("/console")
    await page.set_viewport_size({"width": 1600, "height": 1000})
    await page.emulate_media(color_scheme="light")
    await page.get_by_role("button", name="Dark").click()
    await expect(page.get_by_role("button", name="Dark")).to_have_attribute("aria-pressed", "true")
    assert await page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(13, 17, 23)"
    await page.get_by_role("button", name="Auto").click()
    await expect(page.get_by_role("button", name="Auto")).to_have_attribute("aria-pressed", "true")
    assert await page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"

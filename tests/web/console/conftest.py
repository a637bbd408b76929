"""One server with a history and one browser for all tests of the console."""

import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from playwright.async_api import Browser, BrowserContext, Page, async_playwright, expect

from app.sandbox.forked_sandbox import ForkedSandbox
from tests.support import postgres
from tests.support.console_server import Console, ConsoleServer, console_server
from tests.support.grown_console import GrownConsole, grown_console
from tests.support.page_checks import PageWatch, check_everywhere

expect.set_options(timeout=60_000)

_CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")

CheckPage = Callable[..., Awaitable[Page]]  # with the address, and the status if it is not 200


@pytest.fixture(scope="session")
async def console(server_url: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ConsoleServer]:
    """A server with a history of tasks, in a database of its own. Tests may add to it."""
    async with open_console(server_url, tmp_path_factory) as server:
        yield server


@asynccontextmanager
async def open_console(server_url: str, directories: pytest.TempPathFactory) -> AsyncIterator[ConsoleServer]:
    directory = Path(directories.mktemp("console"))
    for url in postgres.migrated_database(server_url):
        async with ForkedSandbox(bwrap=False) as sandbox, console_server(url, sandbox, directory) as server:
            yield server


@pytest.fixture(scope="session")
async def grown(server_url: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[GrownConsole]:
    """A server with a large project, in a database of its own. Tests may change it."""
    for url in postgres.migrated_database(server_url):
        async with grown_console(url, Path(tmp_path_factory.mktemp("grown"))) as server:
            yield server


@pytest.fixture(scope="session")
async def chromium() -> AsyncIterator[Browser]:
    if _CHROMIUM is None:
        pytest.skip("there is no Chromium: apt-get install chromium")
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=_CHROMIUM, args=["--no-sandbox", "--disable-features=SpareRendererForSitePerProcess"]
        )
        yield browser
        await browser.close()


@pytest.fixture
async def context(chromium: Browser, console: ConsoleServer) -> AsyncIterator[BrowserContext]:
    """A browser in which nobody has signed in."""
    opened = await chromium.new_context(base_url=console.url, reduced_motion="reduce")
    yield opened
    await opened.close()


@pytest.fixture
async def page(context: BrowserContext, console: ConsoleServer) -> AsyncIterator[Page]:
    """A page of an administrator who is signed in."""
    await console.sign_in(context)
    opened = await context.new_page()
    opened.set_default_timeout(60_000)
    watch = PageWatch(opened, console.url)
    yield opened
    assert not watch.problems, watch.problems


@pytest.fixture
async def check_page(page: Page, console: ConsoleServer) -> CheckPage:
    """`await check_page("/console/tasks")`: nothing is wrong with it in both themes, at 375 and 1600 px."""
    return _check(page, console)


@pytest.fixture
async def grown_page(chromium: Browser, grown: GrownConsole) -> AsyncIterator[Page]:
    """As `page`, of the large project."""
    async with _open_page(chromium, grown) as opened:
        yield opened


@pytest.fixture
async def check_grown(grown_page: Page, grown: GrownConsole) -> CheckPage:
    """As `check_page`, of the large project."""
    return _check(grown_page, grown)


@asynccontextmanager
async def _open_page(chromium: Browser, console: Console) -> AsyncIterator[Page]:
    context = await chromium.new_context(base_url=console.url, reduced_motion="reduce")
    await console.sign_in(context)
    opened = await context.new_page()
    opened.set_default_timeout(60_000)
    watch = PageWatch(opened, console.url)
    yield opened
    await context.close()
    assert not watch.problems, watch.problems


def _check(page: Page, console: Console) -> CheckPage:
    async def check(address: str, status: int = 200) -> Page:
        await check_everywhere(PageWatch(page, console.url), address, status)
        return page

    return check

"""What holds for every page of the console, looked at by a real browser."""

import os
import re
from pathlib import Path
from urllib.parse import urlsplit

from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Page, Request

_WIDTHS = (1600, 375)
_RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
_COLORS = {"type": "rule", "values": ["color-contrast", "link-in-text-block"]}  # all that a theme changes
_THEMES = {"light": _RULES, "dark": _COLORS}


class PageWatch:
    """Notes what a page must not do: ask another host, write errors to the browser's console."""

    def __init__(self, page: Page, url: str) -> None:
        self.page, self._url = page, url
        self.problems: list[str] = []
        page.on("request", self._requested)
        page.on("console", lambda message: self._wrote(message.type, message.text))
        page.on("pageerror", lambda error: self.problems.append(f"script failed: {error}"))

    def _requested(self, request: Request) -> None:
        if urlsplit(request.url).netloc != urlsplit(self._url).netloc:
            self.problems.append(f"asked another host: {request.url}")

    def _wrote(self, kind: str, text: str) -> None:
        expected = kind == "error" and "the server responded with a status of 4" in text  # a page of an error
        if kind in ("error", "warning") and not expected:
            self.problems.append(f"console {kind}: {text}")


async def check_everywhere(watch: PageWatch, address: str, status: int = 200) -> None:
    """Load a page of the console and assert that nothing is wrong with it: see `check_shown`.

    `status` is that of the answer, so that the page of an error does not pass for the one that was meant.
    """
    page = watch.page
    answer = await page.goto(address)
    assert answer is not None
    assert answer.status == status, f"{address} is a page of status {answer.status}"
    await check_shown(page)
    assert not watch.problems, watch.problems


async def check_shown(page: Page) -> None:
    """Assert, in both themes at both widths, that the page that is open can be read by everyone.

    Pictures of it go to the directory SCREENSHOTS, if that is set.
    """
    axe = Axe()
    for width in _WIDTHS:
        await page.set_viewport_size({"width": width, "height": 1000})
        for theme, rules in _THEMES.items():
            await page.emulate_media(color_scheme=theme)  # type: ignore[arg-type]
            await _picture(page, f"{width}-{theme}")
            found = await axe.run(page, options={"runOnly": rules, "resultTypes": ["violations"]})
            axe = Axe("0")  # its script is in the page by now
            assert not found.violations_count, f"{theme}, {width} px: {found.generate_report()}"
        beyond = await page.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert beyond <= 0, f"at {width} px the page is {beyond} px too wide"


async def _picture(page: Page, name: str) -> None:
    directory = os.environ.get("SCREENSHOTS")
    if directory:
        parts = urlsplit(page.url)
        label = (
            re.sub(r"[^a-z]+", "-", f"{parts.path} {parts.query}".removeprefix("/console")).strip("-") or "home"
        )
        await page.screenshot(path=Path(directory) / f"{label}-{name}.png", full_page=True)

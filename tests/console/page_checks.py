"""What holds for every page of the console, looked at by a real browser."""

import os
import re
from pathlib import Path
from urllib.parse import urlsplit

from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Page, Request, Response

_WIDTHS = (1600, 375)
_THEMES = ("light", "dark")
_MOST_MS = 300.0
_ATTEMPTS = 3
_RULES = {
    "runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"],
    "resultTypes": [
        "violations"
    ],  # all else with one node each: most of the time went into describing what is right
}


class PageWatch:
    """Notes what a page must not do: ask another host, write errors to the browser's console."""

    def __init__(self, page: Page, url: str) -> None:
        self.page, self._url = page, url
        self.problems: list[str] = []
        self.server_ms = 0.0  # that the last page took
        page.on("request", self._requested)
        page.on("response", self._answered)
        page.on("console", lambda message: self._wrote(message.type, message.text))
        page.on("pageerror", lambda error: self.problems.append(f"script failed: {error}"))

    def _requested(self, request: Request) -> None:
        if urlsplit(request.url).netloc != urlsplit(self._url).netloc:
            self.problems.append(f"asked another host: {request.url}")

    def _answered(self, response: Response) -> None:
        found = re.search(r"dur=([\d.]+)", response.headers.get("server-timing", ""))
        if found and "text/html" in response.headers.get("content-type", ""):
            self.server_ms = float(found[1])

    def _wrote(self, kind: str, text: str) -> None:
        expected = kind == "error" and "the server responded with a status of 4" in text  # a page of an error
        if kind in ("error", "warning") and not expected:
            self.problems.append(f"console {kind}: {text}")


async def check_everywhere(watch: PageWatch, address: str, status: int = 200) -> None:
    """Load a page of the console and assert, in both themes at both widths, that nothing is wrong with it.

    `status` is that of the answer, so that the page of an error does not pass for the one that was meant. Pictures
    of it go to the directory SCREENSHOTS, if that is set.
    """
    page = watch.page
    assert await _fastest(watch, address, status) <= _most_ms()
    for width in _WIDTHS:
        await page.set_viewport_size({"width": width, "height": 1000})
        for theme in _THEMES:
            await page.emulate_media(color_scheme=theme)  # type: ignore[arg-type]
            await _picture(page, f"{width}-{theme}")
            found = await Axe().run(page, options=_RULES)
            assert not found.violations_count, f"{theme}, {width} px: {found.generate_report()}"
        beyond = await page.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert beyond <= 0, f"at {width} px the page is {beyond} px too wide"
    assert not watch.problems, watch.problems


async def _fastest(watch: PageWatch, address: str, status: int) -> float:
    """The server's time in ms: of another attempt too, if others took its processors."""
    times: list[float] = []
    while len(times) < _ATTEMPTS and min(times, default=_MOST_MS + 1) > _MOST_MS:
        answer = await watch.page.goto(address)
        assert answer is not None
        assert answer.status == status, f"{address} is a page of status {answer.status}"
        times.append(watch.server_ms)
    return min(times)


def _most_ms() -> float:
    """More where so many processes share the processors that each waits for its turn."""
    return _MOST_MS * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


async def _picture(page: Page, name: str) -> None:
    directory = os.environ.get("SCREENSHOTS")
    if directory:
        parts = urlsplit(page.url)
        label = (
            re.sub(r"[^a-z]+", "-", f"{parts.path} {parts.query}".removeprefix("/console")).strip("-") or "home"
        )
        await page.screenshot(path=Path(directory) / f"{label}-{name}.png", full_page=True)

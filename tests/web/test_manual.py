"""The manual: served as it reads in the repository, complete, and without anything from elsewhere."""

import asyncio
import re
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from litestar import Litestar

from app.processes.api import create_app
from app.processes.dependencies import Dependencies
from app.processes.reference import reference_pages
from app.web.manual import DIRECTORY, ManualPage, load_manual, manual_routes, render
from tests.support.api_app import asgi_client, problem
from tests.support.every_row import every_row
from tests.support.reference_pages import openapi_document
from trainer.rewards import DropReason

REPOSITORY = Path(__file__).parents[2]
GENERATED = {DIRECTORY / f"{name}.md": text for name, text in reference_pages(openapi_document()).items()}
FILES = {path: path.read_text() for path in (REPOSITORY / "README.md", *sorted(DIRECTORY.glob("*.md")))}
SOURCES = FILES | GENERATED
LINK = re.compile(r"\]\(([^)\s]+)\)")


class Links(HTMLParser):
    """What a page refers to, and the places in it that can be referred to."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.targets: set[str] = set()
        self.anchors: set[str] = set()
        self.tags: set[str] = set()
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        for name, value in attrs:
            if name in ("href", "src", "action") and value is not None:
                self.targets.add(value)
            elif name == "id" and value is not None:
                self.anchors.add(value)


def no_parts() -> AbstractAsyncContextManager[Dependencies]:
    raise AssertionError("the manual needs no database, no model and no key")


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    async with asgi_client(create_app(no_parts), {}) as client:
        yield client


def test_the_settings_of_projects_are_explained_with_those_inside_them() -> None:
    page = GENERATED[DIRECTORY / "settings.md"]
    for name in ("watch_margin", "limits.queued_tasks", "webhook.events", "staging.NAME.reset_url"):
        assert f"| `{name}` |" in page


def test_every_link_in_the_repository_leads_to_a_file_and_a_heading() -> None:
    with every_row() as row:
        for source, text in SOURCES.items():
            for link in LINK.findall(_without_code(text)):
                with row(source.relative_to(REPOSITORY), link):
                    parts = urlsplit(link)
                    if parts.scheme:
                        continue
                    target = (source.parent / parts.path).resolve() if parts.path else source
                    assert target.is_relative_to(REPOSITORY), f"{source}: {link}"
                    assert target in SOURCES or target.exists(), f"{source}: {link}"
                    if parts.fragment:
                        assert parts.fragment in _anchors(target), f"{source}: {link}"


@cache
def _anchors(page: Path) -> set[str]:
    return {each.anchor for each in render(SOURCES[page], str)[1]}


async def test_every_page_is_served_and_every_link_of_it_leads_somewhere_here(client: httpx.AsyncClient) -> None:
    pages = {each.path: Links((await client.get(each.path)).raise_for_status().text) for each in _pages()}
    for path, page in pages.items():
        for target in page.targets:
            parts = urlsplit(target)
            if parts.scheme == "https" and parts.netloc:
                continue
            served = parts.path or path
            assert served == "/docs" or (await client.get(served)).status_code == 200, f"{path}: {target}"
            if parts.fragment:
                assert parts.fragment in pages[served].anchors, f"{path}: {target}"


async def test_the_links_of_the_console_to_the_manual_lead_to_a_page_and_a_heading() -> None:
    anchors = {each.path: {section.anchor for section in each.sections} for each in _pages()}
    files = [*(REPOSITORY / "app").rglob("*.html"), *(REPOSITORY / "app").rglob("*.py")]
    with every_row() as row:
        for path in files:
            for page, anchor in re.findall(r'"(/manual/\w+)(?:#([\w-]+))?"', path.read_text()):
                with row(path.relative_to(REPOSITORY), page, anchor):
                    assert page in anchors or page == "/manual/search"
                    assert not anchor or anchor in anchors[page]


async def test_visitors_who_come_at_once_wait_for_one_making_of_the_pages() -> None:
    made = []

    def generated(_: Litestar) -> dict[str, str]:
        made.append(1)
        time.sleep(0.05)  # for the others to come meanwhile
        return {"settings": "# Settings", "rest": "# REST"}

    async with asgi_client(Litestar(manual_routes(generated)), {}) as client:
        await asyncio.gather(*(client.get("/manual") for _ in range(8)))
    assert made == [1]


async def test_pages_run_no_script_and_load_nothing_from_elsewhere(client: httpx.AsyncClient) -> None:
    for each in _pages():
        answer = await client.get(each.path)
        assert answer.headers["content-type"].startswith("text/html")
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert not Links(answer.text).tags & {"script", "iframe", "object", "style"}
        assert not re.search(r"""(src|action)=["'](https?:)?//""", answer.text)
    assert "//" not in (await client.get("/manual/style.css")).text.replace("/*", "")


def test_the_first_page_leads_to_all_others_in_its_order() -> None:
    index = (DIRECTORY / "README.md").read_text()
    names = re.findall(r"\]\((\w[\w-]*)\.md\)", index)
    assert set(names) == {path.stem for path in SOURCES} - {"README"}
    assert [page.name for page in _pages()] == ["README", *dict.fromkeys(names)]


def test_the_architecture_names_every_folder_and_module_at_the_top_of_the_code() -> None:
    page = DIRECTORY / "architecture.md"
    linked = {(DIRECTORY / link).resolve() for link in LINK.findall(page.read_text())}
    for part in (REPOSITORY / "app", REPOSITORY / "trainer"):
        folders = {path.parent for path in part.glob("*/__init__.py")}
        modules = {path for path in part.glob("*.py") if path.name != "__init__.py"}
        assert folders | modules <= linked


def test_training_explains_every_reason_to_drop_a_task() -> None:
    page = (DIRECTORY / "learning.md").read_text()
    assert [reason for reason in DropReason if f"`{reason}`" not in page] == []


def test_the_chart_is_that_of_the_experiment() -> None:
    chart = (REPOSITORY / "tests/bench/results/reproduce.svg").read_bytes()
    assert (DIRECTORY / "images/reproduce.svg").read_bytes() == chart


async def test_search_finds_a_setting_and_marks_the_word(client: httpx.AsyncClient) -> None:
    answer = await client.get("/manual/search", params={"q": "lease_seconds"})
    assert "<mark>LEASE</mark>" in answer.text
    assert 'href="/manual/settings#tasks"' in answer.text


async def test_what_is_searched_for_is_shown_as_text(client: httpx.AsyncClient) -> None:
    answer = await client.get("/manual/search", params={"q": '"><script>x</script>'})
    assert answer.status_code == 200
    assert "<script>" not in answer.text


async def test_an_unknown_page_is_not_found(client: httpx.AsyncClient) -> None:
    for name in ("nothing", "..%2Fsettings", "README.md"):
        answer = await client.get(f"/manual/{name}")
        assert answer.status_code == 404
        problem(answer)


@cache
def _pages() -> list[ManualPage]:
    return list(load_manual({path.stem: text for path, text in GENERATED.items()}).pages.values())


def _without_code(text: str) -> str:
    return re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL)

"""The server's time for the pages of the console, over a project that real traffic has made.

python tests/bench/bench_console.py [--tasks 10000] [--skills 2000] [--releases 30] [--pictures DIR]

A runner executes the tasks in the sandbox on a live API; only the policy is scripted. Pages are found by links.
With Chromium, pictures of the home page, the skills and a task that used one can be taken on the way.
"""

import asyncio
import re
import shutil
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from urllib.parse import parse_qsl, urljoin, urlsplit

import click
import httpx
from playwright.async_api import async_playwright
from sqlalchemy import func, select

sys.path.insert(0, str(Path(__file__).parents[2]))

from app.base.values import BASE
from app.db import postgres, tables
from app.db.migrate import migrate
from app.db.tables import TASK_END_STATES
from app.releases import store as releases
from app.sandbox.forked_sandbox import ForkedSandbox
from tests.bench.results_file import write_results
from tests.support.console_server import ConsoleServer, console_server

_AT_ONCE = 100  # tasks of a request
_OF_A_KIND = 5  # pages
_REPEATS = 5
_GOAL_MS = 300
_CHECK = "score = float(len(apis.ledger.list_entries(page=0)) > 0)"
_LINK = re.compile(r'href="([^"#]+)"')
_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f-]{27}|(?<=/)\d+(?=/|$)")


async def _work(server: ConsoleServer, tasks: int, skills: int, count: int) -> None:
    """Each section of the ledger has a skill, written by its first task and used by the later ones."""
    chance = Random(1)
    began = time.perf_counter()
    for start in range(0, tasks, _AT_ONCE):
        sent = [_task(number, skills) for number in range(start, min(start + _AT_ONCE, tasks))]
        answer = await server.api.client.post("/v1/tasks", json={"tasks": sent})
        answer.raise_for_status()
        await _all_ended(server)
        for each in answer.json()["tasks"][::3]:
            score = {"task_id": each["id"], "score": float(chance.random() < 0.7)}
            (await server.api.client.post("/v1/feedback", json=score)).raise_for_status()
        due = count * (start + _AT_ONCE) // tasks - count * start // tasks
        for _ in range(due):
            async with server.api.sessions.begin() as session:
                candidate = await releases.propose(session, server.api.demo.id, BASE)
                await releases.activate(session, candidate.id)
        if start % 1000 == 0:
            print(f"{start} of {tasks} tasks, {time.perf_counter() - began:.0f} s", file=sys.stderr)


def _task(number: int, skills: int) -> dict[str, object]:
    section = number % skills
    task: dict[str, object] = {
        "instruction": f"write tea into section {section} of the ledger",
        "scenario": f"section {section % 60}",
    }
    return task | ({"check": _CHECK} if number % 3 == 1 else {})


async def _all_ended(server: ConsoleServer) -> None:
    open_tasks = select(func.count()).where(tables.Task.state.not_in(TASK_END_STATES))
    while True:
        async with server.api.sessions() as session:
            if not await session.scalar(open_tasks):
                return
        await asyncio.sleep(0.05)


async def _pages(server: ConsoleServer) -> dict[str, list[float]]:
    """Milliseconds of the pages of each kind, the median of some loads of each."""
    headers = {"Cookie": f"{server.cookie}={await server.session('admin')}"}
    found = defaultdict[str, list[float]](list)
    waiting, seen = ["/console"], {"/console"}
    async with httpx.AsyncClient(base_url=server.url, headers=headers, timeout=60) as client:
        while waiting:
            address = waiting.pop(0)
            if len(found[_kind(address)]) == _OF_A_KIND:
                continue
            times: list[float] = []
            for _ in range(_REPEATS):
                answer = await client.get(address)
                html = answer.text if "text/html" in answer.headers.get("content-type", "") else ""
                times += map(float, re.findall(r"dur=([\d.]+)", answer.headers.get("server-timing", "")))
            if answer.status_code != 200 or not html:
                continue
            found[_kind(address)].append(statistics.median(times))
            for link in _links(address, html):
                if link not in seen:
                    seen.add(link)
                    waiting.append(link)
    return {kind: times for kind, times in found.items() if times}


def _links(address: str, html: str) -> Iterator[str]:
    for link in _LINK.findall(html):
        target = urljoin(address, unescape(link))
        if urlsplit(target).path.startswith("/console") and "/static/" not in target:
            yield target


async def _take_pictures(server: ConsoleServer, directory: Path) -> None:
    """As a person sees the pages without scrolling, at the width of a manual's page."""
    async with server.api.sessions() as session:
        offer = tables.SkillOffer
        used = await session.scalar(select(offer.task_id).where(offer.returned > 0).limit(1))
    pages = {"home": "/console", "skills": "/console/skills", "task": f"/console/tasks/{used}"}
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        context = await browser.new_context(viewport={"width": 1200, "height": 800})
        await server.sign_in(context, "admin")
        page = await context.new_page()
        for name, address in pages.items():
            await page.goto(server.url + address)
            await page.screenshot(path=directory / f"console-{name}.png")
        await browser.close()


def _kind(address: str) -> str:
    parts = urlsplit(address)
    names = sorted({name for name, _ in parse_qsl(parts.query)} - {"project"})
    return _ID.sub("{id}", parts.path) + (f"?{'&'.join(names)}" if names else "")


async def _measure(
    database_url: str, directory: Path, tasks: int, skills: int, count: int, pictures: Path | None
) -> None:
    async with ForkedSandbox(bwrap=False) as sandbox, console_server(database_url, sandbox, directory) as server:
        await _work(server, tasks, skills, count)
        async with server.api.sessions() as session:
            rows = {
                "tasks": await session.scalar(select(func.count()).select_from(tables.Task)),
                "skills": await session.scalar(select(func.count()).select_from(tables.Skill)),
                "releases": await session.scalar(select(func.count()).select_from(tables.Release)),
            }
        print(rows)
        found = await _pages(server)
        if pictures:
            await _take_pictures(server, pictures)
    for kind, times in sorted(found.items(), key=lambda each: -max(each[1])):
        print(
            f"{max(times):8.1f} ms at most, {statistics.median(times):8.1f} in the middle, {len(times)} of {kind}"
        )
    worst = max(max(times) for times in found.values())
    write_results("console", {"rows": rows, "goal_ms": _GOAL_MS, "worst_ms": worst, "ms": found})


@click.command()
@click.option("--tasks", default=10_000, show_default=True)
@click.option("--skills", default=2_000, show_default=True)
@click.option("--releases", "count", default=30, show_default=True)
@click.option("--pictures", type=click.Path(path_type=Path), help="a directory for them  [default: none]")
def main(tasks: int, skills: int, count: int, pictures: Path | None) -> None:
    with TemporaryDirectory() as directory:
        database = Path(directory) / "postgres"
        url = postgres.start(database)
        try:
            migrate(url)
            asyncio.run(_measure(url, Path(directory), tasks, skills, count, pictures))
        finally:
            postgres.stop(database)


if __name__ == "__main__":
    main()

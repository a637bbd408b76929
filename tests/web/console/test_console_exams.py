"""The pages of exams."""

import httpx
import pytest
from playwright.async_api import Page, expect

from app.base.run_settings import RunKind
from app.runs import store as runs
from tests.support.console_server import ConsoleServer
from tests.support.grown_console import GrownConsole
from tests.web.console.conftest import CheckPage

pytestmark = pytest.mark.slow  # in a browser


async def test_the_list_leads_to_an_exam_and_its_results(check_grown: CheckPage) -> None:
    page = await check_grown("/console/exams")
    row = page.get_by_role("row", name="everyday")
    await expect(row).to_contain_text("solved by release")
    await row.get_by_role("link", name="everyday").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("Exam everyday")
    page = await check_grown("/console/exams/everyday")
    await expect(page.get_by_role("img", name="Scenarios solved, by release")).to_be_visible()
    await page.get_by_text("Numbers").click()
    results = page.get_by_role("region", name="Results by release")
    await expect(results.get_by_role("row", name="Release 7", exact=False).first).to_contain_text("20 of 100")
    await results.get_by_role("link", name="Release 7", exact=True).first.click()
    await page.get_by_role("link", name="everyday").click()
    await page.get_by_role("region", name="Versions").get_by_role("link", name="1", exact=True).click()
    await expect(page.get_by_text("1, shown here")).to_be_visible()
    await expect(page.get_by_text("120, 120 with a check")).to_be_visible()
    await expect(
        page.get_by_text("The gate can decide by it on staging. Recorded calls need tasks")
    ).to_be_visible()


async def test_releases_are_examined_on_an_exam(grown_page: Page, grown: GrownConsole) -> None:
    await grown_page.goto("/console/exams/everyday")
    await grown_page.get_by_role("link", name="Examine releases").click()
    await expect(grown_page.get_by_label("Kind")).to_have_value("exam")
    await grown_page.get_by_label("Releases", exact=True).fill("seven")
    await grown_page.get_by_role("button", name="Start the run").click()
    await expect(grown_page.get_by_label("Releases", exact=True)).to_have_attribute("aria-invalid", "true")
    await grown_page.get_by_label("Releases", exact=True).fill("2, 7")
    await grown_page.get_by_role("button", name="Start the run").click()
    await expect(grown_page.get_by_role("status").first).to_have_text("the run waits for a worker")
    async with grown.api.sessions() as session:
        run = await runs.get(session, grown.api.wakes.runs[-1])
    assert (run.kind, run.settings["environment"], run.settings["releases"]) == (
        RunKind.EXAM,
        "exam?name=everyday&on=staging",
        "2, 7",
    )


async def test_results_are_downloaded_with_their_intervals(grown: GrownConsole) -> None:
    headers = {"Cookie": f"{grown.cookie}={await grown.session('admin')}"}
    async with httpx.AsyncClient(base_url=grown.url, headers=headers, timeout=300) as client:
        lines = (await client.get("/console/exams/everyday?file=csv")).text.splitlines()
    names = lines[0].split(",")
    rows = [dict(zip(names, line.split(","), strict=True)) for line in lines[1:]]
    assert {row["release"] for row in rows} >= {"2", "7", "30"}
    assert all(float(row["sgc_low"]) < float(row["sgc"]) < float(row["sgc_high"]) for row in rows)
    about = {
        tuple(row[name] for name in ("version", "coverage", "scenarios_left_out", "tasks_left_out"))
        for row in rows
    }
    assert about == {("1", "1.0", "20", "31")}


async def test_an_exam_is_deleted_in_all_versions(check_page: CheckPage, console: ConsoleServer) -> None:
    page = await check_page("/console/exams")
    await expect(page.get_by_text("No exams yet.")).to_be_visible()
    task = {"instruction": "sum it", "check": "score = 1.0"}
    made = await console.api.client.post("/v1/exams?project=demo", json={"name": "short", "tasks": [task]})
    page = await check_page(made.json()["links"]["console"])
    await expect(page.get_by_text("The gate cannot decide by it yet: it has 1 scenarios")).to_be_visible()
    await page.get_by_role("button", name="Delete").click()
    await page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    await expect(page.get_by_role("status")).to_have_text("deleted the exam short")
    await expect(page.get_by_text("No exams yet.")).to_be_visible()

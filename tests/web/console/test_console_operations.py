"""The pages for those who keep the server running: usage, the audit log, messages to webhooks, health."""

import csv
from pathlib import Path

import pytest
from playwright.async_api import expect
from sqlalchemy import update

from app.db import runners, tables
from app.db.tables import DeliveryState
from app.projects import webhooks
from tests.support.console_server import ConsoleServer
from tests.web.console.conftest import CheckPage

pytestmark = pytest.mark.slow  # in a browser

_SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


async def test_usage_shows_limits_and_days_that_can_be_taken_along(
    check_page: CheckPage, console: ConsoleServer, tmp_path: Path
) -> None:
    limits = {"settings": {"limits": {"tasks_per_day": 400}}}
    assert (await console.api.client.patch("/v1/projects/demo", json=limits)).status_code == 200
    page = await check_page("/console/usage")
    usage = (await console.api.client.get("/v1/projects/demo/usage")).json()
    row = page.get_by_role("row", name="Tasks submitted today")
    await expect(row).to_contain_text(f"{usage['today']['submitted']} 400 {usage['left']['tasks_per_day']}")
    chart = page.get_by_role("figure").filter(has_text="Tasks that ended")
    await chart.get_by_text("Numbers").click()
    await expect(chart.get_by_role("row").nth(1)).to_contain_text(str(usage["today"]["done"]))
    async with page.expect_download() as download:
        await chart.get_by_role("link", name="Download as CSV").click()
    file = tmp_path / "usage.csv"
    await (await download.value).save_as(file)
    days = list(csv.DictReader(file.read_text().splitlines()))
    assert len(days) == 30
    assert days[-1]["calls"] == str(usage["today"]["calls"])


async def test_the_audit_log_is_filtered(check_page: CheckPage, console: ConsoleServer) -> None:
    key = (await console.api.client.post("/v1/keys", json={"name": "auditor", "scopes": ["tasks"]})).json()
    page = await check_page("/console/audit?of=all")
    rows = page.get_by_role("table").get_by_role("row")
    await expect(rows.filter(has_text="skill moved").first).to_be_visible()
    await page.get_by_label("Action").select_option("key created")
    await expect(rows.filter(has_text="skill moved")).to_have_count(0)
    own = rows.filter(has_text="auditor")
    await expect(own).to_contain_text("key test admin")
    await own.get_by_text("name auditor").click()
    await expect(own).to_contain_text(key["id"])
    await page.get_by_label("By").fill("nobody")
    await expect(page.get_by_text("Nothing matches.")).to_be_visible()
    assert "actor=nobody" in page.url


async def test_a_message_to_the_webhook_is_sent_again(check_page: CheckPage, console: ConsoleServer) -> None:
    hook = {"url": "https://hooks.example/inbox", "secret": _SECRET, "events": ["task.failed"]}
    set_hook = await console.api.client.patch("/v1/projects/demo", json={"settings": {"webhook": hook}})
    assert set_hook.status_code == 200
    task_id = (await console.api.client.get("/v1/tasks")).json()["tasks"][0]["id"]
    async with console.api.sessions.begin() as session:
        await webhooks.enqueue(session, console.api.demo.id, task_id, "task.failed", {"why": "<b>tea</b>"})
        failed = {"state": DeliveryState.FAILED, "attempt": 8, "status": 502, "error": "HTTP 502"}
        await session.execute(update(tables.WebhookDelivery).values(failed))
    page = await check_page("/console/webhooks")
    row = page.get_by_role("row", name="task.failed")
    await row.get_by_text("show").click()
    await expect(row).to_contain_text("<b>tea</b>")
    await row.get_by_role("button", name="Send again").click()
    await expect(row).to_contain_text("pending")
    await expect(page.get_by_role("status")).to_contain_text("is being sent again")
    await page.get_by_label("State").select_option("failed")
    await expect(page.get_by_text("No messages in this state.")).to_be_visible()
    await console.api.client.patch("/v1/projects/demo", json={"settings": {"webhook": None}})


async def test_health_says_what_to_do_and_changes_by_itself(check_page: CheckPage, console: ConsoleServer) -> None:
    page = await check_page("/console/health")
    await expect(page.get_by_text("This server cannot carry out tasks.")).to_be_visible()
    await expect(page.get_by_text("start one with `sage runner`").first).to_be_visible()
    await expect(page.get_by_role("row", name="http://gpu-2:8000")).to_contain_text("is it running?")
    runner = runners.RunnerReport(
        id="r", host="shed", pid=7, pid_space="x", in_flight=2, capacity=4, memory_bytes=1 << 28, sandbox="seccomp"
    )
    async with console.api.sessions.begin() as session:
        await runners.report(session, runner)
    await expect(page.get_by_text("This server can carry out tasks.")).to_be_visible(timeout=12_000)
    await expect(page.get_by_role("row", name="shed")).to_contain_text("2 of 4")
    async with console.api.sessions.begin() as session:
        await runners.remove(session, "r")

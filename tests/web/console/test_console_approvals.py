"""The pages of approvals: a call that waits, with its arguments, approved or refused."""

import pytest
from playwright.async_api import expect

from tests.support.console_server import ConsoleServer
from tests.support.ledger_project import until
from tests.web.console.conftest import CheckPage

pytestmark = pytest.mark.slow  # in a browser


async def test_calls_are_approved_and_refused(check_page: CheckPage, console: ConsoleServer) -> None:
    client = console.api.client
    rules = {"settings": {"approvals": {"default": "write"}}}
    assert (await client.patch("/v1/projects/demo", json=rules)).status_code == 200
    try:
        first = await console.api.submit("write <b>jam</b> into the ledger", project="demo")
        await until(lambda: _waits(console, str(first)))
        page = await check_page("/console/approvals")
        call = page.get_by_label("ledger.add_entry")
        await expect(call).to_contain_text("write <b>jam</b> into the ledger")
        await expect(call).to_contain_text('"text"')
        await call.get_by_role("button", name="Approve").click()
        await expect(page.get_by_role("status")).to_contain_text("approved: the call of ledger.add_entry")
        assert (await console.project.ended(first)).state == "done"

        second = await console.api.submit("write soap into the ledger", project="demo")
        await expect(call).to_be_visible()  # by itself
        await call.get_by_label("Reason").fill("no soap, please")
        await call.get_by_role("button", name="Refuse").click()
        await expect(page.get_by_role("row", name="no soap, please")).to_contain_text("refused")
        await console.project.ended(second)
        await page.get_by_role("row", name="no soap, please").get_by_role("link").click()
        await expect(page.get_by_text("Decided by key ann")).to_be_visible()
        await check_page(page.url)
    finally:
        await client.patch("/v1/projects/demo", json={"settings": {"approvals": None}})


async def _waits(console: ConsoleServer, task_id: str) -> bool:
    answer = await console.api.client.get("/v1/approvals", params={"state": "waiting", "task_id": task_id})
    return bool(answer.json()["approvals"])

"""The page of keys: a new one, its secret that is shown once, and revoking."""

import pytest
from playwright.async_api import expect

from tests.support.console_server import ConsoleServer
from tests.web.console.conftest import CheckPage

pytestmark = pytest.mark.slow  # in a browser


async def test_a_key_is_created_shown_once_used_and_revoked(check_page: CheckPage, console: ConsoleServer) -> None:
    page = await check_page("/console/keys")
    await page.get_by_label("Name").fill("robot 7")
    await page.get_by_role("button", name="Create").click()
    await expect(page.get_by_text("1 to 64 letters, digits")).to_be_visible()
    await page.get_by_label("Name").fill("robot-7")
    await page.get_by_role("button", name="Create").click()
    secret = await page.get_by_label("The key robot-7").get_by_role("textbox").input_value()
    used = {"Authorization": f"Bearer {secret}"}
    assert (await console.api.client.get("/v1/tasks", headers=used)).status_code == 200
    assert (await console.api.client.get("/v1/keys", headers=used)).status_code == 403
    await page.goto("/console/keys")
    assert secret not in await page.content()
    row = page.get_by_role("row", name="robot-7")
    await row.get_by_role("button", name="Revoke").click()
    await page.get_by_role("dialog").get_by_role("button", name="Revoke").click()
    await expect(page.get_by_role("status")).to_contain_text("revoked the key robot-7")
    await expect(row).to_contain_text("revoked")
    assert (await console.api.client.get("/v1/tasks", headers=used)).status_code == 401

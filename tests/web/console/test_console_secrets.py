"""The page of secrets: what is bound to them, storing and deleting."""

import pytest
from playwright.async_api import expect

from tests.support.console_server import ConsoleServer
from tests.web.console.conftest import CheckPage

pytestmark = pytest.mark.slow  # in a browser


async def test_a_secret_is_stored_never_shown_and_deleted(check_page: CheckPage, console: ConsoleServer) -> None:
    bind = {"bind": {"add_entry": {"text": "secret:house-key"}}}
    assert (await console.api.client.patch("/v1/apis/ledger", json=bind)).status_code == 200
    page = await check_page("/console/secrets")
    row = page.get_by_role("row", name="house-key")
    await expect(row).to_contain_text("ledger.add_entry.text")
    await expect(row).to_contain_text("missing")
    await page.get_by_label("Name").fill("house-key")
    await page.get_by_label("Value").fill("under the third stone")
    await page.get_by_role("button", name="Store").click()
    await expect(page.get_by_role("status")).to_contain_text("stored the secret house-key")
    await expect(row).not_to_contain_text("missing")
    assert "third stone" not in await page.content()
    await row.get_by_role("button", name="Delete").click()
    dialog = page.get_by_role("dialog")
    await expect(dialog).to_contain_text("Calls that are bound to it fail")
    await dialog.get_by_role("button", name="Delete").click()
    await expect(row).to_contain_text("missing")
    assert (await console.api.client.patch("/v1/apis/ledger", json={"bind": {}})).status_code == 200
    await expect(page.get_by_role("status")).to_contain_text("deleted the secret house-key")

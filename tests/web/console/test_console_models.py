"""The page of hosted models: adding one with a probe, what is wrong with it, and removing it."""

import pytest
from playwright.async_api import expect

from tests.engine.test_hosted_models_api import KEY, Provider
from tests.web.console.conftest import CheckPage

pytestmark = pytest.mark.slow  # in a browser


async def test_a_model_is_added_probed_and_removed(check_page: CheckPage) -> None:
    provider = Provider()
    async with provider.listening() as url:
        page = await check_page("/console/models")
        for field, text in (("name", "wise"), ("url", url), ("model", "wise-1"), ("key", "sk-bad")):
            await page.locator(f"#{field}").fill(text)
        await page.get_by_role("button", name="Add").click()
        await expect(page.get_by_role("alert")).to_contain_text("refuses the key (401: Incorrect API key)")
        await page.locator("#key").fill(KEY)
        await page.get_by_label("Price of a million tokens of prompts").fill("2.5")
        await page.get_by_role("button", name="Add").click()
        await expect(page.get_by_role("status")).to_contain_text("added the model wise")
        row = page.get_by_role("row", name="wise-1")
        await expect(row).to_contain_text("2.5 in, 0 out")
        assert KEY not in await page.content()
        provider.key = "sk-another"
        await row.get_by_role("button", name="Probe").click()
        await expect(page.get_by_role("status")).to_contain_text("wise cannot be used: ")
        await expect(row).to_contain_text("refuses the key")
        await row.get_by_role("button", name="Remove").click()
        await page.get_by_role("dialog").get_by_role("button", name="Remove").click()
        await expect(page.get_by_role("status")).to_contain_text("removed the model wise")
        await expect(page.get_by_text("No hosted models.")).to_be_visible()

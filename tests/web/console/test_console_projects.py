"""The pages of projects: creating one, its settings, and deleting it."""

import pytest
from playwright.async_api import expect

from tests.support.console_server import ConsoleServer
from tests.web.console.conftest import CheckPage

pytestmark = pytest.mark.slow  # in a browser


async def test_a_project_is_created_set_up_and_deleted(check_page: CheckPage, console: ConsoleServer) -> None:
    page = await check_page("/console/projects")
    await page.get_by_label("Name").fill("demo")
    await page.get_by_role("button", name="Create").click()
    await expect(page.get_by_role("alert")).to_contain_text("exists already")
    await page.get_by_label("Name").fill("kitchen")
    await page.get_by_role("button", name="Create").click()
    await expect(page.get_by_role("status")).to_contain_text("created the project kitchen")

    page = await check_page("/console/projects/kitchen")
    await page.get_by_label("Skills").select_option("review")
    await page.get_by_label("Queued tasks").fill("12")
    await page.get_by_label("Holdout percent").fill("80")
    await page.get_by_role("button", name="Store").click()
    await expect(page.get_by_text("must be at most 50")).to_be_visible()
    await expect(page.get_by_label("Queued tasks")).to_have_value("12")
    await page.get_by_label("Holdout percent").fill("10")
    await page.get_by_label("Operations").fill('{"mail.*": "always"}')
    await page.get_by_role("button", name="Store").click()
    await expect(page.get_by_role("status")).to_contain_text("stored the settings")
    settings = (await console.api.client.get("/v1/projects/kitchen")).json()["settings"]
    assert (settings["skills"], settings["limits"]["queued_tasks"]) == ("review", 12)
    assert (settings["holdout_percent"], settings["approvals"]["operations"]) == (10.0, {"mail.*": "always"})
    await page.get_by_label("Operations").fill("")
    await page.get_by_role("button", name="Store").click()
    await expect(page.get_by_role("status")).to_contain_text("stored the settings")
    settings = (await console.api.client.get("/v1/projects/kitchen")).json()["settings"]
    assert settings["approvals"]["operations"] == {}

    await page.get_by_label("Type kitchen to confirm").fill("kitchen")
    await page.get_by_role("button", name="Delete for good").click()
    await expect(page.get_by_role("status")).to_contain_text("deleted the project kitchen")
    assert (await console.api.client.get("/v1/projects/kitchen")).status_code == 404


async def test_a_webhook_needs_its_secret(check_page: CheckPage, console: ConsoleServer) -> None:
    page = await check_page("/console/projects/demo")
    hook = page.get_by_role("group", name="Webhook")
    await hook.get_by_label("Url").fill("https://hooks.example/inbox")
    await page.get_by_role("button", name="Store").click()
    await expect(page.get_by_text("messages are signed with it").first).to_be_visible()
    await hook.get_by_label("Secret").fill("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    await page.get_by_role("button", name="Store").click()
    await expect(page.get_by_role("status")).to_contain_text("stored the settings")
    await hook.get_by_label("Url").fill("")
    await page.get_by_role("button", name="Store").click()
    await expect(page.get_by_role("status")).to_contain_text("stored the settings")
    assert (await console.api.client.get("/v1/projects/demo")).json()["settings"]["webhook"] is None

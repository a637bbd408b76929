"""The pages of APIs: adding one, its credentials, a call to test it, refreshing and deleting."""

from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest
from playwright.async_api import expect
from sqlalchemy import update

from app.apis import store as apis
from app.apis import trials
from app.apis.trials import Tried, TriedTurn
from app.db import tables
from app.db.tables import TrialState
from tests.support.console_server import ConsoleServer
from tests.support.page_checks import check_shown
from tests.web.console.conftest import CheckPage

pytestmark = pytest.mark.slow  # in a browser

_EVIL = "<img src=x onerror=alert(1)>"
_DOCUMENT = {
    "openapi": "3.1.0",
    "info": {"title": _EVIL, "version": "1", "description": f"**{_EVIL}**"},
    "servers": [{"url": "http://127.0.0.1:9"}],
    "security": [{"key": []}, {"login": []}],
    "components": {
        "securitySchemes": {
            "key": {"type": "apiKey", "in": "header", "name": "X-Key", "description": _EVIL},
            "login": {
                "type": "oauth2",
                "flows": {
                    "authorizationCode": {
                        "authorizationUrl": "https://login.example/authorize",
                        "tokenUrl": "https://login.example/token",
                        "scopes": {},
                    }
                },
            },
        }
    },
    "paths": {
        "/cups": {
            "get": {"operationId": "list_cups", "summary": f"all cups {_EVIL}"},
            "post": {"operationId": "break_cup", "summary": "breaks one", "x-risk": "high"},
        }
    },
}


async def test_an_api_is_added_by_a_file_given_credentials_tested_and_deleted(
    check_page: CheckPage, tmp_path: Path
) -> None:
    file = tmp_path / "cups.json"
    file.write_bytes(msgspec.json.encode(_DOCUMENT))
    page = await check_page("/console/apis/new-api")
    await page.get_by_label("Name").fill("cups")
    await page.get_by_role("button", name="Add").click()
    await expect(page.get_by_role("alert")).to_contain_text("send either")
    await page.get_by_label("or a file").set_input_files(file)
    await page.get_by_role("button", name="Add").click()
    await expect(page.get_by_role("status")).to_contain_text("Registered cups with 2 operations.")
    page = await check_page("/console/apis/cups")
    assert await page.locator("main img").count() == 0
    await expect(page.get_by_role("row", name="break_cup")).to_contain_text("high")

    key = page.get_by_role("region", name="Credentials key")
    await expect(key).to_contain_text("missing")
    await key.get_by_label("Key or token").fill("a-very-secret-key")
    await key.get_by_role("button", name="Store").click()
    await expect(key).to_contain_text("ready")
    assert "a-very-secret-key" not in await page.content()

    login = page.get_by_role("region", name="Credentials login")
    await login.get_by_label("Client id").fill("sage")
    await login.get_by_role("button", name="Store").click()
    await expect(login).to_contain_text("not authorized")
    await login.get_by_label("Principal").first.fill("bea")
    await login.get_by_role("button", name="Connect").click()
    await expect(page.get_by_text("to consent on behalf of bea")).to_be_visible()
    await page.get_by_role("link", name="back to cups").click()
    await login.get_by_role("button", name="Connect").click()
    await expect(page.get_by_text("on behalf of")).to_have_count(0)
    consent = page.get_by_role("link", name="Continue to login.example")
    assert (await consent.get_attribute("href") or "").startswith("https://login.example/authorize?")
    await check_shown(page)
    await page.get_by_role("link", name="back to cups").click()
    await login.get_by_text("Replace").click()
    await login.get_by_label("Client id").fill("sage")
    await login.locator("#login-principal").fill("noa")
    await login.get_by_role("button", name="Store").click()
    await page.get_by_role("button", name="Connect login for noa").click()
    await expect(page.get_by_text("on behalf of noa")).to_be_visible()
    await page.get_by_role("link", name="back to cups").click()
    await check_shown(page)

    await page.get_by_label("Search").fill("breaks")
    await expect(page.get_by_role("row", name="list_cups")).to_have_count(0)
    await page.get_by_label("Operation", exact=True).select_option("list_cups")
    await page.get_by_role("button", name="Call").click()
    await expect(page.get_by_label("Answer")).to_contain_text("did not answer")
    await page.get_by_role("button", name="Delete", exact=True).first.click()
    await page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    await expect(page.get_by_role("status")).to_contain_text("deleted the API cups")
    await expect(page.get_by_role("link", name="cups")).to_have_count(0)


async def test_apis_are_listed(check_page: CheckPage) -> None:
    page = await check_page("/console/apis")
    await page.get_by_role("link", name="ledger").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("ledger")


async def test_a_person_renames_hides_and_marks_an_operation(
    check_page: CheckPage, console: ConsoleServer
) -> None:
    await _add_cups(console, "mugs")
    page = await check_page("/console/apis/mugs/operations/break_cup")
    await page.get_by_label("Name").fill("list_cups")
    await page.get_by_role("button", name="Save").click()
    await expect(page.get_by_text("'list_cups' is the name of")).to_be_visible()
    await page.get_by_label("Name").fill("smash_cup")
    await page.get_by_label("Description").fill("Smashes one.")
    await page.get_by_label("Effect").select_option("only reads")
    await page.get_by_label("Approval").select_option("every call waits for a person")
    await page.get_by_role("button", name="Save").click()
    await expect(page.get_by_role("status")).to_contain_text("changed smash_cup")
    row = page.get_by_role("region", name="Operations", exact=True).get_by_role("row", name="smash_cup")
    for text in ("Smashes one.", "only reads", "always"):
        await expect(row).to_contain_text(text)
    await row.get_by_role("link", name="Change smash_cup").click()
    await expect(page.get_by_label("Description")).to_have_value("Smashes one.")
    await page.get_by_label("Name").fill("")
    await page.get_by_label("Effect").select_option("as the document says")
    await page.get_by_label("Hide it from the agent").check()
    await page.get_by_role("button", name="Save").click()
    page = await check_page("/console/apis/mugs")
    own = page.get_by_role("region", name="Set by people").get_by_role("row", name="break_cup")
    await expect(own).to_contain_text("description, hidden, approval")
    await expect(page.get_by_role("region", name="Operations", exact=True)).not_to_contain_text("break_cup")


async def test_a_document_that_cannot_be_read_is_told(check_page: CheckPage, console: ConsoleServer) -> None:
    await _add_cups(console, "shards")
    broken = update(tables.Api).where(tables.Api.name == "shards").values(document={"swagger": "1"}, digest="0")
    async with console.api.sessions.begin() as session:
        await session.execute(broken)
    page = await check_page("/console/apis/shards")
    await expect(page.get_by_role("alert")).to_contain_text("Its document cannot be read: ")
    await page.get_by_role("button", name="Delete", exact=True).first.click()
    await page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    await expect(page.get_by_role("status")).to_contain_text("deleted the API shards")


async def _add_cups(console: ConsoleServer, name: str) -> None:
    answer = await console.api.client.post(
        "/v1/apis", json={"name": name, "document": _DOCUMENT, "project": "demo", "naming": "operation_id"}
    )
    assert answer.status_code == 201, answer.text


async def test_the_trial_of_an_api_is_shown_as_it_goes_and_run_again(
    check_page: CheckPage, console: ConsoleServer
) -> None:
    async with console.api.sessions.begin() as session:
        api = await apis.get(session, console.api.demo.id, "ledger", document=False)
        trial = await trials.renew(session, console.api.demo.id, api.id)
    page = await check_page("/console/apis/ledger")
    shown = page.get_by_role("region", name="Trial", exact=True)
    await expect(shown).to_contain_text("waiting")
    turns = (TriedTurn(f"print('{_EVIL}')", "an observation"),)
    tried = Tried(question="How many entries?", right=3, given="none", correct=False, calls=1, turns=turns)
    async with console.api.sessions.begin() as session:
        trial = await session.get_one(tables.ApiTrial, api.id)
        trial.state, trial.finished_at = TrialState.DONE, datetime.now(UTC)
        trial.questions = msgspec.to_builtins([tried])
    await expect(shown).to_contain_text("0 of 1 questions answered right")
    await expect(shown).to_contain_text("only one question could be made: add a hosted model")
    await shown.get_by_text("what the agent did").click()
    await expect(shown).to_contain_text("an observation")
    assert await page.locator("main img").count() == 0
    await check_page("/console/apis/ledger")
    page = await check_page("/console/apis")
    await expect(page.get_by_role("row", name="ledger")).to_contain_text("0 of 1")
    page = await check_page("/console/apis/ledger")
    await shown.get_by_role("button", name="Try it again").click()
    await expect(page.get_by_role("status")).to_contain_text("ledger will be tried")
    await expect(shown).to_contain_text("waiting")


async def test_an_apis_page_says_what_can_be_practised_and_compares(
    check_page: CheckPage, console: ConsoleServer
) -> None:
    await _add_cups(console, "mugs")
    page = await check_page("/console/apis/mugs")
    shown = page.get_by_role("region", name="Practice", exact=True)
    await expect(shown).to_contain_text("Nothing can be practised")
    await shown.get_by_text("Why 2 cannot be practised").click()
    await expect(shown.get_by_role("row", name="break_cup")).to_contain_text("POST /cups")
    await shown.get_by_role("button", name="Use what it answers, too").click()
    await expect(page.get_by_role("status")).to_contain_text("made of its document and what it answers")
    await shown.get_by_role("button", name="Compare with the real API").click()
    await expect(page.get_by_role("status")).to_contain_text("1 call to mugs: 0 differences from its document")
    await shown.get_by_text("What was not read").click()
    await expect(shown).to_contain_text("GET /cups was not read")
    await check_shown(page)
    assert await page.locator("main img").count() == 0

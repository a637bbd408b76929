"""An approval whose call cannot be decrypted here: it is shown as that, beside the others, and can be refused."""

from collections.abc import AsyncIterator

import pytest
from sqlalchemy import update

from app.base.encryption import KeyRing
from app.db import tables
from app.db.database import Sessions
from tests.apis.test_approvals_api import waiting
from tests.support.api_app import ApiApp, open_api_app, problem
from tests.support.console_pages import read_page
from tests.support.every_row import every_row

MISSING = "what it would send cannot be read: it was encrypted with the key "


@pytest.fixture
async def api(committed: Sessions, database_url: str) -> AsyncIterator[ApiApp]:
    async with open_api_app(committed, database_url) as opened:
        yield opened


async def _lose_key(api: ApiApp, row: tables.Approval) -> None:
    sealed = KeyRing(["a key that only another host has"]).encrypt("{}")
    async with api.sessions.begin() as session:
        await session.execute(update(tables.Approval).where(tables.Approval.id == row.id).values(shown=sealed))


async def test_a_call_that_cannot_be_read_is_shown_as_that_and_can_only_be_refused(api: ApiApp) -> None:
    lost = await waiting(api, api.demo)
    await _lose_key(api, lost)
    path = f"/v1/approvals/{lost.id}"
    shown = (await api.client.get(path)).json()
    assert shown["arguments"] == {"to": "iris", "password": "***"}
    assert shown["failure"].startswith(MISSING)
    answer = await api.client.post(path, json={"decision": "approve"})
    assert (answer.status_code, MISSING in str(problem(answer)["detail"])) == (409, True)
    assert (await api.client.get(path)).json()["state"] == "waiting"
    answer = await api.client.post(path, json={"decision": "refuse"})
    assert (answer.status_code, answer.json()["state"], answer.json()["failure"]) == (200, "refused", None)
    answer = await api.client.post(path, json={"decision": "approve"})
    assert "is already refused" in str(problem(answer)["detail"])


async def test_the_pages_show_it_beside_the_others_without_the_button_that_approves(api: ApiApp) -> None:
    lost, other = await waiting(api, api.demo), await waiting(api, api.demo)
    await _lose_key(api, lost)
    with every_row() as row:
        for address, approves in (
            ("/console/approvals", 1),
            (f"/console/approvals/{lost.id}", 0),
            (f"/console/approvals/{other.id}", 1),
        ):
            with row(address):
                page = await read_page(api, address, "admin")
                assert page.count(">Approve</button>") == approves
                assert page.count(">Refuse</button>") == approves + page.count(MISSING)
    assert "mail.send" in await read_page(api, f"/console/tasks/{lost.task_id}", "admin")

"""The office suite over HTTP enforces its rules, and a refusal names the remedy."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from litestar.testing import AsyncTestClient

from app.apis.documents.protocols import parse_document
from app.base.values import Json
from trainer.worlds.office.apps import APP_NAMES, Site, document
from trainer.worlds.office.services import create_services
from trainer.worlds.office.worlds import Worlds

ADMIN = {"Authorization": "Bearer secret"}
MAIL = {"login": "sign_in", "list": "browse_mails", "show": "get_mail", "prepare": "unlock_mail"}
WORLD = "t0-s1-d0-0-xa"  # archive all mails from somebody, at site 0


@pytest.fixture
async def client() -> AsyncIterator[AsyncTestClient[Any]]:
    async with AsyncTestClient(create_services("secret", Worlds())) as client:
        yield client


class Mailbox:
    """The mails of one world at site 0, spoken to over HTTP."""

    def __init__(self, client: AsyncTestClient[Any], world: str = "demo") -> None:
        self._client = client
        self._base = f"/sites/0/worlds/{world}"
        self._token = ""

    async def log_in(self) -> "Mailbox":
        passwords = (await self._client.get(f"{self._base}/supervisor/show_passwords")).json()
        body = {"password": passwords["mail"]}
        self._token = (await self._client.post(f"{self._base}/mail/sign_in", json=body)).json()["access_token"]
        return self

    async def get(self, operation: str, **query: int) -> httpx.Response:
        url = f"{self._base}/mail/{operation}"
        return await self._client.get(url, params=query, headers={"access_token": self._token})

    async def post(self, operation: str, **body: Json) -> httpx.Response:
        url = f"{self._base}/mail/{operation}"
        return await self._client.post(url, json=body, headers={"access_token": self._token})

    async def pages(self) -> list[list[dict[str, Json]]]:
        found, page = [], 1
        while rows := (await self.get("browse_mails", page=page)).json():
            found.append(rows)
            page += 1
        return found


@pytest.fixture
async def mails(client: AsyncTestClient[Any]) -> Mailbox:
    return await Mailbox(client).log_in()


def test_site_0_has_the_names_that_these_tests_use() -> None:
    mail = Site.of(0).apps["mail"]
    assert {role: mail.names[role] for role in MAIL} == MAIL  # type: ignore[index]
    assert (mail.first_page, mail.hidden, mail.guarded) == (1, "label", "act3")
    assert mail.names["act3"] == "flag_mail"
    assert Site.of(0).apps["notes"].first_page == 0


async def test_pages_hold_four_items_and_end_with_an_empty_one(mails: Mailbox) -> None:
    pages = await mails.pages()
    assert [len(page) for page in pages] == [4] * 10 + [2]
    assert len({row["id"] for page in pages for row in page}) == 42


async def test_page_0_is_refused_where_pages_start_at_1(mails: Mailbox) -> None:
    answer = await mails.get("browse_mails", page=0)
    assert (answer.status_code, answer.json()) == (422, {"message": "pages start at 1"})


async def test_only_looking_up_an_item_returns_the_hidden_field(mails: Mailbox) -> None:
    row = (await mails.get("browse_mails", page=1)).json()[0]
    item = (await mails.get("get_mail", id=row["id"])).json()
    assert list(row) == ["id", "sender", "weight"]
    assert list(item) == ["id", "sender", "tray", "weight"]
    assert item == {**row, "tray": item["tray"]}


async def test_a_guarded_act_needs_the_preparing_operation_on_that_very_item(mails: Mailbox) -> None:
    refused = await mails.post("flag_mail", id=101)
    assert (refused.status_code, refused.json()) == (409, {"message": "call unlock_mail first"})
    await mails.post("unlock_mail", id=102)
    assert (await mails.post("flag_mail", id=101)).status_code == 409
    assert (await mails.post("flag_mail", id=102)).status_code == 204
    assert (await mails.post("store_mail", id=101)).status_code == 204


async def test_a_deleted_item_leaves_a_gap_until_the_next_log_in(mails: Mailbox) -> None:
    before = await mails.pages()
    for row in before[0][:3]:
        assert (await mails.post("delete_mail", id=row["id"])).status_code == 204
    after = await mails.pages()
    assert after == [before[0][3:], *before[1:]]
    fresh = await (await mails.log_in()).pages()
    assert fresh[0] == [before[0][3], *before[1][:3]]


async def test_a_deleted_item_is_gone(mails: Mailbox) -> None:
    await mails.post("delete_mail", id=101)
    answer = await mails.get("get_mail", id=101)
    assert (answer.status_code, answer.json()) == (404, {"message": "no mail 101"})


@pytest.mark.parametrize(
    ("operation", "body", "status", "message"),
    [
        ("sign_in", {"password": "guess"}, 401, "wrong password"),
        ("store_mail", {"id": 1}, 404, "no mail 1"),
        ("store_mail", {"id": "x"}, 422, "id is not a number"),
        ("store_mail", {"id": True}, 422, "id is not a number"),
        ("store_mail", {}, 422, "id is not a number"),
        ("archive_mail", {"id": 101}, 404, "no operation archive_mail in mail"),
        ("get_mail", {"id": 101}, 405, "get_mail is not a POST"),
    ],
)
async def test_a_refusal_names_the_remedy(
    mails: Mailbox, operation: str, body: dict[str, Json], status: int, message: str
) -> None:
    answer = await mails.post(operation, **body)
    assert (answer.status_code, answer.json()) == (status, {"message": message})


async def test_a_token_is_valid_for_one_app_of_one_world(client: AsyncTestClient[Any]) -> None:
    stranger = Mailbox(client)
    assert (await stranger.get("browse_mails", page=1)).json() == {"message": "wrong access_token"}
    stranger._token = (await Mailbox(client, WORLD).log_in())._token
    assert (await stranger.get("browse_mails", page=1)).status_code == 401


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/sites/0/worlds/nowhere/mail/get_mail", "no world nowhere, ask /admin/scenarios for some"),
        ("/sites/1/worlds/demo/supervisor/show_profile", "world demo is at site 0, not at 1"),
        ("/sites/0/worlds/demo/supervisor/complete_task", "no operation complete_task in supervisor"),
        (
            "/sites/0/garden/openapi.json",
            "no app garden, there are mail, notes, calendar, music, payments, files, ",
        ),
        ("/elsewhere", "not found"),
    ],
)
async def test_an_unknown_address_is_a_404(client: AsyncTestClient[Any], path: str, message: str) -> None:
    answer = await client.get(path)
    assert answer.status_code == 404
    assert answer.json()["message"].startswith(message)


@pytest.mark.parametrize("body", [b"", b"[1]", b"{"])
async def test_a_body_that_is_no_object_is_refused(client: AsyncTestClient[Any], body: bytes) -> None:
    answer = await client.post("/sites/0/worlds/demo/mail/sign_in", content=body)
    assert (answer.status_code, answer.json()) == (422, {"message": "the body is not a json object"})


async def test_the_members_of_a_group_are_looked_up_in_contacts(client: AsyncTestClient[Any]) -> None:
    site, base = Site.of(0), "/sites/0/worlds/demo"
    passwords = (await client.get(f"{base}/supervisor/show_passwords")).json()
    login = await client.post(f"{base}/contacts/{site.contacts_login}", json={"password": passwords["contacts"]})
    url = f"{base}/contacts/{site.members}"
    assert (await client.get(url, params={"group": "family"})).status_code == 401
    members = (await client.get(url, params={"group": "family"}, headers=login.json())).json()
    assert members == [{site.member: "iris"}, {site.member: "maya"}]
    missing = await client.get(url, params={"group": "foes"}, headers=login.json())
    assert (missing.status_code, missing.json()) == (404, {"message": "no group foes"})


async def test_the_documents_are_served_with_the_site_filled_in(client: AsyncTestClient[Any]) -> None:
    for app in APP_NAMES:
        published = (await client.get(f"/sites/0/{app}/openapi.json")).json()
        assert published == document(Site.of(0), app, str(client.base_url))
        assert published["servers"][0]["url"].endswith(f"/sites/0/worlds/{{world}}/{app}")
        assert parse_document(app, published).variables == {"world": "demo"}

"""Credentials of APIs over REST: people consent, what is incomplete is refused, and a call shows what works."""

from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from app.apis import store as apis
from app.apis.calls.network import open_client
from app.apis.credentials import store as credentials
from app.db.database import Sessions
from tests.support.api_app import ApiApp, open_api_app
from tests.support.echo_service import raised
from tests.support.lost_connection import lose_connection
from tests.support.secured_service import CLIENT, KEY, SECRET, SecuredService
from tests.support.vault_api import STATIC, connect, credentials_of, gateway, register


@pytest.fixture
async def api(committed: Sessions, database_url: str) -> AsyncIterator[ApiApp]:
    async with open_api_app(committed, database_url) as opened:
        yield opened


@pytest.fixture
async def service() -> AsyncIterator[SecuredService]:
    opened = SecuredService()
    async with opened.listening():
        yield opened


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    async with open_client(allow_private_hosts=True) as opened:
        yield opened


@pytest.mark.parametrize("way", ["person", "openid"])
async def test_a_person_consents_and_their_tasks_use_their_own_connection(
    api: ApiApp, service: SecuredService, client: httpx.AsyncClient, way: str
) -> None:
    found = await register(api, service, credentials={way: {"client_id": CLIENT, "client_secret": SECRET}})
    assert found[way]["state"] == "not_authorized"
    error = await raised(await gateway(api, service, client), f"vault.who_{way}")
    assert error.message == f"vault is not connected: a person has to authorise {way} first"
    page = await connect(api, service, way, principal="noa")
    assert (page.status_code, "Connected" in page.text) == (200, True)
    calls = await gateway(api, service, client, principal="noa")
    assert (await calls(f"vault.who_{way}", [], {}))["user"] == "a person"
    assert (await raised(await gateway(api, service, client), f"vault.who_{way}")).kind == "ApiError"
    listed = (await api.client.get("/v1/apis/vault/credentials")).json()
    assert {each["principal"]: each["state"] for each in listed} == {"": "not_authorized", "noa": "ready"}

    service.expire()
    calls = await gateway(api, service, client, principal="noa")
    assert (await calls(f"vault.who_{way}", [], {}))["user"] == "a person"
    assert service.asked["refresh_token"] == 1
    service.expire()
    service.refresh_tokens.clear()
    error = await raised(await gateway(api, service, client, principal="noa"), f"vault.who_{way}")
    assert error.message == f"vault is not connected for noa: a person has to authorise {way} first"
    gone = await api.client.delete(f"/v1/apis/vault/credentials/{way}", params={"principal": "noa"})
    assert gone.status_code == 204


async def test_who_is_asked_to_consent_works_with_what_all_share_until_then(
    api: ApiApp, service: SecuredService, client: httpx.AsyncClient
) -> None:
    await register(api, service, credentials={"person": {"client_id": CLIENT, "client_secret": SECRET}})
    await connect(api, service, "person")
    for _ in range(2):
        asked = await api.client.get("/v1/apis/vault/authorize", params={"scheme": "person", "principal": "noa"})
        back = service.consent(asked.json()["url"])
        assert (await (await gateway(api, service, client, principal="noa"))("vault.who_person", [], {}))["user"]
    refused = {"state": back["state"], "error": "access_denied"}
    assert (await api.client.get("/oauth/callback", params=refused)).status_code == 400
    assert (await (await gateway(api, service, client, principal="noa"))("vault.who_person", [], {}))["user"]
    listed = (await api.client.get("/v1/apis/vault/credentials")).json()
    assert {each["principal"]: each["state"] for each in listed} == {"": "ready", "noa": "not_authorized"}
    await connect(api, service, "person", principal="noa")
    listed = (await api.client.get("/v1/apis/vault/credentials")).json()
    assert {each["principal"]: each["state"] for each in listed} == {"": "ready", "noa": "ready"}


async def test_a_connection_to_the_database_that_is_lost_loses_no_consent(
    api: ApiApp, service: SecuredService
) -> None:
    await register(api, service, credentials={"person": {"client_id": CLIENT}})
    lost = lose_connection(api.sessions, "UPDATE api_credentials SET value=")
    assert "Connected" in (await connect(api, service, "person")).text
    assert (await credentials_of(api))["person"]["state"] == "ready"
    assert len(lost) == 1


async def test_an_address_of_consent_is_good_for_one_return(api: ApiApp, service: SecuredService) -> None:
    await register(api, service, credentials={"person": {"client_id": CLIENT}})
    asked = await api.client.get("/v1/apis/vault/authorize")
    back = service.consent(asked.json()["url"])
    for params, status in (
        ({"state": back["state"]}, 400),
        ({"state": "guessed", "code": back["code"]}, 400),
        ({"state": back["state"], "code": back["code"]}, 200),
        ({"state": back["state"], "code": back["code"]}, 400),
        ({"state": back["state"], "error": "<script>"}, 400),
    ):
        page = await api.client.get("/oauth/callback", params=params)
        assert page.status_code == status, page.text
        assert "<script>" not in page.text


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        ({"header_key": {"username": "iris"}}, "credentials.header_key: api_key needs `value`"),
        ({"basic": {"username": "iris"}}, "credentials.basic: basic needs `password`"),
        (
            {"client": {"client_id": CLIENT}},
            "give `client_id` and `client_secret` for the grant client_credentials",
        ),
        ({"person": {}}, "credentials.person: give `client_id` for the grant authorization_code"),
        ({"unknown": {"value": KEY}}, "credentials.unknown: the document declares no scheme of this name"),
        ({"own": {"value": KEY, "place": "header", "name": "Content-Length"}}, "cannot be the name of a header"),
        ({"basic": {"username": "iris", "password": "a\nb"}}, "credentials"),
    ],
)
async def test_incomplete_credentials_are_refused_by_field_and_nothing_is_stored(
    api: ApiApp, service: SecuredService, sent: dict[str, Any], reason: str
) -> None:
    body = {"name": "vault", "document": service.document(), "credentials": sent}
    answer = await api.client.post("/v1/apis", json=body)
    assert answer.status_code == 400
    assert reason in answer.text
    assert (await api.client.get("/v1/apis/vault")).status_code == 404


async def test_a_document_that_changes_does_not_get_the_secret_of_the_client(
    api: ApiApp, service: SecuredService, client: httpx.AsyncClient
) -> None:
    await register(api, service, credentials={"client": STATIC["client"]})
    document = service.document()
    flows = document["components"]["securitySchemes"]["client"]["flows"]
    flows["clientCredentials"]["tokenUrl"] = "http://127.0.0.1:9/steal"
    changed = await api.client.post("/v1/apis", json={"name": "vault", "document": document})
    assert changed.status_code == 201
    calls = await gateway(api, service, client)
    assert (await calls("vault.who_client", [], {}))["user"] == "the client"


async def test_a_client_asks_itself_for_the_scopes_that_its_token_lacks(
    api: ApiApp, service: SecuredService, client: httpx.AsyncClient
) -> None:
    await register(api, service, credentials={"client": STATIC["client"]})
    calls = await gateway(api, service, client)
    assert (await calls("vault.who_client", [], {}))["user"] == "the client"
    service.required = "mail.read"
    assert (await calls("vault.who_client", [], {}))["user"] == "the client"
    assert list(service.scopes.values()) == [["mail.write"], ["mail.write", "mail.read"]]
    service.expire()
    assert (await (await gateway(api, service, client))("vault.who_client", [], {}))["user"] == "the client"
    assert (await credentials_of(api))["client"]["state"] == "ready"

    service.required = service.withheld = "mail.delete"
    error = await raised(await gateway(api, service, client), "vault.who_client")
    assert error.message.startswith("Response status code is 403")
    service.required = "mail.read"
    service.expire()
    assert (await (await gateway(api, service, client))("vault.who_client", [], {}))["user"] == "the client"


async def test_what_an_authorization_server_says_is_recorded_without_secrets(
    api: ApiApp, service: SecuredService, client: httpx.AsyncClient
) -> None:
    wrong = {"client_id": CLIENT, "client_secret": "wr0ng-secret", "client_auth": "post"}
    await register(api, service, credentials={"client": wrong})
    error = await raised(await gateway(api, service, client), "vault.who_client")
    shown = (await credentials_of(api))["client"]
    assert shown["state"] == "not_authorized"
    assert "invalid_client" in shown["failure"]
    assert "wr0ng-secret" not in error.message + shown["failure"]


@pytest.mark.parametrize(
    ("sent", "operation", "ok", "text"),
    [
        ({}, "who_header_key", True, '"iris"'),
        ({"operation": "who_header_key"}, "who_header_key", True, '"iris"'),
        ({"operation": "who_basic"}, "who_basic", False, "Response status code is 401"),
    ],
)
async def test_one_call_shows_whether_an_api_answers(
    api: ApiApp, service: SecuredService, sent: dict[str, str], operation: str, ok: bool, text: str
) -> None:
    await register(api, service, credentials={"header_key": {"value": KEY}})
    answer = await api.client.post("/v1/apis/vault/test", json=sent)
    assert answer.status_code == 200, answer.text
    shown = answer.json()
    assert (shown["operation"], shown["ok"]) == (operation, ok)
    assert text in (shown["answer"] or shown["error"])
    assert KEY not in answer.text


@pytest.mark.parametrize(
    ("stored", "operation", "sent"),
    [
        ({"header_key": {"value": "wr0ng-key-1234"}}, "who_header_key", ["header_key"]),
        ({"login": STATIC["login"] | {"password": "wr0ng"}}, "who_login", []),
        ({}, "who_basic", []),
    ],
)
async def test_a_test_call_is_one_that_fails_without_the_right_credentials(
    api: ApiApp, service: SecuredService, stored: dict[str, Any], operation: str, sent: list[str]
) -> None:
    await register(api, service, credentials=stored)
    shown = (await api.client.post("/v1/apis/vault/test", json={})).json()
    assert (shown["operation"], shown["ok"], shown["credentials"]) == (operation, False, sent)


async def test_a_test_call_names_the_credentials_that_it_sent(api: ApiApp, service: SecuredService) -> None:
    service.issued[KEY] = "iris"
    await register(api, service, bearer_token=KEY)
    for operation, ok in (("", True), ("who_bearer", True), ("who_basic", False)):
        shown = (await api.client.post("/v1/apis/vault/test", json={"operation": operation})).json()
        assert (shown["ok"], shown["credentials"]) == (ok, ["bearer_token"]), shown


async def test_a_test_call_only_reads(api: ApiApp, service: SecuredService) -> None:
    await register(api, service)
    for sent, reason in (
        ({"operation": "write"}, "operation: write changes things (POST)"),
        ({"operation": "wipe"}, "vault has no operation 'wipe'"),
        ({"operation": "open", "arguments": {"a": 1}}, "arguments: "),
    ):
        answer = await api.client.post("/v1/apis/vault/test", json=sent)
        assert (answer.status_code, reason in answer.text) == (400, True), answer.text
    assert service.writes == 0


async def test_credentials_are_encrypted_and_end_with_their_api(api: ApiApp, service: SecuredService) -> None:
    await register(api, service, credentials={"header_key": {"value": KEY}})
    async with api.sessions() as session:
        row = await apis.get(session, api.demo.id, "vault")
        stored = await credentials.of_api(session, row.id)
    assert KEY not in (stored[0].value or "")
    assert (await api.client.delete("/v1/apis/vault")).status_code == 204
    async with api.sessions() as session:
        assert not await credentials.of_api(session, row.id)
    unknown = await api.client.delete("/v1/apis/vault/credentials/header_key")
    assert unknown.status_code == 404


async def test_a_person_is_sent_back_to_this_server_whatever_a_request_names_as_its_host(
    api: ApiApp, service: SecuredService
) -> None:
    await register(api, service, credentials={"person": {"client_id": CLIENT, "client_secret": SECRET}})
    forged = {"Host": "evil.test", "X-Forwarded-Host": "evil.test", "Forwarded": "host=evil.test"}
    asked = await api.client.get("/v1/apis/vault/authorize", params={"scheme": "person"}, headers=forged)
    back = parse_qs(urlsplit(asked.json()["url"]).query)["redirect_uri"]
    assert back == ["http://test/oauth/callback"]
    about = (await api.client.get("/oauth/client.json", headers=forged)).json()
    assert about["redirect_uris"] == back
    assert "evil.test" not in str(about)

"""Credentials of APIs by security scheme: stored, shown, sent, renewed, and never seen."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from app.apis.api_documents import parse_document
from app.apis.catalog import Catalog
from app.credentials.stored_credentials import StoredCredentials
from app.db import api_credentials, apis
from app.db.database import Sessions
from app.gateway.gateway import Gateway
from app.gateway.http_client import open_client
from app.release import manifest
from tests.api_app import ApiApp, open_api_app
from tests.echo_service import raised
from tests.secured_service import CLIENT, KEY, PASSWORD, SECRET, WAYS, SecuredService

STATIC: dict[str, dict[str, Any]] = {
    "header_key": {"value": KEY},
    "query_key": {"value": KEY},
    "cookie_key": {"value": KEY},
    "basic": {"username": "iris", "password": PASSWORD},
    "bearer": {"value": KEY},
    "token": {"value": KEY},
    "client": {"client_id": CLIENT, "client_secret": SECRET},
    "login": {"username": "iris", "password": PASSWORD},
}


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


async def register(api: ApiApp, service: SecuredService, **fields: Any) -> dict[str, Any]:
    sent = {"name": "vault", "document": service.document(), **fields}
    answer = await api.client.post("/v1/apis", json=sent)
    assert answer.status_code == 201, answer.text
    return {each["scheme"]: each for each in answer.json()["credentials"]}


async def credentials_of(api: ApiApp) -> dict[str, Any]:
    shown = await api.client.get("/v1/apis/vault")
    assert shown.status_code == 200, shown.text
    return {each["scheme"]: each for each in shown.json()["credentials"]}


async def gateway(
    api: ApiApp, service: SecuredService, client: httpx.AsyncClient, principal: str = "", **rules: Any
) -> Gateway:
    """As a runner opens it for a task of the principal."""
    async with api.sessions() as session:
        documents = [
            await manifest.api_document(session, row) for row in await apis.of_project(session, api.demo.id)
        ]
    credentials = StoredCredentials(api.sessions, client, documents, principal)
    catalog = Catalog({"vault": parse_document("vault", service.document())})
    return Gateway(catalog, client, credentials=credentials, **rules)


async def connect(api: ApiApp, service: SecuredService, scheme: str, **params: str) -> httpx.Response:
    """As a person does: open the address, consent, and come back."""
    asked = await api.client.get("/v1/apis/vault/authorize", params={"scheme": scheme, **params})
    assert asked.status_code == 200, asked.text
    back = service.consent(asked.json()["url"])
    assert back.pop("callback").endswith("/oauth/callback")
    return await api.client.get("/oauth/callback", params=back, headers={"Authorization": ""})


async def test_registration_says_what_is_missing_by_the_field_to_send(
    api: ApiApp, service: SecuredService
) -> None:
    found = await register(api, service)
    assert set(found) == set(WAYS)
    assert {each["state"] for each in found.values()} == {"missing"}
    assert found["header_key"]["send"] == "`value`: the key for the header X-Api-Key"
    assert found["header_key"]["description"] == "from your profile"
    assert found["basic"]["send"] == "`username` and `password`"
    assert found["client"]["send"] == "`client_id` and `client_secret`; or a token as `value`"


@pytest.mark.parametrize("way", STATIC)
async def test_each_way_identifies_the_caller_and_no_value_is_seen(
    api: ApiApp, service: SecuredService, client: httpx.AsyncClient, way: str
) -> None:
    found = await register(api, service, credentials={way: STATIC[way]})
    assert found[way]["state"] == "ready"
    calls = await gateway(api, service, client)
    answer = await calls(f"vault.who_{way}", [], {})
    assert answer["user"] in ("iris", "the client")
    assert await calls("vault.open", [], {}) == [""], "an operation without security gets none"
    other = next(each for each in WAYS if each != way)
    error = await raised(calls, f"vault.who_{other}")
    assert error.message.startswith("Response status code is 401")
    seen = repr((answer, error.message, calls.take_calls(), await credentials_of(api)))
    assert not [secret for secret in (KEY, PASSWORD, SECRET, "access-1") if secret in seen]
    shown = (await credentials_of(api))[way]
    assert shown["state"] == "ready"
    assert shown["used_at"] is not None


async def test_an_api_that_declares_nothing_gets_what_its_owner_says(
    api: ApiApp, service: SecuredService, client: httpx.AsyncClient
) -> None:
    document = service.document()
    del document["components"]
    sent = {"mine": {"value": KEY, "place": "header", "name": "X-Api-Key"}}
    answer = await api.client.post("/v1/apis", json={"name": "vault", "document": document, "credentials": sent})
    assert answer.status_code == 201, answer.text
    calls = await gateway(api, service, client)
    assert (await calls("vault.who_header_key", [], {}))["user"] == "iris"


async def test_an_expired_token_is_renewed_once_by_all_and_the_call_that_reads_repeated(
    api: ApiApp, service: SecuredService, client: httpx.AsyncClient
) -> None:
    await register(api, service, credentials={"client": STATIC["client"]})
    many = [await gateway(api, service, client) for _ in range(8)]
    service.slow = 0.3
    answers = await asyncio.gather(*(each("vault.who_client", [], {}) for each in many))
    assert [each["user"] for each in answers] == ["the client"] * 8
    assert service.asked["client_credentials"] == 1
    many = [await gateway(api, service, client) for _ in range(8)]
    await asyncio.gather(*(each("vault.open", [], {}) for each in many))  # all know the same token
    service.expire()
    answers = await asyncio.gather(*(each("vault.who_client", [], {}) for each in many))
    assert [each["user"] for each in answers] == ["the client"] * 8
    assert service.asked["client_credentials"] == 2
    shown = (await credentials_of(api))["client"]
    assert (shown["state"], shown["failure"]) == ("ready", None)


async def test_a_call_that_writes_is_not_repeated(
    api: ApiApp, service: SecuredService, client: httpx.AsyncClient
) -> None:
    await register(api, service, credentials={"client": STATIC["client"]})
    await (await gateway(api, service, client))("vault.write", [], {})
    service.expire()
    calls = await gateway(api, service, client)
    error = await raised(calls, "vault.write")
    assert "the credentials have been renewed since: call it again" in error.message
    assert await calls("vault.write", [], {}) == {"writes": 2}


async def test_a_token_is_renewed_before_it_expires(
    api: ApiApp, service: SecuredService, client: httpx.AsyncClient
) -> None:
    service.lifetime = 10
    await register(api, service, credentials={"login": STATIC["login"]})
    for expected in ({"password": 1}, {"password": 1, "refresh_token": 1}):
        calls = await gateway(api, service, client)
        assert (await calls("vault.who_login", [], {}))["user"] == "iris"
        assert dict(service.asked) == expected


async def test_credentials_that_the_api_refuses_are_shown_as_failing(
    api: ApiApp, service: SecuredService, client: httpx.AsyncClient
) -> None:
    await register(api, service, credentials={"header_key": {"value": "wr0ng-key-1234"}})
    calls = await gateway(api, service, client)
    await raised(calls, "vault.who_header_key")
    shown = (await credentials_of(api))["header_key"]
    assert shown["state"] == "failing"
    assert shown["failure"].startswith("Response status code is 401")
    assert "wr0ng-key-1234" not in shown["failure"]
    stored = await api.client.put("/v1/apis/vault/credentials/header_key", json={"value": KEY})
    assert (stored.json()["state"], stored.json()["failure"]) == ("ready", None)
    assert (await (await gateway(api, service, client))("vault.who_header_key", [], {}))["user"] == "iris"


async def test_the_use_and_failure_of_a_static_token_are_recorded(
    api: ApiApp, service: SecuredService, client: httpx.AsyncClient
) -> None:
    found = await register(api, service, bearer_token="wr0ng-token-12")
    assert found["bearer_token"]["state"] == "ready"
    assert set(found) == {"bearer_token", "header_key", "query_key", "cookie_key", "basic"}
    await raised(await gateway(api, service, client), "vault.who_bearer")
    assert (await credentials_of(api))["bearer_token"]["state"] == "failing"
    await api.client.patch("/v1/apis/vault", json={"bearer_token": KEY})
    assert (await credentials_of(api))["bearer_token"]["state"] == "ready"
    assert (await (await gateway(api, service, client))("vault.who_bearer", [], {}))["user"] == "iris"
    assert (await credentials_of(api))["bearer_token"]["used_at"] is not None


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


async def test_what_an_authorization_server_says_is_recorded_without_secrets(
    api: ApiApp, service: SecuredService, client: httpx.AsyncClient
) -> None:
    wrong = {"client_id": CLIENT, "client_secret": "wr0ng-secret", "client_auth": "post"}
    await register(api, service, credentials={"client": wrong})
    error = await raised(await gateway(api, service, client), "vault.who_client")
    shown = (await credentials_of(api))["client"]
    assert shown["state"] == "not_authorized"
    assert "invalid_grant" in shown["failure"]
    assert "wr0ng-secret" not in error.message + shown["failure"]


@pytest.mark.parametrize(
    ("sent", "operation", "ok", "text"),
    [
        ({}, "open", True, '[""]'),
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
        stored = await api_credentials.of_api(session, row.id)
    assert KEY not in (stored[0].value or "")
    assert (await api.client.delete("/v1/apis/vault")).status_code == 204
    async with api.sessions() as session:
        assert not await api_credentials.of_api(session, row.id)
    unknown = await api.client.delete("/v1/apis/vault/credentials/header_key")
    assert unknown.status_code == 404

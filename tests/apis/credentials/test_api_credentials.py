"""Credentials of APIs by security scheme: stored, shown, sent, renewed, and never seen."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from app.apis.calls.network import open_client
from app.db.database import Sessions
from tests.support import vault_caller
from tests.support.api_app import ApiApp, open_api_app
from tests.support.echo_service import raised
from tests.support.ledger_project import until
from tests.support.lost_connection import lose_connection
from tests.support.secured_service import KEY, PASSWORD, SECRET, WAYS, SecuredService
from tests.support.vault_api import STATIC, credentials_of, gateway, register


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


async def test_a_flow_that_is_not_carried_out_takes_a_token(api: ApiApp, service: SecuredService) -> None:
    document = service.document()
    flow = {"authorizationUrl": f"{service.url}/authorize", "tokenUrl": f"{service.url}/token", "scopes": {}}
    schemes = document["components"]["securitySchemes"]
    schemes["client"]["flows"] = {"implicit": flow}
    schemes["person"]["flows"] = {"deviceAuthorization": flow}
    found = await register(api, service, document=document)
    for scheme in ("client", "person"):
        assert found[scheme]["send"] == "a token as `value`"
        assert [each["fields"] for each in found[scheme]["ways"]] == [["value"]]


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


async def test_processes_renew_a_token_once(
    api: ApiApp, service: SecuredService, database_url: str, tmp_path: Path
) -> None:
    await register(api, service, credentials={"client": STATIC["client"]})
    document = tmp_path / "vault.json"
    document.write_text(json.dumps(service.document()))
    argv = [sys.executable, "-m", vault_caller.__name__, database_url, str(api.demo.id), str(document)]
    pipe = asyncio.subprocess.PIPE
    callers = [await asyncio.create_subprocess_exec(*argv, stdin=pipe, stdout=pipe) for _ in range(2)]
    for asked in (1, 2):
        for caller in callers:
            assert await _line(caller) == "ready"
        service.slow = 0.5
        service.expire()
        for caller in callers:
            _input(caller).write(b"\n")
        answered = [json.loads(await _line(caller)) for caller in callers]
        assert answered == [["the client"] * vault_caller.GATEWAYS] * 2
        assert service.asked["client_credentials"] == asked
    for caller in callers:
        await _line(caller)
        _input(caller).close()
        assert await caller.wait() == 0


async def _line(caller: asyncio.subprocess.Process) -> str:
    assert caller.stdout is not None
    return (await caller.stdout.readline()).decode().strip()


def _input(caller: asyncio.subprocess.Process) -> asyncio.StreamWriter:
    assert caller.stdin is not None
    return caller.stdin


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


async def test_a_call_that_is_cancelled_loses_no_refresh_token(
    api: ApiApp, service: SecuredService, client: httpx.AsyncClient
) -> None:
    service.lifetime = 10
    await register(api, service, credentials={"login": STATIC["login"]})
    await (await gateway(api, service, client))("vault.who_login", [], {})
    service.slow = 0.5
    cut = asyncio.create_task((await gateway(api, service, client))("vault.who_login", [], {}))
    await until(lambda: service.begun == 2)
    cut.cancel()
    assert (await (await gateway(api, service, client))("vault.who_login", [], {}))["user"] == "iris"
    assert service.asked["password"] == 1, "the refresh token that was given meanwhile is kept"


async def test_a_connection_to_the_database_that_is_lost_loses_no_refresh_token(
    api: ApiApp, service: SecuredService, client: httpx.AsyncClient
) -> None:
    service.lifetime = 10
    await register(api, service, credentials={"login": STATIC["login"]})
    await (await gateway(api, service, client))("vault.who_login", [], {})
    lost = lose_connection(api.sessions, "UPDATE api_credentials SET value=")
    for _ in range(2):
        assert (await (await gateway(api, service, client))("vault.who_login", [], {}))["user"] == "iris"
    assert dict(service.asked) == {"password": 1, "refresh_token": 2}
    assert len(lost) == 1


async def test_a_client_is_recognized_by_the_form_where_its_header_is_ignored(
    api: ApiApp, service: SecuredService, client: httpx.AsyncClient
) -> None:
    service.form_only, service.lifetime = True, 10
    await register(api, service, credentials={"client": STATIC["client"]})
    for asked in (2, 3):  # the first time by both ways
        calls = await gateway(api, service, client)
        assert (await calls("vault.who_client", [], {}))["user"] == "the client"
        assert service.asked["client_credentials"] == asked


async def test_a_refused_client_is_told_what_the_server_said(
    api: ApiApp, service: SecuredService, client: httpx.AsyncClient
) -> None:
    await register(api, service, credentials={"client": STATIC["client"] | {"client_secret": "wr0ng-s3cret"}})
    await raised(await gateway(api, service, client), "vault.who_client")
    shown = (await credentials_of(api))["client"]
    assert (shown["state"], shown["failure"][:20]) == ("not_authorized", 'invalid_client: no "')
    assert "wr0ng-s3cret" not in shown["failure"]


async def test_a_refresh_token_that_is_refused_is_replaced_by_the_credentials(
    api: ApiApp, service: SecuredService, client: httpx.AsyncClient
) -> None:
    service.lifetime = 10
    await register(api, service, credentials={"login": STATIC["login"]})
    for expected in ({"password": 1}, {"password": 2, "refresh_token": 1}):
        service.refresh_tokens.clear()
        calls = await gateway(api, service, client)
        assert (await calls("vault.who_login", [], {}))["user"] == "iris"
        assert dict(service.asked) == expected


async def test_a_bearer_token_takes_the_place_of_tokens_of_oauth(
    api: ApiApp, service: SecuredService, client: httpx.AsyncClient
) -> None:
    service.issued["made-on-a-page"] = "iris"
    found = await register(api, service, credentials={"bearer": {"value": "made-on-a-page"}})
    assert not {"client", "person", "openid", "login"} & set(found), "they are not missing"
    calls = await gateway(api, service, client)
    assert (await calls("vault.who_person", [], {}))["user"] == "iris"
    assert await calls("vault.open", [], {}) == [""]


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

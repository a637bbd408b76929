"""APIs that move to another server: their secrets stay with the one that they were given for."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from itertools import repeat
from typing import Any

import httpx
import pytest
from sqlalchemy import text, update

from app.apis import store as apis
from app.apis.calls.gateway import Gateway
from app.apis.calls.network import open_client
from app.apis.credentials import store as credentials
from app.apis.credentials.stored_credentials import StoredCredentials
from app.base.errors import HostError
from app.db import tables
from app.db.database import Sessions, keys_of
from app.releases import manifest_store, tools
from app.releases.tools import Catalogs
from tests.support.api_app import ApiApp, open_api_app, problem
from tests.support.every_row import every_row
from tests.support.ledger_project import until
from tests.support.lock_waits import waits_for_a_lock
from tests.support.small_internet import SmallInternet, found

KEY = "k3y-0123456789"
_HEADER = {"tokenAuth": {"value": KEY, "place": "header", "name": "Authorization", "prefix": "Token"}}
_SCHEMES = {"tokenAuth": {"type": "apiKey", "in": "header", "name": "Authorization"}}
_NAMES = ("mail.test", "evil.test")


def document(server: str = "http://mail.test/v1", **variables: Any) -> dict[str, Any]:
    pin = [{"name": "pin", "in": "query", "schema": {"type": "string"}}]
    return {
        "openapi": "3.1.0",
        "info": {"title": "Mail", "version": "1"},
        "servers": [{"url": server, "variables": variables}],
        "components": {"securitySchemes": _SCHEMES},
        "paths": {"/mails": {"get": {"operationId": "show_mail", "parameters": pin}}},
    }


@pytest.fixture
def internet() -> SmallInternet:
    answers: dict[str, bytes | Callable[[str], bytes]] = {"/openapi.json": _refused, "/mcp": found(b"{}")}
    answers |= dict.fromkeys(("/v1/mails", "/mails"), found(b"{}"))
    return SmallInternet({name: repeat("9.9.9.9") for name in _NAMES}, answers)


def _refused(head: str) -> bytes:
    return found(json.dumps(document("http://evil.test/v1")).encode()) if KEY in head else _UNAUTHORIZED


_UNAUTHORIZED = b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n"


@pytest.fixture
async def client(internet: SmallInternet) -> AsyncIterator[httpx.AsyncClient]:
    async with internet.online(), open_client(allow_private_hosts=False, network=internet.public) as opened:
        yield opened


@pytest.fixture
async def api(committed: Sessions, database_url: str, client: httpx.AsyncClient) -> AsyncIterator[ApiApp]:
    async with open_api_app(committed, database_url, http_client=client) as opened:
        yield opened


async def put(api: ApiApp, status: int = 201, **fields: Any) -> Any:
    given = {} if {"url", "mcp"} & fields.keys() else {"document": document()}
    answer = await api.client.post("/v1/apis", json={"name": "mail", **given, **fields})
    assert answer.status_code == status, answer.text
    return answer.json() if status == 201 else str(problem(answer)["detail"])


HELD: dict[str, dict[str, Any]] = {
    "bearer_token": {"bearer_token": KEY},
    "credentials of tokenAuth": {"credentials": _HEADER},
    "bind": {"bind": {"pin": "secret:pin"}},
}
MOVES: dict[str, dict[str, Any]] = {
    "another host": {"document": document("http://evil.test/v1")},
    "another port": {"document": document("http://mail.test:81/v1")},
    "another scheme": {"document": document("https://mail.test/v1")},
    "a server of its own": {"server": "http://evil.test"},
    "hosts that tasks choose": {
        "document": document("http://{at}/v1", at={"default": "mail.test", "enum": ["mail.test", "evil.test"]})
    },
    "an MCP server": {"mcp": "http://evil.test/mcp"},
    "a document beside it": {"url": "http://evil.test/openapi.json", "server": "http://evil.test"},
}


async def test_an_api_is_not_moved_with_the_secrets_that_it_keeps(api: ApiApp, internet: SmallInternet) -> None:
    with every_row() as row:
        for held, secrets in HELD.items():
            for move, fields in MOVES.items():
                with row(held, move):
                    await put(api, **secrets)
                    internet.requests.clear()
                    await put(api, 400, **fields)
                    assert not [head for head in internet.requests if KEY in head]
                    assert (await api.client.get("/v1/apis/mail")).json()["base_url"] == "http://mail.test/v1"
                    assert (await api.client.delete("/v1/apis/mail")).status_code == 204


async def test_the_reason_names_the_secrets_and_what_sends_them_along(api: ApiApp) -> None:
    await put(api, bearer_token=KEY, credentials=_HEADER)
    own = await api.client.put("/v1/apis/mail/credentials/tokenAuth?principal=iris", json={"value": "another-key"})
    assert own.status_code == 200, own.text
    moved: dict[str, Any] = {"document": document("http://evil.test/v1")}
    reason = await put(api, 400, **moved)
    held = "the stored bearer_token, credentials of tokenAuth, credentials of tokenAuth for iris"
    assert "names another server now, http://evil.test/v1 in place of http://mail.test:80" in reason
    assert f"which would get {held}:" in reason
    reason = await put(api, 400, **moved, bearer_token=None, credentials=_HEADER)
    assert "get the stored credentials of tokenAuth for iris:" in reason
    await api.client.delete("/v1/apis/mail/credentials/tokenAuth?principal=iris")
    await put(api, **moved, bearer_token=KEY, credentials=_HEADER)
    await put(api, token_origins=["http://mail.test"])
    await put(api, 400, **moved)
    await put(api, **moved, token_origins=["http://evil.test"])


async def test_an_api_without_secrets_moves_freely(api: ApiApp) -> None:
    await put(api)
    assert (await put(api, server="http://evil.test"))["base_url"] == "http://evil.test"
    await put(api, bearer_token=KEY)
    await put(api, server="http://mail.test/v2")  # another path


async def test_a_release_of_before_sends_no_secrets_to_the_former_server(
    api: ApiApp, internet: SmallInternet, client: httpx.AsyncClient
) -> None:
    former = await put(api, document=document("http://evil.test/v1"), bearer_token="former-key")
    async with api.sessions.begin() as session:
        await manifest_store.store_tools(session, api.demo.id, {"mail": manifest_store.Tool(former["digest"])})
    now = await put(api, bearer_token=KEY)
    internet.requests.clear()
    assert "may not get the token of this API" in await _called(api, client, former["digest"])
    assert internet.requests == []
    assert await _called(api, client, now["digest"]) == ""
    assert [KEY in head for head in internet.requests] == [True]


async def _called(api: ApiApp, client: httpx.AsyncClient, digest: str) -> str:
    """The error of a call, as a task makes it with the release that has this document."""
    async with api.sessions() as session:
        row = await apis.get(session, api.demo.id, "mail", document=False)
        tool = tools.document_of(session, row, manifest_store.Tool(digest), has_credentials=False)
    catalog = await Catalogs(api.sessions).of([tool])
    credentials = StoredCredentials(api.sessions, client, [tool])
    try:
        await Gateway(catalog, client, credentials=credentials)("mail.show_mail", [], {})
    except HostError as error:
        return error.message
    return ""


async def test_a_task_that_began_before_sends_no_credentials_of_the_new_server(
    api: ApiApp, internet: SmallInternet, client: httpx.AsyncClient
) -> None:
    await put(api, document=document("http://evil.test/v1"), credentials=_HEADER)
    gateway = await _gateway_of_now(api, client)
    await put(api, credentials=_HEADER)
    internet.requests.clear()
    with pytest.raises(HostError, match="mail was moved to another server since this task began"):
        await gateway("mail.show_mail", [], {})
    assert internet.requests == []


async def test_a_former_server_that_refuses_its_token_gets_none_of_the_new_server(
    api: ApiApp, internet: SmallInternet, client: httpx.AsyncClient
) -> None:
    answers = [found(b"{}"), _UNAUTHORIZED, _UNAUTHORIZED]
    internet._answers = {"/v1/mails": lambda _: answers.pop(0)}
    await put(api, document=_with_login("http://evil.test/v1"), credentials=_tokens("former-token"))
    gateway = await _gateway_of_now(api, client)
    await gateway("mail.show_mail", [], {})
    await put(api, document=_with_login("http://mail.test/v1"), credentials=_tokens(KEY))
    with pytest.raises(HostError, match="mail was moved to another server since this task began"):
        await gateway("mail.show_mail", [], {})
    assert ["former-token" in head for head in internet.requests] == [True, True]


async def test_credentials_that_are_read_while_an_api_moves_are_not_sent(
    api: ApiApp, internet: SmallInternet, client: httpx.AsyncClient
) -> None:
    await put(api, document=document("http://evil.test/v1"), credentials=_HEADER)
    gateway = await _gateway_of_now(api, client)
    async with api.sessions() as moving:
        await moving.execute(text("LOCK TABLE api_credentials IN ACCESS EXCLUSIVE MODE"))
        async with asyncio.TaskGroup() as group:
            calling = group.create_task(_error_of(gateway))
            await until(lambda: waits_for_a_lock(api.sessions))
            await moving.execute(update(tables.Api).values(secrets_for="http://mail.test:80"))
            await moving.commit()
    assert "mail was moved to another server since this task began" in calling.result()
    assert internet.requests == []


async def test_a_credential_that_is_stored_while_the_former_one_is_renewed_stays(api: ApiApp) -> None:
    with every_row() as row:
        for how in ("renewed", "not renewed"):
            await put(api, document=_with_login("http://evil.test/v1"), credentials=_tokens("former-token"))
            async with api.sessions.begin() as session:
                mail = await apis.get(session, api.demo.id, "mail", document=False)
                [former] = await credentials.of_api(session, mail.id)
                claim = await credentials.claim_renewal(session, former.id, 60)
                assert claim is not None
            await put(api, document=_with_login("http://mail.test/v1"), credentials=_tokens(KEY))
            async with api.sessions.begin() as session:
                if how == "renewed":
                    later = "a later former-token"
                    await credentials.end_renewal(session, former.id, claim, value=later, expires_at=None)
                else:
                    await credentials.fail_renewal(session, former.id, claim, "unknown", authorized=False)
            async with api.sessions() as session:
                [now] = await credentials.of_api(session, mail.id)
                with row(how):
                    assert KEY in keys_of(session).decrypt(now.value or "")
                    assert (now.authorized, now.failure) == (True, None)


STORING: dict[str, tuple[str, str, dict[str, Any]]] = {
    "a credential": ("PUT", "/v1/apis/mail/credentials/login", {"client_id": "us", "access_token": KEY}),
    "a principal's": ("PUT", "/v1/apis/mail/credentials/login?principal=iris", {"client_id": "us"}),
    "a token": ("PATCH", "/v1/apis/mail", {"bearer_token": KEY}),
    "a bound secret": ("PATCH", "/v1/apis/mail", {"bind": {"pin": "secret:pin"}}),
    "a consent that begins": ("GET", "/v1/apis/mail/authorize?scheme=login", {}),
    "a consent that ends": ("GET", "/oauth/callback?code=c", {}),
}


async def test_a_secret_that_is_stored_while_its_api_moves_is_refused(
    api: ApiApp, internet: SmallInternet
) -> None:
    internet._answers = {"/token": found(b'{"access_token": "former-token", "token_type": "bearer"}')}
    with every_row() as row:
        for what, (method, path, body) in STORING.items():
            with row(what):
                await put(api, document=_with_consent("http://mail.test/v1"), credentials=_client())
                state = await _state(api)
                if path.startswith("/oauth"):
                    path += f"&state={state}"
                async with api.sessions() as moving:
                    moved = update(tables.Api).values(secrets_for="http://evil.test:80")
                    await moving.execute(moved.where(tables.Api.name == "mail"))
                    late = asyncio.create_task(api.client.request(method, path, json=body or None))
                    await until(lambda: waits_for_a_lock(api.sessions))
                    await moving.commit()
                answer = await late
                assert answer.status_code == 409, answer.text
                assert "mail was moved meanwhile, to http://evil.test:80. Look at that address" in answer.text
                async with api.sessions() as session:
                    mail = await apis.get(session, api.demo.id, "mail", document=False)
                    stored = await credentials.of_api(session, mail.id)
                    values = [keys_of(session).decrypt(each.value or "") for each in stored]
                assert (len(stored), mail.token, mail.bind) == (1, None, {})
                assert not [each for each in values if "former-token" in each or KEY in each]
                await api.client.delete("/v1/apis/mail")


async def test_an_api_moves_with_no_secret_that_is_stored_meanwhile(api: ApiApp) -> None:
    await put(api)
    async with api.sessions() as storing:
        seen = await apis.get(storing, api.demo.id, "mail", document=False)
        mail = await apis.hold(storing, api.demo.id, "mail", apis.place_of(seen))
        value = json.dumps({"value": KEY})
        await credentials.put(storing, mail.id, "tokenAuth", "", kind="apiKey", value=value, authorized=True)
        late = asyncio.create_task(put(api, 400, document=document("http://evil.test/v1")))
        await until(lambda: waits_for_a_lock(api.sessions))
        await storing.commit()
    assert "which would get the stored credentials of tokenAuth" in await late


async def test_a_consent_that_began_before_an_api_moved_brings_nothing(api: ApiApp) -> None:
    await put(api, document=_with_consent("http://mail.test/v1"), credentials=_client())
    state = await _state(api, principal="iris")
    await put(api, document=_with_consent("http://mail.test/v2"), credentials=_client())
    kept = await _state(api, principal="iris")
    await put(api, document=_with_consent("http://evil.test/v1"), credentials=_client())
    for each in (state, kept):
        answer = await api.client.get("/oauth/callback", params={"code": "c", "state": each})
        assert (answer.status_code, "this address was used, or is too old" in answer.text) == (400, True)


def _with_consent(server: str) -> dict[str, Any]:
    urls = {"authorizationUrl": "http://mail.test/consent", "tokenUrl": "http://mail.test/token"}
    schemes = {"login": {"type": "oauth2", "flows": {"authorizationCode": {**urls, "scopes": {}}}}}
    return document(server) | {"components": {"securitySchemes": schemes}, "security": [{"login": []}]}


def _client() -> dict[str, Any]:
    return {"login": {"client_id": "us", "client_secret": "known"}}


async def _state(api: ApiApp, **whose: str) -> str:
    """Of a consent that a person has begun."""
    answer = await api.client.get("/v1/apis/mail/authorize", params={"scheme": "login", **whose})
    assert answer.status_code == 200, answer.text
    return str(httpx.URL(answer.json()["url"]).params["state"])


def _with_login(server: str) -> dict[str, Any]:
    flows = {"clientCredentials": {"tokenUrl": "http://mail.test/token", "scopes": {}}}
    schemes = {"securitySchemes": {"login": {"type": "oauth2", "flows": flows}}}
    return document(server) | {"components": schemes, "security": [{"login": []}]}


def _tokens(access: str) -> dict[str, Any]:
    return {"login": {"client_id": "us", "client_secret": "known", "access_token": access}}


async def _gateway_of_now(api: ApiApp, client: httpx.AsyncClient) -> Gateway:
    """As a task opens it that begins now."""
    async with api.sessions() as session:
        row = await apis.get(session, api.demo.id, "mail", document=False)
        begun = await tools.api_document(session, row)
    catalog = await Catalogs(api.sessions).of([begun])
    return Gateway(catalog, client, credentials=StoredCredentials(api.sessions, client, [begun]))


async def _error_of(gateway: Gateway) -> str:
    try:
        await gateway("mail.show_mail", [], {})
    except HostError as error:
        return error.message
    return ""

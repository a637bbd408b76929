"""MCP servers that ask for tokens: found by their metadata, connected by a person, renewed, and per principal."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any
from urllib.parse import parse_qs, parse_qsl, urlsplit

import httpx
import pytest
from mcp.shared.auth import OAuthClientInformationFull
from msgspec import json

from app.apis import store as apis
from app.apis.calls.gateway import Gateway
from app.apis.calls.network import open_client
from app.apis.catalog import Catalog
from app.apis.credentials.stored_credentials import StoredCredentials
from app.apis.documents.protocols import parse_document
from app.apis.documents.reader import DocumentReader
from app.apis.mcp.calls import mcp_callers
from app.apis.mcp.connection import McpServers
from app.apis.mcp.listing import discover
from app.base.errors import ApiDocumentError
from app.db.database import Sessions
from app.releases import tools
from app.releases.refresh import McpRefresh
from tests.support.api_app import ApiApp, asgi_client, open_api_app
from tests.support.echo_service import raised
from tests.support.ledger_project import until
from tests.support.protected_server import MORE, SCOPE, ProtectedServer

CALLBACK = "http://test/oauth/callback"
CLIENT = OAuthClientInformationFull(
    client_id="the-client",
    client_secret="client-s3cret",
    redirect_uris=[CALLBACK],  # type: ignore[list-item]
    token_endpoint_auth_method="client_secret_basic",
    scope=SCOPE,
)


@pytest.fixture
async def api(committed: Sessions, database_url: str) -> AsyncIterator[ApiApp]:
    """With what refreshes tools, as in the API's process."""
    async with (
        open_client(allow_private_hosts=True) as client,
        open_api_app(committed, database_url, http_client=client) as opened,
        DocumentReader() as reader,
        McpRefresh(committed, client, {}, reader, pause=0.05),
    ):
        yield opened


async def register(api: ApiApp, url: str, **fields: Any) -> dict[str, Any]:
    answer = await api.client.post("/v1/apis", json={"name": "notes", "mcp": url, **fields})
    assert answer.status_code == 201, answer.text
    shown: dict[str, Any] = answer.json()
    return shown


async def consent(api: ApiApp, **params: str) -> httpx.Response:
    """As a person does: open the address, consent, and come back."""
    asked = await api.client.get("/v1/apis/notes/authorize", params=params)
    assert asked.status_code == 200, asked.text
    async with httpx.AsyncClient(timeout=300) as browser:
        sent_back = (await browser.get(asked.json()["url"])).headers["location"]
    assert sent_back.startswith(CALLBACK)
    back = dict(parse_qsl(urlsplit(sent_back).query))
    return await api.client.get("/oauth/callback", params=back, headers={"Authorization": ""})


async def has_tools(api: ApiApp) -> bool:
    return "count" in names((await api.client.get("/v1/apis/notes")).json())


async def credential(api: ApiApp) -> dict[str, Any]:
    [shown] = (await api.client.get("/v1/apis/notes")).json()["credentials"]
    return dict(shown)


def names(shown: dict[str, Any]) -> list[str]:
    return [each["name"] for each in shown["operations"]]


async def connected(api: ApiApp, url: str, **fields: Any) -> None:
    await register(api, url, **fields)
    assert "Connected" in (await consent(api)).text
    await until(lambda: has_tools(api))


@asynccontextmanager
async def gateway(api: ApiApp, principal: str = "") -> AsyncIterator[Gateway]:
    """As a runner opens it for a task of the principal."""
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(open_client(allow_private_hosts=True))
        servers = await stack.enter_async_context(McpServers(client))
        async with api.sessions() as session:
            row = await apis.get(session, api.demo.id, "notes", document=False)
            document = json.decode(await apis.document(session, row.id, row.digest))
            known = [await tools.api_document(session, row)]
        catalog = Catalog({"notes": parse_document("notes", document)})
        credentials = StoredCredentials(api.sessions, client, known, principal)
        callers = mcp_callers(servers, api.demo.id, principal, 5)
        yield Gateway(catalog, client, credentials=credentials, callers=callers)


async def test_a_server_is_registered_without_tools_and_connected_by_a_client_that_registers_itself(
    api: ApiApp,
) -> None:
    server = ProtectedServer()
    async with server.listening() as url:
        shown = await register(api, url)
        [asked] = shown["credentials"]
        assert (shown["operations"], asked["scheme"], asked["state"]) == ([], "oauth", "missing")
        assert asked["send"].startswith("nothing, and open the address of")
        assert any("no tools until it is connected" in each for each in shown["remarks"])
        assert "Connected" in (await consent(api)).text
        await until(lambda: has_tools(api))
        async with gateway(api) as calls:
            assert await calls("notes.count", [], {}) == {"result": 1}
        [client] = server.consents.clients.values()
        assert client.redirect_uris is not None
        assert [str(each) for each in client.redirect_uris] == [CALLBACK]
        assert {each.resource for each in server.consents.access.values()} == {url}
        shown = (await api.client.get("/v1/apis/notes")).json()
        assert "t0ken" not in repr(shown)
        [change] = (await api.client.get("/v1/apis/notes/changes")).json()
        assert (change["applied"], "count" in change["added"]) == (True, True)


async def test_a_client_of_the_operator_is_used_and_registering_again_keeps_the_connection(api: ApiApp) -> None:
    server = ProtectedServer(registers=False)
    server.consents.clients[CLIENT.client_id] = CLIENT
    given = {"oauth": {"client_id": CLIENT.client_id, "client_secret": CLIENT.client_secret}}
    async with server.listening() as url:
        shown = await register(api, url)
        assert shown["credentials"][0]["send"].startswith("`client_id`, and `client_secret`")
        refused = await api.client.get("/v1/apis/notes/authorize")
        assert (refused.status_code, "store a `client_id` first" in refused.text) == (400, True)
        await connected(api, url, credentials=given)
        again = await register(api, url)
        assert "count" in names(again)
        assert again["credentials"][0]["state"] == "ready"
        assert len(server.consents.clients) == 1


async def test_an_expired_token_is_renewed_once_by_all(api: ApiApp) -> None:
    server = ProtectedServer()
    async with server.listening() as url, AsyncExitStack() as stack:
        await connected(api, url)
        many = [await stack.enter_async_context(gateway(api)) for _ in range(4)]
        await asyncio.gather(*(each("notes.count", [], {}) for each in many))  # all know the same token
        server.consents.expire()
        answers = await asyncio.gather(*(each("notes.count", [], {}) for each in many))
        assert sorted(each["result"] for each in answers) == [5, 6, 7, 8]
        assert server.consents.asked == {"authorization_code": 1, "refresh_token": 1}
        assert {each.resource for each in server.consents.access.values()} == {url}


async def test_tools_are_listed_again_with_a_renewed_token(api: ApiApp) -> None:
    server = ProtectedServer()
    async with server.listening() as url:
        await connected(api, url)
        server.consents.expire()
        assert "count" in names(await register(api, url))
        server.consents.expire()
        server.consents.refresh.clear()
        refused = await api.client.post("/v1/apis", json={"name": "notes", "mcp": url})
        assert (refused.status_code, "a person has to authorise oauth first" in refused.text) == (400, True)


async def test_principals_have_connections_of_their_own(api: ApiApp) -> None:
    server = ProtectedServer()
    async with server.listening() as url:
        await register(api, url)
        assert "Connected" in (await consent(api, principal="ann")).text
        await until(lambda: has_tools(api))
        async with gateway(api, "ann") as calls:
            assert await calls("notes.count", [], {}) == {"result": 1}
        async with gateway(api, "bob") as calls:
            error = await raised(calls, "notes.count")
            assert "notes is not connected" in error.message
        assert "Connected" in (await consent(api, principal="bob")).text
        assert len(server.consents.clients) == 1, "one client for all"
        async with gateway(api, "bob") as calls:
            assert await calls("notes.count", [], {}) == {"result": 2}


async def test_a_call_that_needs_another_scope_leads_to_a_consent_for_both(api: ApiApp) -> None:
    server = ProtectedServer()
    async with server.listening() as url:
        await connected(api, url)
        async with gateway(api) as calls:
            error = await raised(calls, "notes.audit")
            assert error.message.endswith(f"(a person has to grant the scopes {MORE})")
            assert await calls("notes.count", [], {}) == {"result": 1}, "what it has goes on"
        asked = await credential(api)
        assert (asked["state"], asked["wanted_scopes"]) == ("insufficient_scope", [MORE])
        address = await api.client.get("/v1/apis/notes/authorize")
        assert parse_qs(urlsplit(address.json()["url"]).query)["scope"] == [f"{SCOPE} {MORE}"]
        async with gateway(api) as calls:
            assert await calls("notes.count", [], {}) == {"result": 2}, "an unopened address breaks nothing"
        assert "Connected" in (await consent(api)).text
        now = await credential(api)
        assert (now["state"], now["wanted_scopes"]) == ("ready", [])
        async with gateway(api) as calls:
            assert await calls("notes.audit", [], {}) == {"result": "nobody else"}
            server.consents.expire()
            assert await calls("notes.audit", [], {}) == {"result": "nobody else"}, "renewed with what was granted"
        assert {each.scope for each in server.consents.clients.values()} == {SCOPE, f"{SCOPE} {MORE}"}


async def test_a_refused_step_up_leaves_the_connection_as_it_was(api: ApiApp) -> None:
    server = ProtectedServer()
    async with server.listening() as url:
        await connected(api, url)
        async with gateway(api) as calls:
            await raised(calls, "notes.audit")
        address = (await api.client.get("/v1/apis/notes/authorize")).json()["url"]
        state = parse_qs(urlsplit(address).query)["state"][0]
        back = await api.client.get("/oauth/callback", params={"state": state, "error": "access_denied"})
        assert back.status_code == 400
        now = await credential(api)
        assert (now["state"], now["failure"]) == (
            "insufficient_scope",
            "the authorization server refused: access_denied",
        )
        server.consents.expire()
        async with gateway(api) as calls:
            assert await calls("notes.count", [], {}) == {"result": 1}, "it is renewed with its own client"


async def test_a_client_is_a_document_where_the_authorization_server_reads_those(api: ApiApp) -> None:
    async with asgi_client(api.app, {}, "https://sage.test") as public:
        server = ProtectedServer(documents=public)
        api.reached_at("https://sage.test")
        async with server.listening() as url:
            await register(api, url)
            headers = {"Authorization": api.client.headers["Authorization"]}
            asked = await public.get("/v1/apis/notes/authorize", headers=headers)
            client_id = parse_qs(urlsplit(asked.json()["url"]).query)["client_id"]
            assert client_id == ["https://sage.test/oauth/client.json"]
            async with httpx.AsyncClient(timeout=300) as browser:
                back = (await browser.get(asked.json()["url"])).headers["location"]
            assert back.startswith("https://sage.test/oauth/callback?")
            assert "Connected" in (await public.get(back)).text
            await until(lambda: has_tools(api))
            assert list(server.consents.clients) == client_id, "none was registered"
            async with gateway(api) as calls:
                await raised(calls, "notes.audit")
                server.consents.expire()
                assert await calls("notes.count", [], {}) == {"result": 1}


async def test_without_an_https_address_a_client_that_is_no_document_is_registered_or_wanted(api: ApiApp) -> None:
    async with asgi_client(api.app, {}, "https://sage.test") as public:
        for registers in (True, False):
            server = ProtectedServer(registers=registers, documents=public)
            async with server.listening() as url:
                await register(api, url)
                asked = await api.client.get("/v1/apis/notes/authorize")
                assert (asked.status_code, len(server.consents.clients)) == ((200, 1) if registers else (400, 0))
                await api.client.delete("/v1/apis/notes")
    assert "or set SAGE_PUBLIC_URL to an https address" in asked.text


async def test_the_answer_of_another_authorization_server_is_refused(api: ApiApp) -> None:
    server = ProtectedServer()
    async with server.listening() as url:
        await register(api, url)
        server.consents.issuer = "https://evil.test"
        answer = await consent(api)
        assert (answer.status_code, "which was asked" in answer.text) == (400, True)
        assert server.consents.asked == {}


URL = "https://notes.test/mcp"
RESOURCE: dict[str, Any] = {
    "resource": URL,
    "authorization_servers": ["https://login.test/one"],
    "scopes_supported": ["read"],
}
LOGIN: dict[str, Any] = {
    "issuer": "https://login.test/one",
    "authorization_endpoint": "https://login.test/one/authorize",
    "token_endpoint": "https://login.test/one/token",
    "response_types_supported": ["code"],
    "code_challenge_methods_supported": ["S256"],
    "scopes_supported": ["read", "offline_access"],
}


async def discovered(pages: dict[str, Any], challenge: str = "") -> Any:
    def answer(request: httpx.Request) -> httpx.Response:
        found = pages.get(str(request.url))
        return httpx.Response(404) if found is None else httpx.Response(200, json=found)

    async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as client:
        return await discover(client, URL, challenge)


@pytest.mark.parametrize(
    "place",
    [
        "https://login.test/.well-known/oauth-authorization-server/one",
        "https://login.test/.well-known/openid-configuration/one",
        "https://login.test/one/.well-known/openid-configuration",
    ],
)
async def test_metadata_are_found_where_the_specifications_put_them(place: str) -> None:
    resource = "https://notes.test/.well-known/oauth-protected-resource/mcp"
    found = await discovered({resource: RESOURCE, place: LOGIN})
    assert (found.token_url, found.scopes) == ("https://login.test/one/token", ["read", "offline_access"])
    elsewhere = 'Bearer error="invalid_token", scope="write", resource_metadata="https://notes.test/about"'
    found = await discovered({"https://notes.test/about": RESOURCE, place: LOGIN}, elsewhere)
    assert found.scopes == ["write", "offline_access"]


@pytest.mark.parametrize(
    ("resource", "login", "reason"),
    [
        (None, {}, "does not say how to get one: send `bearer_token`"),
        ({"resource": "https://other.test/mcp"}, {}, "names another resource as its own: https://other.test/mcp"),
        ({}, None, "the authorization server https://login.test/one of https://notes.test/mcp has no metadata"),
        ({}, {"issuer": "https://evil.test"}, "calls itself https://evil.test"),
        ({}, {"code_challenge_methods_supported": ["plain"]}, "does not support PKCE with S256"),
    ],
)
async def test_metadata_that_do_not_agree_are_refused(resource: Any, login: Any, reason: str) -> None:
    about = None if resource is None else RESOURCE | resource
    of_login = None if login is None else LOGIN | login
    pages = {
        "https://notes.test/.well-known/oauth-protected-resource": about,
        "https://login.test/.well-known/oauth-authorization-server/one": of_login,
    }
    with pytest.raises(ApiDocumentError, match=reason):
        await discovered(pages)


async def test_private_addresses_stay_closed_to_what_metadata_name() -> None:
    async with open_client(allow_private_hosts=False) as client:
        named = 'Bearer resource_metadata="http://127.0.0.1:1/about"'
        with pytest.raises(ApiDocumentError, match="does not say how to get one"):
            await discover(client, "http://127.0.0.1:1/mcp", named)

"""Documents that their server shows only to those who identify themselves, and where the credentials do not go."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import repeat
from typing import Any

import httpx
import pytest

from app.apis.calls.network import open_client
from app.apis.credentials.credential import bearer
from app.apis.credentials.schemes import Authentication
from app.apis.documents.protocols import download
from app.base.errors import ApiDocumentError
from app.db.database import Sessions
from tests.support.api_app import ApiApp, open_api_app, problem
from tests.support.secured_service import SecuredService
from tests.support.small_internet import SmallInternet, found, moved
from tests.support.vault_api import STATIC, credentials_of, register

KEY = "k3y-0123456789"
URL = "http://docs.test/openapi.json"
_NAMES = ("docs.test", "other.test")
HEADER = {"tokenAuth": {"value": KEY, "place": "header", "name": "Authorization", "prefix": "Token"}}
WAYS: dict[str, dict[str, Any]] = {
    f"Bearer {KEY}": {"bearer_token": KEY},
    f"Token {KEY}": {"credentials": HEADER},
    f"?key={KEY}": {"credentials": {"own": {"value": KEY, "place": "query", "name": "key"}}},
    f"sid={KEY}": {"credentials": {"own": {"value": KEY, "place": "cookie", "name": "sid"}}},
    "Basic aXJpczprM3ktMDEyMzQ1Njc4OQ==": {"credentials": {"own": {"username": "iris", "password": KEY}}},
}
SHAPES = {"$ref": "/shapes.json#/Mail"}


def document(**more: Any) -> bytes:
    answer = {"content": {"application/json": {"schema": SHAPES}}}
    schemes = {"tokenAuth": {"type": "apiKey", "in": "header", "name": "Authorization"}}
    whole = {
        "openapi": "3.1.0",
        "info": {"title": "Mail", "version": "1"},
        "components": {"securitySchemes": schemes},
        "paths": {"/mails": {"get": {"operationId": "show_mail", "responses": {"200": answer}}}},
    }
    return found(json.dumps({**whole, **more}).encode())


REFUSED = b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n"
FORBIDDEN = b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n"


def shown_to(secret: str, answer: bytes, other: bytes = REFUSED) -> Callable[[str], bytes]:
    """An answer for requests that have the text, and another one."""
    return lambda head: answer if secret in head else other


class Site:
    """A mail API whose documents are shown to who sends the key."""

    def __init__(self, secret: str = KEY) -> None:
        self.answers: dict[str, bytes | Callable[[str], bytes]] = {}
        names = {name: repeat("9.9.9.9") for name in _NAMES}
        self.internet = SmallInternet({**names, f"{KEY}.test": repeat("10.0.0.1")}, self.answers)

        self.show_to(secret)

    def show_to(self, secret: str) -> None:
        """Forgets who asked before."""
        shapes = found(json.dumps({"Mail": {"type": "object", "properties": {"to": {}}}}).encode())
        self.answers["/openapi.json"] = shown_to(secret, document())
        self.answers["/shapes.json"] = shown_to(secret, shapes)
        self.internet.requests.clear()

    def sent(self, secret: str = KEY) -> list[tuple[str, bool]]:
        """The URLs that were asked for, without their queries, and whether the secret was sent."""
        return [(_url(head), secret in head) for head in self.internet.requests]

    @asynccontextmanager
    async def app(self, sessions: Sessions, database_url: str) -> AsyncIterator[ApiApp]:
        async with (
            self.internet.online(),
            open_client(allow_private_hosts=False, network=self.internet.public) as client,
            open_api_app(sessions, database_url, http_client=client) as api,
        ):
            yield api


def _url(head: str) -> str:
    lines = head.splitlines()
    [host] = [line.partition(": ")[2] for line in lines if line.lower().startswith("host:")]
    return f"http://{host}{lines[0].split()[1].partition('?')[0]}"


async def add(api: ApiApp, status: int = 201, **fields: Any) -> Any:
    answer = await api.client.post("/v1/apis", json={"name": "mail", "url": URL, **fields})
    assert answer.status_code == status, answer.text
    assert KEY not in answer.text
    return answer.json() if status == 201 else str(problem(answer)["detail"])


async def test_a_document_is_fetched_with_the_credentials_of_its_registration_once_it_is_refused(
    committed: Sessions, database_url: str
) -> None:
    site = Site()
    shapes = "http://docs.test/shapes.json"  # it refers to them
    async with site.app(committed, database_url) as api:
        for secret, fields in WAYS.items():
            site.show_to(secret)
            shown = await add(api, **fields)
            assert shown["operations"][0]["signature"] == "show_mail() -> object with to"
            assert site.sent(secret) == [(URL, False), (URL, True), (shapes, True)]


async def test_who_sends_none_or_the_wrong_ones_is_told_what_to_do(committed: Sessions, database_url: str) -> None:
    site = Site("another key")
    async with site.app(committed, database_url) as api:
        refused = f"{URL} answered with status 401 instead of a document"
        reason = await add(api, 400)
        assert reason.startswith(f"{refused}: send credentials of the API with the registration: `bearer_token`")
        assert await add(api, 400, credentials={"tokenAuth": {"value": KEY}}) == reason, "no place to put it"
        reason = await add(api, 400, bearer_token=KEY)
        assert reason == f"{refused}, also with the credentials of the API: check them"
        assert "must not have a name or password" in await add(
            api, 400, url=f"http://iris:{KEY}@docs.test/openapi.json"
        )


async def test_a_refresh_uses_what_is_stored(committed: Sessions, database_url: str) -> None:
    site = Site()
    async with site.app(committed, database_url) as api:
        await add(api, credentials=HEADER)
        site.answers["/openapi.json"] = shown_to(f"Token {KEY}", document(paths={"/new": {"get": {}}}), FORBIDDEN)
        refreshed = (await api.client.post("/v1/apis/mail/refresh")).json()
        assert (refreshed["failure"], refreshed["change"]["removed"]) == (None, ["show_mail"])
        await add(api)  # again, with what is stored
        await api.client.delete("/v1/apis/mail/credentials/tokenAuth")
        failure = (await api.client.post("/v1/apis/mail/refresh")).json()["failure"]
        assert failure == f"{URL} is shown only with credentials of the API, and none are stored"


async def test_stored_credentials_go_only_to_the_origin_of_the_api(committed: Sessions, database_url: str) -> None:
    site = Site()
    async with site.app(committed, database_url) as api:
        await add(api, credentials=HEADER, server="http://docs.test/v1")
        site.internet.requests.clear()
        elsewhere = "http://other.test/openapi.json"
        reason = await add(api, 400, url=elsewhere)
        assert "http://other.test:80 gets no credentials of this API, which is at http://docs.test/v1" in reason
        assert site.sent() == [(elsewhere, False)]
        given: dict[str, Any] = {"url": elsewhere, "credentials": HEADER, "server": "http://docs.test/v1"}
        assert "gets no credentials of this API" in await add(api, 400, **given)
        assert site.sent() == [(elsewhere, False)] * 2
        await add(api, **given, token_origins=["http://other.test"])


async def test_a_document_beside_its_api_cannot_be_fetched_again_unless_it_is_trusted(
    committed: Sessions, database_url: str
) -> None:
    site = Site()
    site.answers["/"] = found(b"")
    site.answers["/openapi.json"] = shown_to(KEY, document(servers=[{"url": "http://other.test"}]))
    async with site.app(committed, database_url) as api:
        [remark] = (await add(api, credentials=HEADER))["remarks"]
        assert "without http://docs.test:80 among its `token_origins`" in remark
        failure = (await api.client.post("/v1/apis/mail/refresh")).json()["failure"]
        assert "gets no credentials of this API, which is at http://other.test: see `token_origins`" in failure
        assert (await add(api, token_origins=["http://docs.test"]))["remarks"] == []
        assert (await api.client.post("/v1/apis/mail/refresh")).json()["failure"] is None


async def test_a_redirect_to_another_origin_gets_no_credentials(committed: Sessions, database_url: str) -> None:
    site = Site()
    elsewhere = "http://other.test/shown.json"
    site.answers |= {
        "/openapi.json": shown_to(KEY, moved(elsewhere)),
        "/shown.json": shown_to(KEY, b"", document()),
    }
    async with site.app(committed, database_url) as api:
        await add(api, bearer_token=KEY)
        assert (elsewhere, False) in site.sent()
        assert not [url for url, sent in site.sent() if sent and not url.startswith("http://docs.test/")]
        site.answers["/shown.json"] = shown_to(KEY, document())
        for first in (shown_to(KEY, moved(elsewhere)), moved(elsewhere)):
            site.answers["/openapi.json"] = first
            reason = await add(api, 400, bearer_token=KEY)
            assert "leads to http://other.test:80, which gets no credentials" in reason


@pytest.mark.parametrize("where", ["http://a.test/x", "https://a.test:444/x", "https://b.test/x"])
async def test_each_hop_of_a_redirect_is_another_decision(where: str) -> None:
    seen: list[tuple[str, bool]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append((str(request.url), "Authorization" in request.headers))
        steps = {
            "https://a.test/": "https://a.test/own",
            "https://a.test/own": where,
            where: "https://a.test/back",
        }
        step = steps.get(str(request.url))
        return httpx.Response(200, text="{}") if step is None else httpx.Response(302, headers={"Location": step})

    async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as client:
        await download(client, "https://a.test/", authentication=bearer(KEY))
        own = [("https://a.test/", True), ("https://a.test/own", True)]
        assert seen == [*own, (where, False), ("https://a.test/back", True)]
        own_query = Authentication(query={"key": KEY})
        seen.clear()
        await download(client, "https://a.test/start", authentication=own_query)
        assert seen == [(f"https://a.test/start?key={KEY}", False)]


async def test_redirects_without_an_end_are_given_up() -> None:
    transport = httpx.MockTransport(lambda _: httpx.Response(302, headers={"Location": "/again"}))
    async with httpx.AsyncClient(transport=transport) as client:
        with pytest.raises(ApiDocumentError, match="redirects more than 20 times"):
            await download(client, "https://a.test/")


async def test_a_server_that_broke_off_is_asked_once_more() -> None:
    answers: list[httpx.Response | Exception] = []

    def answer(_: httpx.Request) -> httpx.Response:
        if isinstance(found := answers.pop(0), Exception):
            raise found
        return found

    async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as client:
        answers += [httpx.ReadError(""), httpx.Response(200, text="{}")]
        assert await download(client, "https://a.test/") == b"{}"
        answers += [httpx.ReadError(""), httpx.RemoteProtocolError("it broke off"), httpx.Response(200)]
        with pytest.raises(ApiDocumentError, match="cannot be reached: it broke off"):
            await download(client, "https://a.test/")


async def test_an_error_does_not_show_what_was_sent(committed: Sessions, database_url: str) -> None:
    site = Site()
    site.answers["/openapi.json"] = shown_to(KEY, moved(f"http://{KEY}.test/"))
    async with site.app(committed, database_url) as api:
        reason = await add(api, 400, bearer_token=KEY)
        assert (
            reason
            == f"{URL} cannot be reached: ***.test is at the private address 10.0.0.1, which is closed to calls"
        )


async def test_a_token_of_oauth_is_renewed_for_the_document(committed: Sessions, database_url: str) -> None:
    service = SecuredService()
    async with (
        service.listening() as url,
        open_client(allow_private_hosts=True) as client,
        open_api_app(committed, database_url, http_client=client) as api,
    ):
        await register(api, service, credentials={"client": STATIC["client"]})
        answer = await api.client.post("/v1/apis", json={"name": "vault", "url": f"{url}/openapi.json"})
        assert (answer.status_code, service.asked["client_credentials"]) == (201, 1), answer.text
        service.expire()
        refreshed = (await api.client.post("/v1/apis/vault/refresh")).json()
        assert (refreshed["failure"], service.asked["client_credentials"]) == (None, 2)
        assert (await credentials_of(api))["client"]["state"] == "ready"

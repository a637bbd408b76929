"""What holds for every route of the console: sessions, forged forms, scopes, other projects."""

import re
from collections.abc import AsyncIterator, Iterator
from uuid import UUID, uuid4

import httpx
import pytest

from app.db.database import Sessions
from app.projects import keys
from app.projects import store as projects
from app.web.pages import csrf_token
from tests.support.api_app import ApiApp, asgi_client, open_api_app

_OPEN = {"/console/sign-in", "/console/static/{digest:str}/{name:str}"}
_WITHOUT_PROJECT = {"/console/sign-out", "/console/theme"}


@pytest.fixture
async def api(committed: Sessions, database_url: str) -> AsyncIterator[ApiApp]:
    async with open_api_app(committed, database_url) as opened:
        yield opened


def _routes(api: ApiApp, method: str) -> Iterator[tuple[str, str, str]]:
    """The template, an address and the scope of each route that needs a session."""
    for route in api.app.routes:
        for handler in getattr(route, "route_handlers", ()):
            if route.path.startswith("/console") and method in handler.http_methods and route.path not in _OPEN:
                yield route.path, _filled(route.path), handler.opt["scope"]


def _filled(path: str, value: UUID | str = "x") -> str:
    """
    >>> _filled("/console/apis/{name:str}/test")
    '/console/apis/x/test'
    """
    path = re.sub(r"\{\w+:uuid\}", str(uuid4()), path)
    path = re.sub(r"\{\w+:int\}", "7", path)
    return re.sub(r"/?\{\w+:path\}", "/nowhere", re.sub(r"\{\w+:str\}", str(value), path))


async def _session(api: ApiApp, *scopes: str, project_id: UUID | None = None) -> tuple[dict[str, str], str]:
    """The cookie of a new session, and the token of its forms."""
    async with api.sessions.begin() as session:
        key, _ = await keys.create(session, "ann", scopes, project_id)
        secret = await keys.begin(session, key.id)
    return {"Cookie": f"sage_console={secret}"}, csrf_token(secret)


@pytest.fixture
async def browser(api: ApiApp) -> AsyncIterator[httpx.AsyncClient]:
    async with asgi_client(api.app, {}) as client:
        yield client


async def test_every_page_without_a_session_leads_to_the_sign_in(api: ApiApp, browser: httpx.AsyncClient) -> None:
    addresses = [address for _, address, _ in _routes(api, "GET")]
    assert len(addresses) > 15
    for address in addresses:
        answer = await browser.get(address)
        assert answer.status_code == 303, address
        assert answer.headers["location"].startswith("/console/sign-in?next="), address


async def test_every_form_is_refused_without_a_session_and_without_its_token(
    api: ApiApp, browser: httpx.AsyncClient
) -> None:
    cookie, token = await _session(api, "admin")
    forms = [address for _, address, _ in _routes(api, "POST")]
    assert len(forms) > 15
    for address in forms:
        assert (await browser.post(address, data={"csrf": token})).status_code == 401, address
        for data in ({}, {"csrf": "0" * len(token)}):
            assert (await browser.post(address, data=data, headers=cookie)).status_code == 403, address
        other = {**cookie, "Origin": "https://evil.example"}
        assert (await browser.post(address, data={"csrf": token}, headers=other)).status_code == 403, address


async def test_no_page_changes_anything_by_another_method(api: ApiApp) -> None:
    methods = {
        method
        for route in api.app.routes
        if route.path.startswith("/console")
        for handler in getattr(route, "route_handlers", ())
        for method in handler.http_methods
    }
    assert methods <= {"GET", "HEAD", "OPTIONS", "POST"}


async def test_every_route_needs_its_scope(api: ApiApp, browser: httpx.AsyncClient) -> None:
    """A key with any other scope is refused."""
    for scope in ("tasks", "skills", "approvals"):
        cookie, token = await _session(api, scope)
        for method in ("GET", "POST"):
            for path, address, needed in _routes(api, method):
                answer = await browser.request(method, address, headers=cookie, data={"csrf": token})
                if needed not in ("", scope):
                    assert answer.status_code == 403, (scope, method, path)
                elif path not in _WITHOUT_PROJECT:
                    assert answer.status_code != 403, (scope, method, path)
                    assert answer.status_code < 500, (scope, method, path)


async def test_every_page_of_another_project_is_not_found(api: ApiApp, browser: httpx.AsyncClient) -> None:
    """By the project's name, and by its things' ids."""
    other = await api.project("other")
    cookie, token = await _session(api, "admin", project_id=other.id)
    async with api.sessions.begin() as session:
        own, _ = await keys.create(session, "of demo", ["tasks"], api.demo.id)
    for method in ("GET", "POST"):
        for path, address, _ in _routes(api, method):
            if path in _WITHOUT_PROJECT:
                continue
            answer = await browser.request(
                method, address, params={"project": "demo"}, headers=cookie, data={"csrf": token}
            )
            assert answer.status_code == 404, (method, path, answer.status_code)
    revoke = await browser.post(f"/console/keys/{own.id}/revoke", headers=cookie, data={"csrf": token})
    delete = await browser.post(
        "/console/projects/demo/delete", headers=cookie, data={"csrf": token, "confirmed": "demo"}
    )
    shown = await browser.get("/console/projects/demo", headers=cookie)
    assert [answer.status_code for answer in (revoke, delete, shown)] == [404] * 3
    async with api.sessions() as session:
        assert (await projects.by_name(session, "demo")).id == api.demo.id
    assert "demo" not in (await browser.get("/console/projects", headers=cookie)).text


@pytest.mark.slow
async def test_no_page_repeats_what_was_typed_into_its_address(api: ApiApp, browser: httpx.AsyncClient) -> None:
    cookie, _ = await _session(api, "admin")
    evil = "\"'><script>alert(1)</script>"
    for path, _, _ in _routes(api, "GET"):
        address = _filled(path, httpx.URL(path="/" + evil).raw_path.decode().lstrip("/"))
        query = dict.fromkeys(("q", "actor", "action", "in_state", "cursor", "of", "sort", "state"), evil)
        for params in ({}, *({name: value} for name, value in query.items())):
            answer = await browser.get(address, params=params, headers=cookie)
            assert answer.status_code < 500, (address, params)
            assert "<script>alert" not in answer.text, (address, params)
            assert "'><script" not in answer.text

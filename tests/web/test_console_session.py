"""The session of the console: how it begins and ends, and what a forged form gets."""

import re
from collections.abc import AsyncIterator

import httpx
import pytest
from sqlalchemy import select, update

from app.db import tables
from app.db.database import Sessions
from app.db.queries import from_now
from app.projects import keys
from tests.support.api_app import ApiApp, asgi_client, open_api_app


@pytest.fixture
async def api(sessions: Sessions, database_url: str) -> AsyncIterator[ApiApp]:
    async with open_api_app(sessions, database_url) as opened:
        yield opened


@pytest.fixture
async def browser(api: ApiApp) -> AsyncIterator[httpx.AsyncClient]:
    async with asgi_client(api.app, {}) as client:
        yield client


async def _key(api: ApiApp, *scopes: str) -> str:
    return (await api.key(*scopes))["Authorization"].removeprefix("Bearer ")


async def _sign_in(browser: httpx.AsyncClient, key: str, **fields: str) -> httpx.Response:
    return await browser.post("/console/sign-in", data={"key": key, **fields})


async def _csrf(browser: httpx.AsyncClient) -> str:
    page = await browser.get("/console")
    found = re.search(r'name="csrf" value="(\w+)"', page.text)
    assert found, page.text
    return found[1]


async def _is_in(browser: httpx.AsyncClient) -> bool:
    answer = await browser.get("/console")
    assert answer.status_code in (200, 303)
    return answer.status_code == 200


async def test_a_key_is_exchanged_for_a_session(api: ApiApp, browser: httpx.AsyncClient) -> None:
    key = await _key(api, "tasks")
    unknown = await browser.get("/console?project=demo")
    assert unknown.headers["location"] == "/console/sign-in?next=%2Fconsole%3Fproject%3Ddemo"
    answer = await _sign_in(browser, key, next="/console?project=demo")
    assert (answer.status_code, answer.headers["location"]) == (303, "/console?project=demo")
    cookie = answer.headers["set-cookie"]
    assert {"HttpOnly", "Path=/console", "SameSite=strict"} <= {part.strip() for part in cookie.split(";")}
    assert "Secure" not in cookie, "a browser would not keep it on http"
    assert key not in cookie
    page = await browser.get("/console?project=demo")
    assert page.status_code == 200
    assert "<strong>test</strong><br>tasks" in page.text
    assert page.headers["cache-control"] == "no-store"
    assert "unsafe" not in page.headers["content-security-policy"]


async def test_the_cookie_is_sent_only_over_https_where_the_request_was(api: ApiApp) -> None:
    async with asgi_client(api.app, {}) as browser:
        browser.base_url = httpx.URL("https://sage.example")
        answer = await _sign_in(browser, await _key(api, "tasks"))
    assert "Secure" in answer.headers["set-cookie"]


async def test_the_sign_in_leads_to_no_other_site(api: ApiApp, browser: httpx.AsyncClient) -> None:
    key = await _key(api, "tasks")
    for elsewhere in ("https://evil.example", "//evil.example", "/v1/keys", "/console/../v1", "/console\\@evil"):
        answer = await _sign_in(browser, key, next=elsewhere)
        assert answer.headers["location"] == "/console", elsewhere


async def test_wrong_keys_are_limited_as_in_rest(browser: httpx.AsyncClient) -> None:
    first = await _sign_in(browser, "sage_wrong")
    assert first.status_code == 401
    assert "this key is unknown or was revoked" in first.text
    answers = [await browser.get("/v1/tasks", headers={"Authorization": f"Bearer {n}"}) for n in range(19)]
    assert {answer.status_code for answer in answers} == {401}
    later = [await _sign_in(browser, f"sage_wrong{number}") for number in range(40)]  # one more every 3 s
    assert 429 in {answer.status_code for answer in later}


async def test_a_session_ends_with_its_key(api: ApiApp, browser: httpx.AsyncClient) -> None:
    async with api.sessions.begin() as session:
        key, secret = await keys.create(session, "gone", ["tasks"])
    await _sign_in(browser, secret)
    assert await _is_in(browser)
    async with api.sessions.begin() as session:
        await keys.revoke(session, key.id)
    assert not await _is_in(browser)
    assert "sage_console" not in browser.cookies, "each request with it would count as a wrong key"


async def test_a_session_expires(api: ApiApp, browser: httpx.AsyncClient) -> None:
    await _sign_in(browser, await _key(api, "tasks"))
    async with api.sessions.begin() as session:
        await session.execute(update(tables.SignIn).values(expires_at=from_now(-1)))
    assert not await _is_in(browser)


async def test_signing_out_ends_the_session_for_whoever_has_its_cookie(
    api: ApiApp, browser: httpx.AsyncClient
) -> None:
    await _sign_in(browser, await _key(api, "tasks"))
    csrf, stolen = await _csrf(browser), dict(browser.cookies)
    assert (await browser.post("/console/sign-out", data={"csrf": csrf})).status_code == 303
    browser.cookies = httpx.Cookies(stolen)
    assert not await _is_in(browser)


async def test_a_form_without_the_token_of_the_session_changes_nothing(
    api: ApiApp, browser: httpx.AsyncClient
) -> None:
    await _sign_in(browser, await _key(api, "tasks"))
    csrf = await _csrf(browser)
    other = await browser.post("/console/sign-out", data={"csrf": "0" * len(csrf)})
    none = await browser.post("/console/sign-out")
    foreign = await browser.post(
        "/console/sign-out", data={"csrf": csrf}, headers={"Origin": "https://evil.example"}
    )
    hidden = await browser.post("/console/sign-out", data={"csrf": csrf}, headers={"Origin": "null"})
    assert [answer.status_code for answer in (other, none, foreign, hidden)] == [403] * 4
    assert "https://evil.example" in foreign.text
    assert await _is_in(browser)
    own = await browser.post("/console/sign-out", headers={"X-CSRF-Token": csrf, "Origin": "http://test"})
    assert own.status_code == 303


async def test_the_form_of_the_sign_in_is_read_within_a_limit(browser: httpx.AsyncClient) -> None:
    assert (await _sign_in(browser, "x" * 30_000)).status_code == 413


async def test_another_site_cannot_sign_anyone_in(api: ApiApp, browser: httpx.AsyncClient) -> None:
    evil = {"Origin": "https://evil.example"}
    answer = await browser.post("/console/sign-in", data={"key": await _key(api, "tasks")}, headers=evil)
    assert answer.status_code == 403
    assert not browser.cookies


async def test_a_link_signs_in_once_and_not_by_being_fetched(api: ApiApp, browser: httpx.AsyncClient) -> None:
    async with api.sessions.begin() as session:
        key, _ = await keys.create(session, "first", ["admin"])
        link = await keys.offer_link(session, key.id)
    for _ in range(2):
        shown = await browser.get("/console/sign-in", params={"link": link})
        assert "Sign in as first" in shown.text
        assert not browser.cookies
    assert not await _is_in_with(browser, link), "a link is no session"
    assert (await browser.post("/console/sign-in", data={"link": link})).headers["location"] == "/console"
    assert await _is_in(browser)
    again = await browser.post("/console/sign-in", data={"link": link})
    assert again.status_code == 401
    assert "sage console" in again.text
    assert (await browser.get("/console/sign-in", params={"link": link})).status_code == 401


async def _is_in_with(browser: httpx.AsyncClient, secret: str) -> bool:
    return (await browser.get("/console", headers={"Cookie": f"sage_console={secret}"})).status_code == 200


async def test_only_hashes_of_sessions_and_links_are_stored(api: ApiApp, browser: httpx.AsyncClient) -> None:
    await _sign_in(browser, await _key(api, "tasks"))
    async with api.sessions.begin() as session:
        key, _ = await keys.create(session, "first", ["admin"])
        link = await keys.offer_link(session, key.id)
        stored = (await session.scalars(select(tables.SignIn.hash))).all()
    assert len(stored) == 2
    assert not {link, browser.cookies["sage_console"]} & set(stored)


async def test_a_key_of_one_project_does_not_see_another(api: ApiApp, browser: httpx.AsyncClient) -> None:
    other = await api.project("other")
    key = (await api.key("tasks", project_id=other.id))["Authorization"].removeprefix("Bearer ")
    await _sign_in(browser, key)
    assert (await browser.get("/console?project=demo")).status_code == 404
    page = await browser.get("/console")
    assert "other" in page.text
    assert "demo" not in page.text


async def test_a_link_from_another_site_is_followed_once_more_with_the_cookie(
    browser: httpx.AsyncClient,
) -> None:
    """Browsers send a strict cookie only where the way to the page began on its own site."""
    cross = {"Sec-Fetch-Site": "cross-site"}
    page = await browser.get("/console?project=demo", headers=cross)
    assert page.status_code == 200
    assert 'http-equiv="refresh"' in page.text
    assert (await browser.get("/console", headers={"Sec-Fetch-Site": "same-origin"})).status_code == 303


async def test_errors_are_pages_with_the_status_of_rest(api: ApiApp, browser: httpx.AsyncClient) -> None:
    await _sign_in(browser, await _key(api, "tasks"))
    unknown = await browser.get("/console/nothing")
    assert unknown.status_code == 404
    assert unknown.headers["content-type"].startswith("text/html")
    wrong = await browser.get("/console/sign-out")
    assert wrong.status_code == 405


async def test_assets_are_kept_only_under_the_address_of_their_content(browser: httpx.AsyncClient) -> None:
    page = await browser.get("/console/sign-in")
    found = re.search(r'href="(/console/static/\w+/style\.css)"', page.text)
    assert found
    style = await browser.get(found[1])
    assert "immutable" in style.headers["cache-control"]
    assert style.headers["content-type"].startswith("text/css")
    assert (await browser.get("/console/static/0/style.css")).headers["cache-control"] == "no-store"
    assert (await browser.get("/console/static/0/../session.py")).status_code in (303, 404)

"""Pages of the console as text, without a browser."""

from collections.abc import Mapping, Sequence

import httpx

from app.projects import keys
from app.web.pages import csrf_token
from tests.support.api_app import ApiApp, asgi_client


async def read_page(api: ApiApp, address: str, *scopes: str, status: int = 200) -> str:
    """As a new key with these scopes is shown it."""
    return await _request(api, "GET", address, scopes, status)


async def post_form(api: ApiApp, address: str, fields: Mapping[str, str], *scopes: str, status: int = 303) -> str:
    """As a new key with these scopes sends it."""
    return await _request(api, "POST", address, scopes, status, fields)


async def _request(
    api: ApiApp,
    method: str,
    address: str,
    scopes: Sequence[str],
    status: int,
    fields: Mapping[str, str] | None = None,
) -> str:
    async with api.sessions.begin() as session:
        key, _ = await keys.create(session, "ann", scopes, None)
        secret = await keys.begin(session, key.id)
    form = None if fields is None else {**fields, "csrf": csrf_token(secret)}
    async with asgi_client(api.app, {}) as browser:
        cookie = {"Cookie": f"sage_console={secret}"}
        answer: httpx.Response = await browser.request(method, address, data=form, headers=cookie)
    assert answer.status_code == status, (address, answer.status_code)
    return answer.text

"""Pages of the console as text, without a browser."""

from collections.abc import Mapping

import httpx

from app.console.session import csrf_token
from app.db import keys, sign_ins
from tests.api_app import ApiApp, asgi_client


async def send_form(api: ApiApp, address: str, fields: Mapping[str, str], *scopes: str, status: int = 303) -> str:
    """As a new key with these scopes sends it."""
    async with api.sessions.begin() as session:
        key, _ = await keys.create(session, "ann", scopes, None)
        secret = await sign_ins.begin(session, key.id)
    async with asgi_client(api.app, {"Cookie": f"sage_console={secret}"}) as browser:
        answer: httpx.Response = await browser.post(address, data={"csrf": csrf_token(secret), **fields})
    assert answer.status_code == status, (address, answer.status_code)
    return answer.text


async def read_page(api: ApiApp, address: str, *scopes: str, status: int = 200) -> str:
    """As a new key with these scopes is shown it."""
    async with api.sessions.begin() as session:
        key, _ = await keys.create(session, "ann", scopes, None)
        cookie = {"Cookie": f"sage_console={await sign_ins.begin(session, key.id)}"}
    async with asgi_client(api.app, {}) as browser:
        answer: httpx.Response = await browser.get(address, headers=cookie)
    assert answer.status_code == status, (address, answer.status_code)
    return answer.text

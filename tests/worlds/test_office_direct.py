"""Direct calls of the office return exactly what its HTTP services answer."""

from typing import Any

import httpx

from app.apis.calls.http_call import HttpCaller, WireRequest
from tests.support.every_row import every_row
from trainer.worlds.office.environment import DirectClient
from trainer.worlds.office.services import create_services
from trainer.worlds.office.worlds import Worlds

DEMO = "/sites/0/worlds/demo"
OperationCall = tuple[str, str, dict[str, Any]]


CALLS: list[OperationCall] = [
    ("GET", f"{DEMO}/supervisor/show_passwords", {}),
    ("GET", f"{DEMO}/supervisor/show_nothing", {}),
    ("POST", f"{DEMO}/supervisor/show_profile", {}),
    ("GET", f"{DEMO}/nothing/at_all", {}),
    ("GET", "/sites/0/worlds/t0-s1-d0-0-xa/supervisor/show_profile", {}),
    ("GET", "/sites/3/worlds/t0-s1-d0-0-xa/supervisor/show_profile", {}),
    ("GET", "/sites/0/worlds/no%20world/supervisor/show_profile", {}),
    ("GET", f"{DEMO}/mail/browse_mails", {"params": {"page": "1"}}),
    ("GET", f"{DEMO}/mail/browse_mails", {"params": {"page": "1"}, "headers": {"access_token": "wrong"}}),
    ("POST", f"{DEMO}/mail/sign_in", {"json": {"password": "wrong"}}),
    ("POST", f"{DEMO}/mail/sign_in", {"content": b"["}),
    ("POST", f"{DEMO}/mail/sign_in", {}),
    ("PUT", f"{DEMO}/mail/sign_in", {}),
    ("GET", "/sites/0/mail/openapi.json", {}),
    ("GET", "/nowhere", {}),
]


async def test_a_direct_call_is_answered_as_over_http() -> None:
    with every_row() as row:
        for asked in CALLS:
            with row(asked):
                assert await _seen(*asked, direct=True) == await _seen(*asked, direct=False)


async def test_the_gateway_reads_a_direct_answer_which_has_no_stream() -> None:
    async with _client(Worlds(), direct=True) as client:
        answer = await HttpCaller(client, timeout=30).send(
            WireRequest("GET", f"http://office{DEMO}/supervisor/show_passwords")
        )
    assert "mail" in answer.value


async def test_a_direct_change_is_visible_over_http() -> None:
    worlds = Worlds()
    direct, http = _client(worlds, direct=True), _client(worlds, direct=False)
    async with direct, http:
        password = (await direct.get(f"{DEMO}/supervisor/show_passwords")).json()["mail"]
        signed = await direct.post(f"{DEMO}/mail/sign_in", json={"password": password})
        token = {"access_token": signed.json()["access_token"]}
        pages = [await each.get(f"{DEMO}/mail/browse_mails?page=1", headers=token) for each in (direct, http)]
        assert pages[0].json() == pages[1].json()
        first = pages[0].json()[0]["id"]
        done = await direct.post(f"{DEMO}/mail/unlock_mail", json={"id": first}, headers=token)
        done_again = await http.post(f"{DEMO}/mail/unlock_mail", json={"id": first}, headers=token)
        assert (done.status_code, done.content) == (done_again.status_code, done_again.content) == (204, b"")


async def _seen(method: str, path: str, options: dict[str, Any], *, direct: bool) -> tuple[int, str, bytes]:
    """All that a rollout can see of an answer."""
    async with _client(Worlds(), direct=direct) as client:
        answer = await client.request(method, path, **options)
        return answer.status_code, answer.headers.get("content-type", "").partition(";")[0], answer.content


def _client(worlds: Worlds, *, direct: bool) -> httpx.AsyncClient:
    services: Any = create_services("secret", worlds)
    if direct:
        return DirectClient(worlds, services, "http://office")
    return httpx.AsyncClient(transport=httpx.ASGITransport(services), base_url="http://office")

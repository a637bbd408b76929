"""Limits on keys: failed ones of an address, and requests of each, through the HTTP stack."""

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest

from app.db.database import Sessions
from app.web.access import KeyGate, TokenBuckets
from tests.support.api_app import ApiApp, open_api_app, problem


@pytest.fixture
async def api(committed: Sessions, database_url: str) -> AsyncIterator[ApiApp]:
    async with open_api_app(committed, database_url) as opened:
        yield opened


async def with_key(api: ApiApp, secret: str) -> httpx.Response:
    return await api.client.get("/v1/projects", headers={"Authorization": f"Bearer {secret}"})


async def until_refused(api: ApiApp, most: int, **headers: str) -> tuple[int, httpx.Response]:
    """Send requests until one is refused with 429. Returns how many were not, and the refusal."""
    for count in range(most):
        answer = await api.client.get("/v1/projects", headers=headers)
        if answer.status_code == 429:
            return count, answer
    raise AssertionError("none was refused")


async def limit_requests(api: ApiApp, per_minute: int) -> dict[str, str]:
    """Headers with a key of the project, whose keys may send so many requests."""
    settings = {"limits": {"requests_per_minute": per_minute}}
    answer = await api.client.patch("/v1/projects/demo", json={"settings": settings})
    assert answer.status_code == 200
    return await api.key("admin", project_id=api.demo.id)


def test_a_bucket_holds_a_minutes_tokens_and_refills_steadily() -> None:
    now = 0.0
    buckets = TokenBuckets[str](lambda: now)
    assert [buckets.take("a", 30) for _ in range(31)] == [0.0] * 30 + [2.0]
    assert buckets.take("b", 30) == 0
    now = 1.5
    assert buckets.take("a", 30) == pytest.approx(0.5)
    now = 2.0
    assert buckets.take("a", 30) == 0
    now = 1_000.0
    assert [buckets.take("a", 30) for _ in range(31)] == [0.0] * 30 + [2.0]


def test_only_so_many_buckets_are_remembered() -> None:
    buckets = TokenBuckets[int](lambda: 0.0, size=10)
    for key in range(100_000):
        buckets.take(key, 1)
    assert [buckets.take(key, 1) > 0 for key in (99_989, 99_990, 99_999)] == [False, False, True]


async def test_after_20_unknown_keys_an_address_is_refused_until_it_has_waited(api: ApiApp) -> None:
    count, refused = await until_refused(api, 40, Authorization="Bearer guess")
    assert count >= 20
    assert problem(refused)["limit"] == {"name": "failed_keys_per_minute", "value": 20, "setting": ""}
    await asyncio.sleep(int(refused.headers["Retry-After"]))
    assert (await with_key(api, "another guess")).status_code == 401


async def test_keys_that_were_valid_go_on_working_from_an_address_that_is_refused(api: ApiApp) -> None:
    assert (await api.client.get("/v1/projects")).status_code == 200
    await until_refused(api, 40, Authorization="Bearer guess")
    assert (await api.client.get("/v1/projects")).status_code == 200


async def test_a_revoked_key_counts_as_unknown(api: ApiApp) -> None:
    headers = await api.key("admin")
    assert (await api.client.get("/v1/projects", headers=headers)).status_code == 200
    [key] = [each for each in (await api.client.get("/v1/keys")).json() if each["name"] == "test"]
    await api.client.delete(f"/v1/keys/{key['id']}")
    assert (await api.client.get("/v1/projects", headers=headers)).status_code == 401
    assert (await until_refused(api, 40, **headers))[0] >= 19


def test_the_64_bits_of_an_ipv6_client_count_as_one_address() -> None:
    gate = KeyGate()
    for host in range(20):
        gate.failed(f"2001:db8::{host:x}", f"guess {host}")
    with pytest.raises(Exception, match="unknown keys from this address"):
        gate.admit("2001:db8::ffff", "another guess")
    gate.admit("2001:db8:0:1::1", "another guess")


async def test_requests_of_a_key_are_limited_and_accepted_again_after_the_wait(api: ApiApp) -> None:
    headers = await limit_requests(api, 60)
    count, refused = await until_refused(api, 500, **headers)
    assert count >= 60
    assert problem(refused)["limit"] == {
        "name": "requests_per_minute",
        "value": 60,
        "setting": "SAGE_LIMIT_REQUESTS_PER_MINUTE",
    }
    await asyncio.sleep(int(refused.headers["Retry-After"]))
    assert (await api.client.get("/v1/projects", headers=headers)).status_code == 200


async def test_other_keys_health_and_metrics_are_not_limited_with_it(api: ApiApp) -> None:
    headers = await limit_requests(api, 1)
    statuses = [(await api.client.get("/v1/projects", headers=headers)).status_code for _ in range(2)]
    assert statuses == [200, 429]
    other = await api.key("admin", project_id=api.demo.id)
    assert (await api.client.get("/v1/projects", headers=other)).status_code == 200
    for path in ("/healthz", "/livez", "/readyz", "/metrics"):
        assert (await api.client.get(path, headers=headers)).status_code == 200

"""How many requests a model server gets at a time, in which order, and which server a prompt goes to."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from app.engine.client import HttpEngine
from app.engine.health import HealthChecks
from app.engine.protocol import Sampling
from app.engine.replica import BLOCK_TOKENS, RecentPrefixes, ReplicaState, hash_blocks
from tests.support.engine_process import engine_process
from tests.support.faulty_proxy import COMPLETIONS, FaultyProxy, faulty_proxy, held, sound, until
from tests.support.tiny_model import make_model_dir


@pytest.fixture(scope="module")
def upstream(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    model = make_model_dir(tmp_path_factory.mktemp("model"))
    with engine_process(model, "--embeddings", "none") as url:
        yield url


@asynccontextmanager
async def two_servers(
    upstream: str, at_once: int = 64
) -> AsyncIterator[tuple[FaultyProxy, FaultyProxy, HttpEngine]]:
    """The proxies have recorded nothing of the capability probes."""
    async with (
        faulty_proxy(upstream) as one,
        faulty_proxy(upstream) as two,
        HttpEngine(
            [one.url, two.url],
            max_in_flight=at_once,
            checks=HealthChecks(interval=0.05, timeout=10.0),
        ) as engine,
    ):
        for proxy in (one, two):
            proxy.bodies.clear()
            proxy.most = 0
        yield one, two, engine


def asking(engine: HttpEngine, *prompts: list[int]) -> list[asyncio.Task[object]]:
    one = Sampling(max_tokens=1)
    return [asyncio.create_task(engine.complete(prompt, model="base", sampling=one)) for prompt in prompts]


def prompts_at(proxy: FaultyProxy) -> list[list[int]]:
    return [body["prompt"] for body in proxy.bodies]


async def test_a_server_gets_a_limited_number_of_requests_and_the_others_wait_in_order(upstream: str) -> None:
    prompts = [[number] for number in range(12)]
    gate = asyncio.Event()
    async with two_servers(upstream, at_once=2) as (one, two, engine):
        one.fault = two.fault = held(gate, COMPLETIONS)
        tasks = asking(engine, *prompts)
        await until(lambda: one.at_once == two.at_once == 2)
        assert [replica.in_flight for replica in engine.replicas] == [2, 2]
        busy = engine.occupancy()
        assert (busy.servers[ReplicaState.LIVE], busy.servers[ReplicaState.OUT], busy.in_flight, busy.waiting) == (
            2,
            0,
            4,
            8,
        )
        assert (prompts_at(one), prompts_at(two)) == ([[0], [2]], [[1], [3]])
        gate.set()
        await asyncio.gather(*tasks)
        assert (one.most, two.most) == (2, 2)
        for recent in (prompts_at(one), prompts_at(two)):  # two at once may overtake each other on their way
            assert all(abs(sorted(recent).index(prompt) - place) <= 1 for place, prompt in enumerate(recent))
        assert [replica.in_flight for replica in engine.replicas] == [0, 0]


async def test_the_capacity_of_a_server_that_returns_is_used_at_once(upstream: str) -> None:
    gate = asyncio.Event()
    async with two_servers(upstream, at_once=1) as (one, two, engine):
        await two.down()
        await until(lambda: not engine.replicas[1].alive)
        one.fault = held(gate, COMPLETIONS)
        tasks = asking(engine, [1], [2], [3])
        await until(lambda: one.at_once == 1)
        await two.up()
        await until(lambda: tasks[1].done() and tasks[2].done())
        assert not tasks[0].done()
        gate.set()
        await asyncio.gather(*tasks)


async def test_a_request_cancelled_while_it_waits_occupies_no_server(upstream: str) -> None:
    gate = asyncio.Event()
    async with two_servers(upstream, at_once=1) as (one, two, engine):
        one.fault = two.fault = held(gate, COMPLETIONS)
        tasks = asking(engine, [1], [2], [3], [4])
        await until(lambda: one.at_once == two.at_once == 1)
        tasks[2].cancel()
        gate.set()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert tasks[2].cancelled()
        assert [3] not in prompts_at(one) + prompts_at(two)
        assert [replica.in_flight for replica in engine.replicas] == [0, 0]


async def test_a_request_cancelled_as_it_is_assigned_releases_its_server(upstream: str) -> None:
    async with two_servers(upstream, at_once=1) as (one, _, engine):
        held_back = asking(engine, [1], [2], [3])
        await asyncio.sleep(0)  # all three are queued, two are assigned, none has continued
        for task in held_back:
            task.cancel()
        await asyncio.gather(*held_back, return_exceptions=True)
        assert [replica.in_flight for replica in engine.replicas] == [0, 0]
        one.fault = sound
        await asyncio.gather(*asking(engine, [4], [5]))


async def test_a_next_turn_goes_to_the_server_of_the_last_one_and_other_prompts_spread(upstream: str) -> None:
    async with two_servers(upstream) as (one, two, engine):
        opening, other = [3] * (2 * BLOCK_TOKENS), [4] * (2 * BLOCK_TOKENS)
        await asyncio.gather(*asking(engine, opening, other))
        for turn in range(1, 4):
            await asyncio.gather(*asking(engine, [*opening, *[5] * (turn * 10)]))
            await asyncio.gather(*asking(engine, [*other, *[5] * (turn * 10)]))
        assert {tuple(prompt[:1]) for prompt in prompts_at(one)} == {(3,)}
        assert {tuple(prompt[:1]) for prompt in prompts_at(two)} == {(4,)}
        assert (len(one.bodies), len(two.bodies)) == (4, 4)


async def test_a_server_that_was_out_is_assumed_to_have_an_empty_cache(upstream: str) -> None:
    async with two_servers(upstream) as (one, two, engine):
        opening = [3] * BLOCK_TOKENS
        await asyncio.gather(*asking(engine, opening))
        await one.down()
        await until(lambda: not engine.replicas[0].alive)
        await asyncio.gather(*asking(engine, opening))
        await one.up()
        await until(lambda: engine.replicas[0].alive)
        one.bodies.clear()
        await asyncio.gather(*asking(engine, opening))
        assert (len(one.bodies), len(two.bodies)) == (0, 2)


async def test_a_shared_prefix_does_not_overload_one_server(upstream: str) -> None:
    gate = asyncio.Event()
    async with two_servers(upstream) as (one, two, engine):
        one.fault = two.fault = held(gate, COMPLETIONS)
        tasks = asking(engine, *([3] * BLOCK_TOKENS for _ in range(20)))
        await until(lambda: one.at_once + two.at_once == 20)
        assert abs(one.at_once - two.at_once) <= 4
        gate.set()
        await asyncio.gather(*tasks)


def test_the_least_recently_used_prefix_is_dropped_from_its_end() -> None:
    recent = RecentPrefixes(max_blocks=3)
    first, second = hash_blocks("base", [1] * (2 * BLOCK_TOKENS)), hash_blocks("base", [2] * (2 * BLOCK_TOKENS))
    recent.add(first)
    recent.add(second)
    assert (recent.match(first), recent.match(second)) == (1, 2)


def test_a_prefix_matches_for_its_own_model_only() -> None:
    recent = RecentPrefixes()
    recent.add(hash_blocks("base", [1] * BLOCK_TOKENS))
    assert recent.match(hash_blocks("base", [1] * (3 * BLOCK_TOKENS))) == 1
    assert recent.match(hash_blocks("adapter", [1] * BLOCK_TOKENS)) == 0

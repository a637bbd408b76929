"""Requests survive model servers that die, hang, break off and come back."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest

from app.base.errors import EngineError, EngineRefusalError
from app.engine.client import HttpEngine
from app.engine.health import HealthChecks
from app.engine.protocol import Sampling
from app.engine.replica import Replica
from tests.support.engine_process import engine_process
from tests.support.faulty_proxy import (
    COMPLETIONS,
    Fault,
    FaultyProxy,
    Forward,
    Reply,
    answering,
    cutting,
    faulty_proxy,
    hanging,
    held,
    rewriting,
    until,
)
from tests.support.tiny_model import make_model_dir

QUICK = HealthChecks(interval=0.05, timeout=10.0)
IMPATIENT = HealthChecks(interval=0.05, timeout=4.0, max_misses=2)


@pytest.fixture(scope="module")
def upstream(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    model = make_model_dir(tmp_path_factory.mktemp("model"))
    with engine_process(model, "--embeddings", "none") as url:
        yield url


@pytest.fixture
async def one(upstream: str) -> AsyncIterator[FaultyProxy]:
    async with faulty_proxy(upstream) as proxy:
        yield proxy


@pytest.fixture
async def two(upstream: str) -> AsyncIterator[FaultyProxy]:
    async with faulty_proxy(upstream) as proxy:
        yield proxy


def open_engine(*proxies: FaultyProxy, checks: HealthChecks = QUICK, **options: Any) -> HttpEngine:
    return HttpEngine([proxy.url for proxy in proxies], checks=checks, **options)


async def ask(engine: HttpEngine, seed: int = 0, prompt: tuple[int, ...] = (1, 2, 3)) -> tuple[int, ...]:
    return (await engine.complete(prompt, model="base", sampling=Sampling(max_tokens=4, seed=seed))).ids


def asking(engine: HttpEngine, count: int) -> list[asyncio.Task[tuple[int, ...]]]:
    return [asyncio.create_task(ask(engine, seed)) for seed in range(count)]


async def test_the_requests_of_a_server_that_dies_are_completed_by_the_other(
    one: FaultyProxy, two: FaultyProxy
) -> None:
    gate = asyncio.Event()
    async with open_engine(one, two) as engine:
        expected = [await ask(engine, seed) for seed in range(6)]
        one.fault = two.fault = held(gate, COMPLETIONS)
        tasks = asking(engine, 6)
        await until(lambda: one.at_once == two.at_once == 3)
        await one.down()
        await until(lambda: two.at_once == 6)
        assert not engine.replicas[0].alive
        gate.set()
        assert await asyncio.gather(*tasks) == expected


async def test_a_server_that_returns_gets_requests_once_it_is_ready(one: FaultyProxy, two: FaultyProxy) -> None:
    async with open_engine(one, two) as engine:
        back = engine.replicas[0]
        welcomed: list[tuple[Replica, bool, int]] = []

        async def welcome(replica: Replica) -> None:
            welcomed.append((replica, replica.alive, replica.in_flight))

        engine.on_return = welcome
        await one.down()
        await until(lambda: not back.alive)
        await asyncio.gather(*asking(engine, 4))
        assert await engine.ready() == f"{one.url} is out: {back.cause}"
        await one.up()
        await until(lambda: back.alive)
        assert welcomed == [(back, False, 0)]
        assert await engine.ready() == ""
        before = len(one.bodies)
        await asyncio.gather(*asking(engine, 4))
        assert len(one.bodies) - before == 2


async def test_a_server_that_cannot_be_made_ready_stays_out(one: FaultyProxy, two: FaultyProxy) -> None:
    async with open_engine(one, two) as engine:
        tried = 0

        async def fail(_: Replica) -> None:
            nonlocal tried
            tried += 1
            raise EngineError("no adapter goes in") if tried == 1 else ValueError("a bug")

        engine.on_return = fail
        await one.down()
        await until(lambda: not engine.replicas[0].alive)
        await one.up()
        await until(lambda: tried == 3)
        assert not engine.replicas[0].alive
        assert await asyncio.gather(*asking(engine, 4))


async def test_a_request_that_times_out_is_retried_on_another_server(one: FaultyProxy, two: FaultyProxy) -> None:
    async with open_engine(one, two, timeout=4.0) as engine:
        expected = await ask(engine)
        one.fault = hanging(COMPLETIONS)
        assert await asyncio.gather(*asking(engine, 2)) == [expected, await ask(engine, 1)]
        await until(lambda: one.at_once == 0)  # the generation that took too long was cancelled


async def test_a_server_that_hangs_altogether_delays_no_request(one: FaultyProxy, two: FaultyProxy) -> None:
    async with open_engine(one, two, checks=IMPATIENT) as engine:
        expected = [await ask(engine, seed) for seed in range(4)]
        one.fault = hanging()
        assert await asyncio.gather(*asking(engine, 4)) == expected
        assert "does not answer" in str(engine.replicas[0].cause)


async def test_one_failure_is_retried_elsewhere_and_three_in_a_row_eject_a_server(
    one: FaultyProxy, two: FaultyProxy
) -> None:
    async with open_engine(one, two) as engine:
        expected = await ask(engine)
        one.fault = answering(500, "oops", COMPLETIONS)
        for failures in (1, 2, 3):
            assert engine.replicas[0].alive
            assert await ask(engine) == expected
            assert (
                sum(body["prompt"] == [1, 2, 3] for body in one.bodies) == 1 + failures
            )  # probes have other prompts
        await until(lambda: "oops" in str(engine.replicas[0].cause))


def aborted(_: Any, answer: Any) -> Any:
    answer["choices"][0]["finish_reason"] = "abort"
    return answer


@pytest.mark.parametrize(
    "fault", [cutting(COMPLETIONS), answering(503, "busy", COMPLETIONS), rewriting(COMPLETIONS, aborted)]
)
async def test_a_generation_that_one_server_breaks_off_is_completed_by_another(
    one: FaultyProxy, two: FaultyProxy, fault: Fault
) -> None:
    async with open_engine(one, two) as engine:
        expected = await ask(engine)
        one.fault = fault
        assert await ask(engine) == expected
        assert engine.replicas[0].alive


async def test_a_server_that_asks_to_retry_later_is_not_ejected(one: FaultyProxy, two: FaultyProxy) -> None:
    async with open_engine(one, two) as engine:
        one.fault = answering(429, "slow down", COMPLETIONS)
        before = len(two.bodies)
        with pytest.raises(EngineError, match="slow down") as caught:
            await ask(engine)
        assert not isinstance(caught.value, EngineRefusalError), "it may be retried"
        assert len(two.bodies) == before
        assert await engine.health()


@pytest.mark.parametrize(
    "change",
    [
        lambda choice: choice["token_ids"].pop(),
        lambda choice: choice["prompt_token_ids"].append(9),
        lambda choice: choice.update(token_ids=None),
        lambda choice: choice.update(logprobs={}),
    ],
)
async def test_a_server_that_gives_invalid_answers_is_ejected_at_once(
    one: FaultyProxy, two: FaultyProxy, change: Any
) -> None:
    def spoil(_: Any, answer: Any) -> Any:
        change(answer["choices"][0])
        return answer

    async with open_engine(one, two) as engine:
        expected = await ask(engine)
        one.fault = rewriting(COMPLETIONS, spoil)
        assert await ask(engine) == expected
        assert not engine.replicas[0].alive


async def test_a_server_ejected_again_and_again_is_readmitted_with_backoff(
    one: FaultyProxy, two: FaultyProxy
) -> None:
    readmissions = 0

    async def corrupting_completions(path: str, body: Any, forward: Forward) -> Reply | None:
        nonlocal readmissions
        readmissions += path == "/version"  # the first request of every probe
        status, answer = await forward()
        if path == COMPLETIONS and body["prompt"] == [1, 2, 3]:
            answer["choices"][0]["prompt_token_ids"] = [9]
        return status, answer

    async with open_engine(one, two, checks=HealthChecks(interval=0.1, timeout=10.0)) as engine:
        one.fault = corrupting_completions
        until_then = asyncio.get_running_loop().time() + 2
        while asyncio.get_running_loop().time() < until_then or not readmissions:
            await ask(engine)
    assert 1 <= readmissions <= 6  # after 0, 0.2, 0.6, 1.4 seconds, not 20 times


async def test_a_refusal_is_not_retried_on_another_server(one: FaultyProxy, two: FaultyProxy) -> None:
    async with open_engine(one, two) as engine:
        before = len(one.bodies) + len(two.bodies)
        with pytest.raises(EngineRefusalError, match="maximum context length") as caught:
            await ask(engine, prompt=(1,) * 600)
        assert caught.value.code == 400
        assert len(one.bodies) + len(two.bodies) - before == 1
        assert await engine.health()


async def test_if_all_are_out_each_is_named_with_its_cause(one: FaultyProxy, two: FaultyProxy) -> None:
    two.fault = answering(503, "the engine is dead", "/health")
    async with open_engine(one, two) as engine:
        await one.down()
        await until(lambda: not engine.replicas[0].alive)
        with pytest.raises(EngineError, match=rf"{one.url}: .*unreachable.*; {two.url}: .*the engine is dead"):
            await ask(engine)
        with pytest.raises(EngineError, match="no model server answers"):
            await engine.ready()


async def test_a_cancelled_request_ends_its_generation_on_the_server(one: FaultyProxy, upstream: str) -> None:
    async def running() -> float:
        async with httpx.AsyncClient(base_url=upstream, timeout=300) as http:
            lines = (await http.get("/metrics")).text.splitlines()
        return float(next(line for line in lines if line.startswith("vllm:num_requests_running{")).split()[-1])

    async with open_engine(one) as engine:
        for seed in range(1, 20):
            long = Sampling(max_tokens=500, seed=seed)
            task = asyncio.create_task(engine.complete([1, 2], model="base", sampling=long))
            while not await running() and not task.done():
                pass
            task.cancel()
            await asyncio.wait([task])
            if task.cancelled():  # otherwise it ended before
                break
        assert task.cancelled()
        while await running():
            pass
        assert engine.replicas[0].in_flight == 0

"""What happens to requests when model servers die, hang, break off and come back."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.engine.client import HttpEngine, Replica
from app.engine.health_monitor import Pace
from app.engine.noop_adapter import Shape, write_zero_adapter
from app.engine.protocol import Sampling
from app.errors import EngineError, EngineRefusalError
from tests.engine_process import engine_process
from tests.faulty import (
    COMPLETIONS,
    Fault,
    Faulty,
    Forward,
    Reply,
    answering,
    cutting,
    faulty,
    hanging,
    held,
    rewriting,
    until,
)
from tests.tiny_model import make_model_dir

QUICK = Pace(every=0.05, patience=10.0)
LOOKS = Pace(every=0.05, patience=1.0, misses=2)


@pytest.fixture(scope="module")
def upstream(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    model = make_model_dir(tmp_path_factory.mktemp("model"))
    with engine_process(model, "--embeddings", "none") as url:
        yield url


@pytest.fixture
async def one(upstream: str) -> AsyncIterator[Faulty]:
    async with faulty(upstream) as proxy:
        yield proxy


@pytest.fixture
async def two(upstream: str) -> AsyncIterator[Faulty]:
    async with faulty(upstream) as proxy:
        yield proxy


def open_engine(*proxies: Faulty, pace: Pace = QUICK, **options: Any) -> HttpEngine:
    return HttpEngine([proxy.url for proxy in proxies], pace=pace, **options)


async def ask(engine: HttpEngine, seed: int = 0, prompt: tuple[int, ...] = (1, 2, 3)) -> tuple[int, ...]:
    return (await engine.complete(prompt, model="base", sampling=Sampling(max_tokens=4, seed=seed))).ids


def asking(engine: HttpEngine, count: int) -> list[asyncio.Task[tuple[int, ...]]]:
    return [asyncio.create_task(ask(engine, seed)) for seed in range(count)]


async def test_the_requests_of_a_server_that_dies_are_finished_by_the_other(one: Faulty, two: Faulty) -> None:
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


async def test_a_server_that_comes_back_gets_requests_again_once_it_was_made_ready(
    one: Faulty, two: Faulty
) -> None:
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


async def test_a_server_that_cannot_be_made_ready_stays_out(one: Faulty, two: Faulty) -> None:
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


async def test_a_request_that_takes_too_long_is_asked_of_another_server(one: Faulty, two: Faulty) -> None:
    async with open_engine(one, two, timeout=1.0) as engine:
        expected = await ask(engine)
        one.fault = hanging(COMPLETIONS)
        assert await asyncio.gather(*asking(engine, 2)) == [expected, await ask(engine, 1)]
        await until(lambda: one.at_once == 0)  # the generation that took too long was given up


async def test_a_load_that_hangs_is_given_up_and_the_server_goes_on_answering(one: Faulty, tmp_path: Path) -> None:
    async with open_engine(one, load_timeout=0.5) as engine:
        expected = await ask(engine)
        one.fault = hanging("/v1/load_lora_adapter")
        with pytest.raises(EngineError, match=r"in 0\.5 s.*SAGE_ENGINE_LOAD_TIMEOUT_SECONDS"):
            await engine.load_adapter("a", tmp_path)
        assert await ask(engine) == expected


async def test_a_server_that_hangs_altogether_holds_no_request(one: Faulty, two: Faulty) -> None:
    async with open_engine(one, two, pace=LOOKS) as engine:
        expected = [await ask(engine, seed) for seed in range(4)]
        one.fault = hanging()
        assert await asyncio.gather(*asking(engine, 4)) == expected
        assert "does not answer" in str(engine.replicas[0].cause)


async def test_one_failure_is_asked_elsewhere_and_three_in_a_row_put_a_server_out(
    one: Faulty, two: Faulty
) -> None:
    async with open_engine(one, two) as engine:
        expected = await ask(engine)
        one.fault = answering(500, "oops", COMPLETIONS)
        for failures in (1, 2, 3):
            assert engine.replicas[0].alive
            assert await ask(engine) == expected
            assert (
                sum(body["prompt"] == [1, 2, 3] for body in one.bodies) == 1 + failures
            )  # it is examined by others
        await until(lambda: "oops" in str(engine.replicas[0].cause))


def aborted(_: Any, answer: Any) -> Any:
    answer["choices"][0]["finish_reason"] = "abort"
    return answer


@pytest.mark.parametrize(
    "fault", [cutting(COMPLETIONS), answering(503, "busy", COMPLETIONS), rewriting(COMPLETIONS, aborted)]
)
async def test_what_one_server_breaks_off_costs_nobody_an_answer(one: Faulty, two: Faulty, fault: Fault) -> None:
    async with open_engine(one, two) as engine:
        expected = await ask(engine)
        one.fault = fault
        assert await ask(engine) == expected
        assert engine.replicas[0].alive


async def test_a_server_that_asks_for_a_pause_gets_it(one: Faulty, two: Faulty) -> None:
    async with open_engine(one, two) as engine:
        one.fault = answering(429, "slow down", COMPLETIONS)
        before = len(two.bodies)
        with pytest.raises(EngineError, match="slow down") as caught:
            await ask(engine)
        assert not isinstance(caught.value, EngineRefusalError), "it may be asked again"
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
async def test_a_server_that_gives_wrong_answers_is_out_at_once(one: Faulty, two: Faulty, change: Any) -> None:
    def spoil(_: Any, answer: Any) -> Any:
        change(answer["choices"][0])
        return answer

    async with open_engine(one, two) as engine:
        expected = await ask(engine)
        one.fault = rewriting(COMPLETIONS, spoil)
        assert await ask(engine) == expected
        assert not engine.replicas[0].alive


async def test_a_server_that_falls_again_and_again_is_let_back_ever_more_seldom(one: Faulty, two: Faulty) -> None:
    let_in = 0

    async def lying_to_others(path: str, body: Any, forward: Forward) -> Reply | None:
        nonlocal let_in
        let_in += path == "/version"  # the first question of every examination
        status, answer = await forward()
        if path == COMPLETIONS and body["prompt"] == [1, 2, 3]:
            answer["choices"][0]["prompt_token_ids"] = [9]
        return status, answer

    async with open_engine(one, two, pace=Pace(every=0.1, patience=10.0)) as engine:
        one.fault = lying_to_others
        until_then = asyncio.get_running_loop().time() + 2
        while asyncio.get_running_loop().time() < until_then:
            await ask(engine)
    assert 1 <= let_in <= 6  # after 0, 0.2, 0.6, 1.4 seconds, not 20 times


async def test_a_refusal_is_not_asked_of_another_server(one: Faulty, two: Faulty) -> None:
    async with open_engine(one, two) as engine:
        before = len(one.bodies) + len(two.bodies)
        with pytest.raises(EngineRefusalError, match="maximum context length") as caught:
            await ask(engine, prompt=(1,) * 600)
        assert caught.value.code == 400
        assert len(one.bodies) + len(two.bodies) - before == 1
        assert await engine.health()


async def test_where_all_are_out_each_is_named_with_its_cause(one: Faulty, two: Faulty) -> None:
    two.fault = answering(503, "the engine is dead", "/health")
    async with open_engine(one, two) as engine:
        await one.down()
        await until(lambda: not engine.replicas[0].alive)
        with pytest.raises(EngineError, match=rf"{one.url}: .*unreachable.*; {two.url}: .*the engine is dead"):
            await ask(engine)
        with pytest.raises(EngineError, match="no model server answers"):
            await engine.ready()


async def test_a_server_that_lost_its_adapters_gets_them_again(one: Faulty, upstream: str, tmp_path: Path) -> None:
    path = write_zero_adapter(tmp_path, Shape(3, 64, 64), 4)
    async with open_engine(one) as engine, httpx.AsyncClient(base_url=upstream) as http:
        await engine.load_adapter("x", path)
        assert engine.replicas[0].names == {"base", "x"}
        await http.post("/v1/unload_lora_adapter", json={"lora_name": "x"})
        await until(lambda: "x" not in engine.replicas[0].names)
        await until(lambda: "x" in engine.replicas[0].names)
        await engine.complete([1], model="x", sampling=Sampling(max_tokens=1))
        await engine.unload_adapter("x")
        assert await engine.models() == ["base"]
        with pytest.raises(EngineRefusalError, match="no model server has `x`") as caught:
            await engine.complete([1], model="x", sampling=Sampling(max_tokens=1))
        assert caught.value.code == 404


async def test_a_server_that_lacks_only_what_another_process_unloaded_goes_on(one: Faulty, tmp_path: Path) -> None:
    path = write_zero_adapter(tmp_path, Shape(3, 64, 64), 4)
    async with open_engine(one) as engine, open_engine(one) as other:
        for name in "xy":
            await engine.load_adapter(name, path)
        [replica] = engine.replicas
        examined = replica.capabilities
        await other.unload_adapter("x")
        await until(lambda: "x" not in replica.names)
        await asyncio.sleep(4 * QUICK.every)
        assert replica.names == {"base", "y"}
        assert replica.capabilities is examined, "it was not taken for restarted"
        await engine.unload_adapter("y")


async def test_a_cancelled_request_ends_its_generation_on_the_server(one: Faulty, upstream: str) -> None:
    async def running() -> float:
        async with httpx.AsyncClient(base_url=upstream) as http:
            lines = (await http.get("/metrics")).text.splitlines()
        return float(next(line for line in lines if line.startswith("vllm:num_requests_running{")).split()[-1])

    async with open_engine(one) as engine:
        long = Sampling(max_tokens=500, seed=1)
        task = asyncio.create_task(engine.complete([1, 2], model="base", sampling=long))
        while not await running():
            assert not task.done(), "it ended before it could be cancelled"
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        async with asyncio.timeout(10):
            while await running():
                pass
        assert engine.replicas[0].in_flight == 0

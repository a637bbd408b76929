"""Swaps beside other processes, busy servers, and servers that come late or come back with something else."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from app.db.database import Sessions
from app.db.models import ReleaseState
from app.engine.health_monitor import HealthChecks
from app.engine.http_engine import HttpEngine
from app.engine.protocol import Sampling
from app.errors import AdapterError, EngineError
from tests.engine_process import engine_process
from tests.faulty_proxy import (
    COMPLETIONS,
    Fault,
    FaultyProxy,
    Forward,
    Reply,
    faulty_proxy,
    hanging,
    held,
    sound,
    until,
)
from tests.swapping import Shelf, Swapping
from tests.tiny_model import make_model_dir

LOAD = "/v1/load_lora_adapter"
QUICK = HealthChecks(interval=0.1)


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Shelf:
    model_dir = make_model_dir(tmp_path_factory.mktemp("model"))
    return Shelf.fill(model_dir, tmp_path_factory.mktemp("adapters"))


@pytest.fixture(scope="module")
def servers(shelf: Shelf) -> Iterator[list[str]]:
    options = ("--embeddings", "none", "--max-loras", "4")
    with engine_process(shelf.model_dir, *options) as one, engine_process(shelf.model_dir, *options) as other:
        yield [one, other]


class Company:
    """Processes before the same two model servers, each with its own way to the second one."""

    def __init__(self, servers: list[str], sessions: Sessions, shelf: Shelf) -> None:
        self._servers, self._sessions, self._shelf = servers, sessions, shelf

    @asynccontextmanager
    async def process(self, fault: Fault = sound, **options: Any) -> AsyncIterator[tuple[Swapping, FaultyProxy]]:
        options = {"checks": QUICK} | options
        async with (
            faulty_proxy(self._servers[1], fault) as second,
            HttpEngine([self._servers[0], second.url], **options) as engine,
            self._shelf.swap(engine, self._sessions) as hot,
        ):
            yield Swapping(engine, self._sessions, self._shelf, hot), second

    async def clear(self) -> None:
        async with HttpEngine(self._servers) as engine:
            for name in (await engine.loaded())[1:]:
                await engine.unload_adapter(name)


@pytest.fixture
async def company(servers: list[str], committed: Sessions, shelf: Shelf) -> Company:
    """With nothing loaded."""
    company = Company(servers, committed, shelf)
    await company.clear()
    return company


def has(swapping: Swapping, name: str, index: int = 1) -> bool:
    return swapping.shelf.names[name] in swapping.engine.replicas[index].names


def failing_once(path: str, reply: Reply) -> Fault:
    left = [reply]

    async def fault(asked: str, _: Any, forward: Forward) -> Reply | None:
        return left.pop() if asked == path and left else await forward()

    return fault


async def test_a_server_that_is_ready_after_the_start_gets_what_serves(company: Company) -> None:
    gate = asyncio.Event()
    slow = held(gate, COMPLETIONS)
    async with company.process(slow, checks=HealthChecks(interval=0.1, timeout=0.5)) as (
        swapping,
        _,
    ):
        await swapping.release("a", ReleaseState.ACTIVE)
        swapping.hot.wake()
        await until(lambda: has(swapping, "a", 0))
        assert not has(swapping, "a")
        gate.set()
        await until(lambda: swapping.engine.replicas[1].alive)
        assert has(swapping, "a")


async def test_a_proof_that_hangs_holds_up_the_next_swap_no_longer_than_a_load_may_take(company: Company) -> None:
    async with company.process(load_timeout=1.0) as (swapping, second):
        second.fault = hanging(COMPLETIONS)
        with pytest.raises(EngineError, match="no answer"):
            await swapping.swap("a", swapping.shelf.probe("a"))
        await until(lambda: not swapping.engine.replicas[1].alive)  # it answers looks, but no request
        await swapping.ask("b")


async def test_who_gives_up_a_load_leaves_an_adapter_that_another_process_has_proven(company: Company) -> None:
    gate, reached = asyncio.Event(), asyncio.Event()

    async def busy(path: str, _: Any, forward: Forward) -> Reply | None:
        if path != COMPLETIONS:
            return await forward()
        reached.set()
        await gate.wait()
        return 503, "busy"

    async with company.process() as (one, _), company.process() as (other, way):
        way.fault = busy
        probe = other.shelf.probe("a")
        failing = asyncio.create_task(other.swap("a", probe))
        await reached.wait()
        proving = asyncio.create_task(one.swap("a", probe))
        await asyncio.sleep(0.3)
        gate.set()
        with pytest.raises(EngineError):
            await failing
        assert len((await proving).replicas) == 2
        assert await one.loaded() == ["a"]


async def test_a_server_that_fails_once_at_a_load_is_asked_once_more(company: Company) -> None:
    async with company.process() as (swapping, second):
        second.fault = failing_once(LOAD, (500, {"error": {"message": "out of memory"}}))
        await swapping.swap("a", swapping.shelf.probe("a"))
        assert has(swapping, "a")


async def test_weights_that_give_no_numbers_are_refused_and_cost_no_server(company: Company) -> None:
    """As vLLM says it."""
    refusal = 400, {"error": {"message": "Out of range float values are not JSON compliant"}}

    async def spoiled(path: str, body: Any, forward: Forward) -> Reply | None:
        return refusal if path == COMPLETIONS and body["model"] != "base" else await forward()

    async with company.process() as (swapping, second):
        second.fault = spoiled
        for probe in (swapping.shelf.probe("a"), None):
            with pytest.raises(AdapterError, match="not finite: train others"):
                await swapping.swap("a", probe)
        assert all(replica.alive for replica in swapping.engine.replicas)
        second.fault = failing_once(COMPLETIONS, refusal)  # what such weights left in its memory
        await asyncio.gather(*(swapping.ask("base") for _ in range(4)))
        assert second.bodies[-1]["model"] == "base"


async def test_without_a_probe_a_server_that_returns_must_say_what_the_others_say(
    company: Company, servers: list[str]
) -> None:
    async with company.process() as (swapping, second):
        await swapping.release("a", ReleaseState.ACTIVE)
        await second.down()
        await until(lambda: not swapping.engine.replicas[1].alive)
        await swapping.swap("a")
        names, path = swapping.shelf.names, swapping.shelf.path
        async with HttpEngine(servers[1:]) as outside:
            await outside.load_adapter(names["a"], path / names["b"])
            await second.up()
            await until(lambda: "does not serve adapter" in str(swapping.engine.replicas[1].cause))
            assert not swapping.engine.replicas[1].alive
            await outside.unload_adapter(names["a"])
        await until(lambda: swapping.engine.replicas[1].alive, seconds=20)
        assert has(swapping, "a")


async def test_a_swap_before_a_busy_server_does_not_keep_its_health_from_being_seen(company: Company) -> None:
    gate, checks = asyncio.Event(), HealthChecks(interval=0.1, timeout=0.5, max_misses=2)
    async with (
        company.process(at_once=4, checks=checks) as (swapping, second),
        AsyncExitStack() as stack,
    ):
        stack.callback(gate.set)
        await swapping.swap("a")
        second.fault = held(gate, COMPLETIONS)
        asked = [
            asyncio.create_task(swapping.engine.complete([number], model="base", sampling=Sampling(max_tokens=2)))
            for number in range(8)
        ]
        await until(lambda: second.at_once == 4)
        proving = asyncio.create_task(swapping.swap("a", swapping.shelf.probe("a")))
        await asyncio.sleep(2)
        assert swapping.engine.replicas[1].alive
        gate.set()
        await asyncio.gather(proving, *asked)


async def test_a_server_from_which_another_process_unloads_is_not_taken_for_restarted(company: Company) -> None:
    async with company.process() as (one, _), company.process() as (other, _):
        await one.swap("a")
        await other.swap("b")
        states = [replica.state for replica in one.engine.replicas]
        await other.unload("a")
        for replica in one.engine.replicas:
            await replica.models()
            assert replica.take_lost() == set()
        assert [replica.state for replica in one.engine.replicas] == states

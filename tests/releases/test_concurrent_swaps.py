"""Swaps beside other processes, on busy servers, and on servers that start late or return with other weights."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from app.base.errors import AdapterError, EngineError
from app.db.database import Sessions
from app.db.tables import ReleaseState
from app.engine.client import HttpEngine
from app.engine.health import HealthChecks
from app.engine.protocol import Sampling
from tests.support.engine_process import engine_process
from tests.support.faulty_proxy import (
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
from tests.support.loader_setup import LoaderSetup, NamedAdapters
from tests.support.tiny_model import make_model_dir

LOAD = "/v1/load_lora_adapter"
QUICK = HealthChecks(interval=0.1)


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> NamedAdapters:
    model_dir = make_model_dir(tmp_path_factory.mktemp("model"))
    return NamedAdapters.fill(model_dir, tmp_path_factory.mktemp("adapters"))


@pytest.fixture(scope="module")
def servers(adapters: NamedAdapters) -> Iterator[list[str]]:
    options = ("--embeddings", "none", "--max-loras", "4")
    with (
        engine_process(adapters.model_dir, *options) as one,
        engine_process(adapters.model_dir, *options) as other,
    ):
        yield [one, other]


class Processes:
    """Processes that share two model servers, each with its own proxy to the second one."""

    def __init__(self, servers: list[str], sessions: Sessions, adapters: NamedAdapters) -> None:
        self._servers, self._sessions, self._adapters = servers, sessions, adapters

    @asynccontextmanager
    async def process(
        self, fault: Fault = sound, **options: Any
    ) -> AsyncIterator[tuple[LoaderSetup, FaultyProxy]]:
        options = {"checks": QUICK} | options
        async with (
            faulty_proxy(self._servers[1], fault) as second,
            HttpEngine([self._servers[0], second.url], **options) as engine,
            self._adapters.loader(engine, self._sessions) as loader,
        ):
            yield LoaderSetup(engine, self._sessions, self._adapters, loader), second

    async def clear(self) -> None:
        async with HttpEngine(self._servers) as engine:
            for name in (await engine.loaded())[1:]:
                await engine.unload_adapter(name)


@pytest.fixture
async def processes(servers: list[str], committed: Sessions, adapters: NamedAdapters) -> Processes:
    """With nothing loaded."""
    processes = Processes(servers, committed, adapters)
    await processes.clear()
    return processes


def has(setup: LoaderSetup, name: str, index: int = 1) -> bool:
    return setup.adapters.names[name] in setup.engine.replicas[index].names


def failing_once(path: str, reply: Reply) -> Fault:
    left = [reply]

    async def fault(asked: str, _: Any, forward: Forward) -> Reply | None:
        return left.pop() if asked == path and left else await forward()

    return fault


async def test_a_server_that_is_ready_late_gets_the_active_adapters(processes: Processes) -> None:
    gate = asyncio.Event()
    slow = held(gate, COMPLETIONS)
    async with processes.process(slow, checks=HealthChecks(interval=0.1, timeout=2.0)) as (
        setup,
        _,
    ):
        await setup.release("a", ReleaseState.ACTIVE)
        setup.loader.wake()
        await until(lambda: has(setup, "a", 0))
        assert not has(setup, "a")
        gate.set()
        await until(lambda: setup.engine.replicas[1].alive)
        assert has(setup, "a")


async def test_a_verification_that_hangs_delays_the_next_swap_by_the_load_timeout_at_most(
    processes: Processes,
) -> None:
    async with processes.process(load_timeout=4.0) as (setup, second):
        second.fault = hanging(COMPLETIONS)
        with pytest.raises(EngineError, match="did not answer within"):
            await setup.swap("a", setup.adapters.probe("a"))
        await until(lambda: not setup.engine.replicas[1].alive)  # it answers health checks, but no request
        await setup.ask("b")


async def test_a_failed_load_keeps_an_adapter_that_another_process_has_verified(processes: Processes) -> None:
    gate, reached = asyncio.Event(), asyncio.Event()

    async def busy(path: str, _: Any, forward: Forward) -> Reply | None:
        if path != COMPLETIONS:
            return await forward()
        reached.set()
        await gate.wait()
        return 503, "busy"

    async with processes.process() as (one, _), processes.process() as (other, way):
        way.fault = busy
        probe = other.adapters.probe("a")
        failing = asyncio.create_task(other.swap("a", probe))
        await reached.wait()
        proving = asyncio.create_task(one.swap("a", probe))
        await asyncio.sleep(0.3)
        gate.set()
        with pytest.raises(EngineError):
            await failing
        assert len((await proving).replicas) == 2
        assert await one.loaded() == ["a"]


async def test_a_load_that_fails_once_is_retried(processes: Processes) -> None:
    async with processes.process() as (setup, second):
        second.fault = failing_once(LOAD, (500, {"error": {"message": "out of memory"}}))
        await setup.swap("a", setup.adapters.probe("a"))
        assert has(setup, "a")


async def test_weights_that_give_nan_are_refused_and_eject_no_server(processes: Processes) -> None:
    """With vLLM's error message."""
    refusal = 400, {"error": {"message": "Out of range float values are not JSON compliant"}}

    async def spoiled(path: str, body: Any, forward: Forward) -> Reply | None:
        return refusal if path == COMPLETIONS and body["model"] != "base" else await forward()

    async with processes.process() as (setup, second):
        second.fault = spoiled
        for probe in (setup.adapters.probe("a"), None):
            with pytest.raises(AdapterError, match="not finite: train others"):
                await setup.swap("a", probe)
        assert all(replica.alive for replica in setup.engine.replicas)
        second.fault = failing_once(COMPLETIONS, refusal)  # as if such weights had left NaN in its memory
        await asyncio.gather(*(setup.ask("base") for _ in range(4)))
        assert second.bodies[-1]["model"] == "base"


async def test_without_a_probe_a_server_that_returns_must_agree_with_the_others(
    processes: Processes, servers: list[str]
) -> None:
    async with processes.process() as (setup, second):
        await setup.release("a", ReleaseState.ACTIVE)
        await second.down()
        await until(lambda: not setup.engine.replicas[1].alive)
        await setup.swap("a")
        names, path = setup.adapters.names, setup.adapters.path
        async with HttpEngine(servers[1:]) as outside:
            await outside.load_adapter(names["a"], path / names["b"])
            await second.up()
            await until(lambda: "does not serve adapter" in str(setup.engine.replicas[1].cause))
            assert not setup.engine.replicas[1].alive
            await outside.unload_adapter(names["a"])
        await until(lambda: setup.engine.replicas[1].alive)
        assert has(setup, "a")


async def test_a_swap_on_a_busy_server_does_not_block_its_health_checks(processes: Processes) -> None:
    gate, checks = asyncio.Event(), HealthChecks(interval=0.1, timeout=20)
    holding, checked = held(gate, COMPLETIONS), list[str]()

    async def counting(path: str, body: Any, forward: Forward) -> Reply | None:
        checked.extend([path] * (path == "/health"))
        return await holding(path, body, forward)

    async with (
        processes.process(max_in_flight=4, checks=checks) as (setup, second),
        AsyncExitStack() as stack,
    ):
        stack.callback(gate.set)
        await setup.swap("a")
        second.fault = counting
        asked = [
            asyncio.create_task(setup.engine.complete([number], model="base", sampling=Sampling(max_tokens=2)))
            for number in range(8)
        ]
        await until(lambda: second.at_once == 4)
        proving = asyncio.create_task(setup.swap("a", setup.adapters.probe("a")))
        before = len(checked)
        await until(lambda: len(checked) > before + 10)
        assert setup.engine.replicas[1].alive
        gate.set()
        await asyncio.gather(proving, *asked)


async def test_a_server_is_not_taken_for_restarted_if_another_process_unloads(
    processes: Processes,
) -> None:
    async with processes.process() as (one, _), processes.process() as (other, _):
        await one.swap("a")
        await other.swap("b")
        states = [replica.state for replica in one.engine.replicas]
        await other.unload("a")
        for replica in one.engine.replicas:
            await replica.models()
            assert replica.take_lost() == set()
        assert [replica.state for replica in one.engine.replicas] == states

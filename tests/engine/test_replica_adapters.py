"""Servers have the adapters that the engine gave them, also after one lost some or would not load one."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest

from app.base.errors import EngineError, EngineRefusalError
from app.engine.client import HttpEngine
from app.engine.health import HealthChecks, QueryShape, write_noop_adapter
from app.engine.protocol import Sampling
from tests.support.engine_process import engine_process
from tests.support.faulty_proxy import FaultyProxy, faulty_proxy, hanging, until
from tests.support.tiny_model import make_model_dir

QUICK = HealthChecks(interval=0.05, timeout=10.0)


@pytest.fixture(scope="module")
def upstream(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    model = make_model_dir(tmp_path_factory.mktemp("model"))
    with engine_process(model, "--embeddings", "none") as url:
        yield url


@pytest.fixture
async def one(upstream: str) -> AsyncIterator[FaultyProxy]:
    async with faulty_proxy(upstream) as proxy:
        yield proxy


def open_engine(proxy: FaultyProxy, load_timeout: float = 60.0) -> HttpEngine:
    return HttpEngine([proxy.url], checks=QUICK, load_timeout=load_timeout)


async def test_a_server_that_lost_its_adapters_gets_them_again(
    one: FaultyProxy, upstream: str, tmp_path: Path
) -> None:
    path = write_noop_adapter(tmp_path, QueryShape(3, 64, 64), 4)
    async with open_engine(one) as engine, httpx.AsyncClient(base_url=upstream, timeout=300) as http:
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


async def test_a_server_that_lacks_only_what_another_process_unloaded_stays_live(
    one: FaultyProxy, tmp_path: Path
) -> None:
    path = write_noop_adapter(tmp_path, QueryShape(3, 64, 64), 4)
    async with open_engine(one) as engine, open_engine(one) as other:
        for name in "xy":
            await engine.load_adapter(name, path)
        [replica] = engine.replicas
        probed = replica.capabilities
        await other.unload_adapter("x")
        await until(lambda: "x" not in replica.names)
        await asyncio.sleep(4 * QUICK.interval)
        assert replica.names == {"base", "y"}
        assert replica.capabilities is probed, "it is not taken for restarted"
        await engine.unload_adapter("y")


async def test_a_load_that_hangs_times_out_and_the_server_stays_live(one: FaultyProxy, tmp_path: Path) -> None:
    async with open_engine(one, load_timeout=0.5) as engine:
        await until(lambda: engine.replicas[0].alive)  # a busy machine may fail a probe of half a second
        expected = await engine.complete([1], model="base", sampling=Sampling(max_tokens=4, seed=0))
        one.fault = hanging("/v1/load_lora_adapter")
        with pytest.raises(EngineError, match=r"in 0\.5 s.*SAGE_ENGINE_LOAD_TIMEOUT_SECONDS"):
            await engine.load_adapter("a", tmp_path)
        again = await engine.complete([1], model="base", sampling=Sampling(max_tokens=4, seed=0))
        assert again.ids == expected.ids

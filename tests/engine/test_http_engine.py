"""Requests of the HTTP engine, and that all model servers keep the same adapters, even if one of them fails."""

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.base.errors import EngineError, EngineRefusalError
from app.engine.client import HttpEngine
from app.engine.health import HealthChecks, QueryShape, write_noop_adapter
from app.engine.protocol import RetryingEngine, Sampling
from app.engine.vllm import HttpEmbedder
from tests.support.engine_process import engine_process
from tests.support.faulty_proxy import Fault, FaultyProxy, Forward, Reply, answering, faulty_proxy, sound
from tests.support.tiny_model import make_model_dir

LOAD = "/v1/load_lora_adapter"
QUICK = HealthChecks(interval=0.05, timeout=10.0)
ONE = Sampling(max_tokens=1, seed=4, stop_token_ids=(9,))


@pytest.fixture(scope="module")
def upstreams(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    model = make_model_dir(tmp_path_factory.mktemp("model"))
    with (
        engine_process(model, "--embeddings", "none") as one,
        engine_process(model, "--embeddings", "none") as two,
    ):
        yield one, two


@pytest.fixture
async def proxies(upstreams: tuple[str, str]) -> AsyncIterator[tuple[FaultyProxy, FaultyProxy]]:
    async with faulty_proxy(upstreams[0]) as one, faulty_proxy(upstreams[1]) as two:
        yield one, two


@pytest.fixture
async def engine(proxies: tuple[FaultyProxy, FaultyProxy]) -> AsyncIterator[HttpEngine]:
    async with HttpEngine([proxy.url for proxy in proxies], checks=QUICK) as engine:
        yield engine
        for proxy in proxies:
            proxy.fault = sound
        for name in await engine.loaded():
            if name != "base":
                await engine.unload_adapter(name)


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    return write_noop_adapter(tmp_path, QueryShape(3, 64, 64), 4)


async def test_a_completion_is_requested_by_ids_and_sampled_without_bias(upstreams: tuple[str, str]) -> None:
    async with faulty_proxy(upstreams[0]) as proxy, HttpEngine([proxy.url], checks=QUICK) as engine:
        answer = await engine.complete([1, 2], model="base", sampling=ONE)
        assert (len(answer.ids), len(answer.logprobs)) == (1, 1)
        body = proxy.bodies[-1]
        expected = {"model": "base", "prompt": [1, 2], "seed": 4, "stop_token_ids": [9], "temperature": 1.0}
        assert expected.items() <= body.items()
        assert (body["top_p"], body["top_k"], body["min_p"], body["repetition_penalty"]) == (1, 0, 0, 1)


async def test_a_server_that_is_still_starting_answers_requests_that_are_retried(
    upstreams: tuple[str, str],
) -> None:
    async with faulty_proxy(upstreams[0]) as proxy:
        await proxy.down()
        async with HttpEngine([proxy.url], checks=QUICK) as engine:
            with pytest.raises(
                EngineError, match=rf"{proxy.url}.* is unreachable .*: start it, or correct ENGINE_URLS"
            ):
                await engine.complete([1], model="base", sampling=ONE)
            assert not await engine.health()
            patient = RetryingEngine(engine, seconds=60, pause=0.05)
            asking = asyncio.create_task(patient.complete([1], model="base", sampling=ONE))
            await proxy.up()
            assert len((await asking).ids) == 1
            assert await engine.health()


def loading(refuse: Callable[[], bool], code: int = 500) -> Fault:
    async def fault(path: str, _: Any, forward: Forward) -> Reply | None:
        return (code, {"error": {"message": "no room"}}) if path == LOAD and refuse() else await forward()

    return fault


async def test_a_load_that_fails_on_one_server_is_undone_on_the_others(
    engine: HttpEngine, proxies: tuple[FaultyProxy, FaultyProxy], adapter: Path
) -> None:
    proxies[1].fault = loading(lambda: True)
    with pytest.raises(EngineError, match="no room"):
        await engine.load_adapter("x", adapter)
    assert await engine.loaded() == ["base"]
    proxies[1].fault = sound
    await engine.load_adapter("x", adapter)
    assert await engine.models() == ["base", "x"]
    await engine.replicas[0].unload("x")
    assert await engine.models() == ["base"]
    assert await engine.loaded() == ["base", "x"]
    await engine.unload_adapter("x")
    assert await engine.loaded() == ["base"]


async def test_an_adapter_that_was_there_before_a_failed_load_stays(
    engine: HttpEngine, proxies: tuple[FaultyProxy, FaultyProxy], adapter: Path
) -> None:
    await engine.replicas[0].load("x", adapter)
    proxies[1].fault = loading(lambda: True, code=409)
    with pytest.raises(EngineRefusalError) as caught:
        await engine.load_adapter("x", adapter)
    assert caught.value.code == 409
    assert await engine.replicas[0].models() == ["base", "x"]


async def test_an_adapter_that_another_process_loads_at_the_same_time_is_loaded(
    engine: HttpEngine, proxies: tuple[FaultyProxy, FaultyProxy], adapter: Path
) -> None:
    async def raced(path: str, _: Any, forward: Forward) -> Reply | None:
        reply = await forward()
        return (400, {"error": {"message": "has already been loaded"}}) if path == LOAD else reply

    proxies[0].fault = raced
    await engine.load_adapter("x", adapter)
    assert await engine.models() == ["base", "x"]


async def test_only_servers_that_have_an_adapter_get_its_requests(
    engine: HttpEngine, proxies: tuple[FaultyProxy, FaultyProxy], adapter: Path
) -> None:
    await engine.replicas[1].load("x", adapter)
    before = len(proxies[0].bodies)
    await asyncio.gather(*(engine.complete([1], model="x", sampling=ONE) for _ in range(6)))
    assert len(proxies[0].bodies) == before
    with pytest.raises(EngineRefusalError, match="no model server has `y`") as caught:
        await engine.complete([1], model="y", sampling=ONE)
    assert caught.value.code == 404


def embedding(rows: list[dict[str, Any]]) -> Fault:
    """An embedding server, which the proxies' own is not."""

    async def fault(path: str, _: Any, __: Forward) -> Reply | None:
        if path == "/v1/models":
            return 200, {"data": [{"id": "base"}, {"id": "mini", "task": "embed"}]}
        return 200, {"data": rows}

    return fault


async def test_vectors_come_in_the_order_of_the_texts_with_length_one() -> None:
    rows = [{"index": 1, "embedding": [6.0, 4.0]}, {"index": 0, "embedding": [3.0, 4.0]}]
    async with faulty_proxy("http://127.0.0.1:9", embedding(rows)) as server:
        embedder = await HttpEmbedder.open(server.url)
        vectors = await embedder.embed(["a", "b"])
        assert await embedder.embed([]) == []
        with pytest.raises(EngineError, match="2 vectors for 1 texts"):
            await embedder.embed(["a"])
        await embedder.close()
    assert embedder.model == "mini"
    np.testing.assert_allclose(vectors, [[0.6, 0.8], [0.83205, 0.5547]], atol=1e-5)
    assert vectors[0].dtype == np.float32


async def test_a_server_of_several_models_needs_the_embedding_model_named() -> None:
    models = {"data": [{"id": "a"}, {"id": "b"}]}
    async with faulty_proxy("http://127.0.0.1:9", answering(200, models, "/v1/models")) as server:
        with pytest.raises(EngineError, match=re.escape(f"{server.url} serves a, b: name the embedding model")):
            await HttpEmbedder.open(server.url)

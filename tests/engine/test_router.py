"""Model servers behind a router: each loads and proves adapters, one URL serves, and servers come and go."""

import asyncio
import itertools
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from app.base.errors import EngineError, EngineRefusalError, SettingError
from app.db.database import Sessions
from app.engine.client import HttpEngine, Topology
from app.engine.dispatch import addresses_of
from app.engine.health import HealthChecks, QueryShape, write_noop_adapter
from app.engine.protocol import Completion, Sampling
from app.engine.replica import ServerRequirements
from app.releases.adapter_store import AdapterDirectory
from app.releases.swap import AdapterLoader
from tests.support.engine_process import engine_process
from tests.support.faulty_proxy import (
    COMPLETIONS,
    FaultyProxy,
    Forward,
    Reply,
    answering,
    faulty_proxy,
    rewriting,
    until,
)
from tests.support.named_adapters import make_named
from tests.support.tiny_model import make_model_dir

QUICK = HealthChecks(interval=0.05, timeout=10.0)
LOAD = "/v1/load_lora_adapter"


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model_dir(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def upstream(model_dir: Path) -> Iterator[str]:
    with engine_process(model_dir, "--embeddings", "none") as url:
        yield url


@pytest.fixture(scope="module")
def other(model_dir: Path) -> Iterator[str]:
    with engine_process(model_dir, "--embeddings", "none") as url:
        yield url


class Cluster(NamedTuple):
    """Servers, a router that sends requests to those in `routed` in turn, and the names that DNS has for them."""

    router: FaultyProxy
    servers: list[FaultyProxy]
    routed: list[FaultyProxy]
    names: list[str]

    def topology(self) -> Topology:
        async def resolve(_: str) -> list[str]:
            if not self.names:
                raise OSError("Name or service not known")
            return list(self.names)

        return Topology(router=self.router.url, resolve_seconds=0.05, resolve=resolve)


@pytest.fixture
async def cluster(upstream: str, other: str) -> AsyncIterator[Cluster]:
    """Two servers, both known to all. A router answers 503 for a server that is down."""
    async with faulty_proxy(upstream) as one, faulty_proxy(other) as two, faulty_proxy(upstream) as router:
        made = Cluster(router, [one, two], [one, two], [one.url, two.url])
        turns = defaultdict[str, Iterator[int]](itertools.count)

        async def forward(path: str, _: Any, send: Forward) -> Reply | None:
            router.upstream = made.routed[next(turns[path]) % len(made.routed)].url
            try:
                return await send()
            except httpx.HTTPError:
                return 503, "no healthy upstream"

        router.fault = forward
        yield made


@asynccontextmanager
async def open_engine(cluster: Cluster, **options: Any) -> AsyncIterator[HttpEngine]:
    async with HttpEngine(
        ["dns+http://model-servers:8000"], checks=QUICK, topology=cluster.topology(), **options
    ) as engine:
        yield engine
        if engine.answers:
            for name in await engine.loaded():
                if name != "base":
                    await engine.unload_adapter(name)


async def ask(engine: HttpEngine, model: str = "base") -> Completion:
    return await engine.complete([1, 2, 3], model=model, sampling=Sampling(max_tokens=4, seed=0))


def clear(cluster: Cluster) -> None:
    for proxy in (cluster.router, *cluster.servers):
        proxy.bodies.clear()


async def test_generations_go_to_the_router_and_adapters_to_each_server(cluster: Cluster, tmp_path: Path) -> None:
    path = write_noop_adapter(tmp_path, QueryShape(3, 64, 64), 4)
    async with open_engine(cluster) as engine:
        assert [one.url for one in engine.replicas] == cluster.names
        clear(cluster)
        with pytest.raises(EngineRefusalError, match="load it"):
            await ask(engine, "x")
        await engine.load_adapter("x", path)
        assert [await one.models() for one in engine.replicas] == [["base", "x"]] * 2
        assert len({(await ask(engine, "x")).ids for _ in range(4)}) == 1
        assert len(cluster.router.bodies) == 4
        assert [len(server.bodies) for server in cluster.servers] == [2, 2]


async def test_a_server_that_only_the_router_knows_is_named_as_the_cause(
    cluster: Cluster, model_dir: Path, committed: Sessions, tmp_path: Path
) -> None:
    """It cannot be asked to load adapters, and finds none by itself."""
    name = make_named(model_dir, tmp_path, seed=1)
    cluster.names.pop()
    async with open_engine(cluster) as engine:
        loader = AdapterLoader(engine, committed, AdapterDirectory(tmp_path, model_dir))
        await loader.load(name)
        cluster.routed.pop(0)
        with pytest.raises(EngineError, match="to a model server that lacks it: set VLLM_LORA_RESOLVER_CACHE_DIR"):
            await loader.complete([1, 2, 3], model=name, sampling=Sampling(max_tokens=4))
        cluster.routed[:] = cluster.servers[:1]
        await loader.complete([1, 2, 3], model=name, sampling=Sampling(max_tokens=4))


async def test_a_model_that_one_server_lacks_is_not_asked_for(cluster: Cluster, tmp_path: Path) -> None:
    """The router might send the request there."""
    path = write_noop_adapter(tmp_path, QueryShape(3, 64, 64), 4)
    async with open_engine(cluster) as engine:
        await engine.replicas[0].load("x", path)
        clear(cluster)
        with pytest.raises(EngineRefusalError) as caught:
            await ask(engine, "x")
        assert caught.value.code == 404
        assert cluster.router.bodies == []


async def test_servers_join_and_leave_as_their_names_resolve(cluster: Cluster) -> None:
    one, two = cluster.names
    cluster.names.remove(two)
    async with open_engine(cluster) as engine:
        assert [each.url for each in engine.replicas] == [one]
        cluster.names.append(two)
        await until(lambda: [each.url for each in engine.replicas if each.alive] == [one, two])
        cluster.names.remove(one)
        await until(lambda: [each.url for each in engine.replicas] == [two])
        cluster.names.clear()
        while not (warning := await engine.ready()):  # noqa: ASYNC110  no event tells
            await asyncio.sleep(0.01)
        assert (
            warning == "dns+http://model-servers:8000 in ENGINE_URLS does not resolve (Name or service not known)"
        )
        assert [each.url for each in engine.replicas if each.alive] == [two]
        await ask(engine)


async def test_no_server_is_named_if_nothing_resolves(cluster: Cluster) -> None:
    cluster.names.clear()
    async with open_engine(cluster) as engine:
        assert not engine.answers
        with pytest.raises(EngineError, match="http://model-servers:8000 in ENGINE_URLS does not resolve"):
            await ask(engine)
        with pytest.raises(EngineError, match="does not resolve"):
            await engine.ready()


async def test_a_server_that_dies_behind_the_router_fails_no_request(cluster: Cluster) -> None:
    async with open_engine(cluster) as engine:
        expected = await ask(engine)
        await cluster.servers[0].down()
        assert [(await ask(engine)).ids for _ in range(6)] == [expected.ids] * 6
        assert engine.router is not None
        assert engine.router.replica.alive
        await until(lambda: not engine.replicas[0].alive)
        assert engine.answers


async def test_a_router_that_dies_is_named_and_returns(cluster: Cluster) -> None:
    async with open_engine(cluster) as engine:
        await cluster.router.down()
        with pytest.raises(EngineError, match=rf"the router {cluster.router.url}|SAGE_ENGINE_ROUTER_URL"):
            await ask(engine)
        await until(lambda: not engine.answers)
        with pytest.raises(
            EngineError, match=rf"the router {cluster.router.url} is out: .*SAGE_ENGINE_ROUTER_URL"
        ):
            await engine.ready()
        await cluster.router.up()
        await until(lambda: engine.answers)
        await ask(engine)


async def test_a_server_with_wrong_logprobs_stops_requests_until_it_is_gone(cluster: Cluster) -> None:
    """The router may send to it, whatever is known here."""

    def scaled(body: Any, reply: Any) -> Any:
        values = reply["choices"][0]["logprobs"]["token_logprobs"]
        reply["choices"][0]["logprobs"]["token_logprobs"] = [each / max(body["temperature"], 1) for each in values]
        return reply

    cluster.servers[1].fault = rewriting(COMPLETIONS, scaled)
    async with open_engine(cluster) as engine:
        bad = cluster.names[1]
        assert not engine.answers
        clear(cluster)
        with pytest.raises(EngineError, match=rf"may send requests to {bad}, which must not serve.*raw_logprobs"):
            await ask(engine)
        assert cluster.router.bodies == []
        with pytest.raises(SettingError, match="raw_logprobs"):
            await engine.check()
        cluster.names.remove(bad)
        await until(lambda: engine.answers)
        await ask(engine)


async def test_a_router_that_drops_token_ids_is_refused(cluster: Cluster) -> None:
    forward = cluster.router.fault

    async def without_ids(path: str, body: Any, send: Forward) -> Reply | None:
        reply = await forward(path, body, send)
        if path == COMPLETIONS and reply is not None:
            reply[1]["choices"][0].pop("token_ids")
        return reply

    cluster.router.fault = without_ids
    async with open_engine(cluster) as engine:
        with pytest.raises(
            SettingError, match=r"SAGE_ENGINE_ROUTER_URL names no usable router: .*return_token_ids"
        ):
            await engine.check()
        with pytest.raises(EngineError, match=f"the router {cluster.router.url} is out"):
            await ask(engine)


async def test_a_server_that_loads_nothing_is_named_with_the_flag(cluster: Cluster, tmp_path: Path) -> None:
    cluster.servers[1].fault = answering(404, {"error": {"message": "no such route"}}, LOAD)
    needs = ServerRequirements(adapters=tmp_path)
    async with open_engine(cluster, requirements=needs) as engine:
        with pytest.raises(SettingError, match="VLLM_ALLOW_RUNTIME_LORA_UPDATING"):
            await engine.check()


async def test_a_server_that_leaves_completes_its_request(cluster: Cluster) -> None:
    """Without a router; in a cluster, a server is gone from DNS before it stops."""
    gate = asyncio.Event()
    one, two = cluster.servers
    cluster.names.remove(two.url)

    async def slow(path: str, _: Any, send: Forward) -> Reply | None:
        if path == COMPLETIONS:
            await gate.wait()
        return await send()

    topology = Topology(resolve_seconds=0.05, resolve=cluster.topology().resolve)
    async with HttpEngine(["dns+http://model-servers:8000"], checks=QUICK, topology=topology) as engine:
        one.fault = slow
        asking = asyncio.create_task(ask(engine))
        await until(lambda: one.at_once == 1)
        cluster.names[:] = [two.url]
        await until(lambda: [each.url for each in engine.replicas if each.alive] == [two.url])
        gate.set()
        assert (await asking).ids == (await ask(engine)).ids


async def test_a_name_resolves_to_urls_with_its_addresses() -> None:
    assert await addresses_of("http://127.0.0.1:8000/vllm") == ["http://127.0.0.1:8000/vllm"]
    assert await addresses_of("http://[::1]") == ["http://[::1]:80"]
    assert "http://user:pw@127.0.0.1:8000" in await addresses_of("http://user:pw@localhost:8000")
    with pytest.raises(OSError, match=r"\w"):
        await addresses_of("http://nothing.invalid:8000")

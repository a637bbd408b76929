"""vLLM finds adapters by itself: a replica that others restart serves them from its first request on."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from app.db.database import Sessions
from app.db.tables import ReleaseState
from app.engine.client import HttpEngine, Topology
from app.engine.health import HealthChecks
from app.engine.protocol import RetryingEngine
from tests.integration.vllm.adapters import make_adapter, reference
from tests.integration.vllm.live_requests import off_by, random_prompt, sampling
from tests.integration.vllm.loader_setup import open_loader, release_row
from tests.integration.vllm.server import VllmServer
from tests.support.faulty_proxy import COMPLETIONS, Forward, Reply, faulty_proxy
from trainer.learning.adapter import PublishedAdapter

PROMPT = random_prompt(11, 40)


class Pods(NamedTuple):
    directory: Path
    servers: list[VllmServer]


@pytest.fixture(scope="module")
def pods(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pods]:
    """Two replicas that see the adapter directory."""
    directory, logs = tmp_path_factory.mktemp("adapters"), tmp_path_factory.mktemp("vllm")
    servers = [VllmServer(logs / f"{number}.log", adapters=directory) for number in range(2)]
    try:
        for each in servers:
            each.wait()
        yield Pods(directory, servers)
    finally:
        for each in servers:
            each.stop()


@pytest.fixture(scope="module")
def mine(pods: Pods) -> PublishedAdapter:
    return make_adapter(pods.directory, 21)


async def logprobs(url: str, model: str) -> tuple[list[int], list[float]]:
    """Of a greedy answer to the prompt, as any client asks for it. Raises HTTPStatusError."""
    body = {
        "model": model,
        "prompt": PROMPT,
        "max_tokens": 12,
        "temperature": 0,
        "logprobs": 0,
        "return_token_ids": True,
    }
    async with httpx.AsyncClient(timeout=300, trust_env=False) as http:
        answer = (await http.post(f"{url}{COMPLETIONS}", json=body)).raise_for_status().json()
    [choice] = answer["choices"]
    return choice["token_ids"], choice["logprobs"]["token_logprobs"]


async def restarted(server: VllmServer) -> None:
    """By other hands: as a cluster restarts a container."""
    server.kill()
    server.restart()
    await asyncio.to_thread(server.wait)


async def test_a_restarted_replica_has_the_right_logprobs_from_its_first_request_on(
    pods: Pods, mine: PublishedAdapter
) -> None:
    server = pods.servers[0]
    ids, before = await logprobs(server.url, mine.hash)
    assert before == pytest.approx(reference(mine.path, PROMPT, ids), abs=1e-4)
    await restarted(server)
    again, after = await logprobs(server.url, mine.hash)
    assert again == ids
    assert after == pytest.approx(before, abs=1e-4)
    base = reference(None, PROMPT, ids)
    assert max(abs(one - other) for one, other in zip(before, base, strict=True)) > 0.1


async def test_an_adapter_that_names_another_base_must_be_loaded(pods: Pods) -> None:
    unnamed = make_adapter(pods.directory, 22, base=None)
    with pytest.raises(httpx.HTTPStatusError, match="404"):
        await logprobs(pods.servers[0].url, unnamed.hash)
    async with HttpEngine([pods.servers[0].url]) as engine:
        await engine.load_adapter(unnamed.hash, unnamed.path)
        ids, values = await logprobs(pods.servers[0].url, unnamed.hash)
        assert values == pytest.approx(reference(unnamed.path, PROMPT, ids), abs=1e-4)
        await engine.unload_adapter(unnamed.hash)


@asynccontextmanager
async def routed(servers: Sequence[VllmServer]) -> AsyncIterator[str]:
    """The URL of a router that sends requests to the servers in turn."""
    turns = itertools.count()
    async with faulty_proxy(servers[0].url) as router:

        async def forward(_: str, __: Any, send: Forward) -> Reply | None:
            router.upstream = servers[next(turns) % len(servers)].url
            try:
                return await send()
            except httpx.HTTPError:
                return 503, "no healthy upstream"

        router.fault = forward
        yield router.url


async def test_behind_a_router_a_restart_that_nobody_noticed_changes_no_logprob(
    pods: Pods, mine: PublishedAdapter, committed: Sessions
) -> None:
    """The first round of checks is the last one here."""
    await release_row(committed, mine.hash, ReleaseState.ACTIVE)
    async with (
        routed(pods.servers) as router,
        HttpEngine(
            [each.url for each in pods.servers],
            topology=Topology(router=router),
            checks=HealthChecks(interval=3600, timeout=60),
        ) as engine,
        open_loader(engine, committed, pods.directory) as loader,
    ):
        await loader.load(mine.hash)
        expected = await loader.complete(PROMPT, model=mine.hash, sampling=sampling(12))
        await restarted(pods.servers[1])
        for _ in range(4):
            answer = await loader.complete(PROMPT, model=mine.hash, sampling=sampling(12))
            assert answer.ids == expected.ids
            assert off_by(answer, mine.path, PROMPT) < 1e-4
        async with httpx.AsyncClient(trust_env=False) as http:
            listed = (await http.get(f"{pods.servers[1].url}/v1/models")).json()
        assert mine.hash in {each["id"] for each in listed["data"]}
        assert pods.servers[1].said().count("Resolved and loaded LoRA adapter") >= 1


async def test_a_replica_killed_under_load_behind_a_router_fails_no_request(
    pods: Pods, mine: PublishedAdapter, committed: Sessions
) -> None:
    await release_row(committed, mine.hash, ReleaseState.ACTIVE)
    async with (
        routed(pods.servers) as router,
        HttpEngine([each.url for each in pods.servers], topology=Topology(router=router)) as engine,
        open_loader(engine, committed, pods.directory) as loader,
    ):
        await loader.load(mine.hash)
        runner = RetryingEngine(loader)  # as in a runner
        prompts = [random_prompt(seed, 30) for seed in range(8)]
        asking = [
            asyncio.create_task(runner.complete(each, model=mine.hash, sampling=sampling(100))) for each in prompts
        ]
        await asyncio.sleep(1)
        pods.servers[1].kill()
        for prompt, answer in zip(prompts, await asyncio.gather(*asking), strict=True):
            assert off_by(answer, mine.path, prompt) < 1e-4
        pods.servers[1].restart()
        await asyncio.to_thread(pods.servers[1].wait)
        while not all(each.alive for each in engine.replicas):  # noqa: ASYNC110  no event tells
            await asyncio.sleep(0.1)

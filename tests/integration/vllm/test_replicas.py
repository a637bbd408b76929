"""Two replicas: both load or none, and the death of one fails no request."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import httpx
import pytest

from app.base.errors import AdapterError
from app.db.database import Sessions
from app.db.tables import ReleaseState
from app.engine.client import HttpEngine
from app.engine.protocol import Completion, Sampling
from tests.integration.vllm.adapters import make_adapter
from tests.integration.vllm.conftest import Servers
from tests.integration.vllm.live_requests import metric, off_by, random_prompt, sampling, spoken, until
from tests.integration.vllm.loader_setup import open_loader, release_row
from trainer.learning.adapter import PublishedAdapter

RUNNING = "vllm:num_requests_running"
PROMPTS = [random_prompt(seed, 30) for seed in range(16)]


async def ask_all(engine: HttpEngine, model: str) -> Sequence[Completion]:
    asked = Sampling(max_tokens=300, allowed_token_ids=(17,))  # not a stop token
    return await asyncio.gather(*(engine.complete(each, model=model, sampling=asked) for each in PROMPTS))


async def test_requests_are_balanced_and_replicas_agree(
    both: HttpEngine, adapters: list[PublishedAdapter]
) -> None:
    await both.load_adapter(adapters[0].hash, adapters[0].path)
    prompt = spoken("archive my mails")
    for replica in both.replicas:
        answer = await replica.complete(prompt, model=adapters[0].hash, sampling=sampling(8))
        assert off_by(answer, adapters[0].path, prompt) < 1e-4
    asking = asyncio.create_task(ask_all(both, "base"))
    await until(lambda: _in_flight(both), [8, 8], seconds=30)
    await asking


async def _in_flight(engine: HttpEngine) -> list[int]:
    return [replica.in_flight for replica in engine.replicas]


async def test_an_adapter_that_one_refuses_is_loaded_nowhere(
    both: HttpEngine, committed: Sessions, tmp_path: Path
) -> None:
    """The second one supports half the rank."""
    high = make_adapter(tmp_path, 7, rank=16)
    with pytest.raises(AdapterError, match="max_lora_rank 8"):
        await open_loader(both, committed, tmp_path).swap(high.hash, None)
    assert await both.loaded() == ["base"]


async def test_a_killed_replica_fails_no_request_and_returns_with_its_adapter(
    both: HttpEngine,
    http: httpx.AsyncClient,
    servers: Servers,
    committed: Sessions,
    adapters: list[PublishedAdapter],
) -> None:
    mine, second = adapters[0], both.replicas[1]
    await release_row(committed, mine.hash, ReleaseState.ACTIVE)
    async with open_loader(both, committed, mine.path.parent) as swap:
        await swap.load(mine.hash)
        asking = asyncio.create_task(ask_all(both, mine.hash))
        await until(lambda: metric(http, RUNNING, url=servers[1].url), 8, seconds=60)
        servers[1].kill()
        answers = await asking
        for prompt, answer in zip(PROMPTS, answers, strict=True):
            assert off_by(answer, mine.path, prompt) < 1e-4
        assert not second.alive
        servers[1].restart()
        await asyncio.to_thread(servers[1].wait)
        while not second.alive:
            assert await both.models() == ["base", mine.hash]
            await asyncio.sleep(0.1)
        answer = await second.complete(PROMPTS[0], model=mine.hash, sampling=sampling(8))
        assert off_by(answer, mine.path, PROMPTS[0]) < 1e-4

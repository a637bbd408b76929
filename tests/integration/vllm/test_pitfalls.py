"""Silent failures of vLLM, each of them observed, and that our code prevents them.

Mixed-up weights in batches, caches and names are tested in test_weights; all-or-none loading in test_replicas.
"""

import asyncio
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from app.base.errors import AdapterError
from app.db.database import Sessions
from app.db.tables import ReleaseState
from app.engine.adapter_files import WEIGHTS
from app.engine.client import HttpEngine
from app.engine.health import HealthChecks
from app.engine.protocol import RetryingEngine
from app.engine.vllm import NonFiniteError
from tests.integration.vllm.adapters import (
    Weights,
    blown_up,
    damaged,
    half_as_wide,
    make_adapter,
    not_finite,
    with_strange_names,
    without_a_layer,
)
from tests.integration.vllm.conftest import Servers
from tests.integration.vllm.live_requests import metric, off_by, sampling, spoken
from tests.integration.vllm.loader_setup import open_loader, release_row
from tests.integration.vllm.server import SLOTS, VllmServer
from trainer.learning.adapter import PublishedAdapter

PROMPT = spoken("archive my mails")
HELD = 8  # adapters that the servers keep in memory, of which SLOTS are usable at once


async def loads(http: httpx.AsyncClient) -> float:
    """The number of load requests to the server."""
    return await metric(http, "http_requests_total", 'handler="/v1/load_lora_adapter"')


async def check_well(engine: HttpEngine) -> None:
    """Nothing is loaded, and the base model gives its own logprobs."""
    assert await engine.loaded() == ["base"]
    answers = await asyncio.gather(
        *(engine.complete(PROMPT, model="base", sampling=sampling(16)) for _ in range(4))
    )
    assert all(off_by(answer, None, PROMPT) < 1e-4 for answer in answers)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (not_finite, "weights that are not finite"),  # vLLM: 200, and later base requests are poisoned
        (blown_up, "weights that are not finite"),  # vLLM: the same, after its first request
        (half_as_wide, "does not fit"),  # vLLM: 200, and wrong answers
        (without_a_layer, "lacks weights"),  # vLLM: 200, and wrong answers
        (with_strange_names, "does not have"),  # vLLM: 500
    ],
    ids=["not finite", "blown up", "half as wide", "without a layer", "with strange names"],
)
async def test_a_damaged_adapter_never_reaches_a_server(
    engine: HttpEngine,
    committed: Sessions,
    http: httpx.AsyncClient,
    adapters: list[PublishedAdapter],
    tmp_path: Path,
    change: Callable[[Weights], None],
    words: str,
) -> None:
    path = damaged(adapters[0], tmp_path, change)
    await engine.health()
    before = await loads(http)
    with pytest.raises(AdapterError, match=words):
        await open_loader(engine, committed, tmp_path).swap(path.name, None)
    assert await loads(http) == before
    await check_well(engine)


async def test_nan_left_in_a_servers_memory_fails_no_task(
    adapters: list[PublishedAdapter], tmp_path: Path
) -> None:
    server = VllmServer(tmp_path / "vllm.log").wait()
    path = damaged(adapters[0], tmp_path, blown_up)
    try:
        async with HttpEngine([server.url], checks=HealthChecks(interval=0.2)) as engine:
            [replica] = engine.replicas
            await replica.load(path.name, path)  # bypassing all checks
            with pytest.raises(NonFiniteError):
                await replica.complete(PROMPT, model=path.name, sampling=sampling(8), control=True)
            await replica.unload(path.name)
            patient = RetryingEngine(engine)
            for length in (1, 2, 5, len(PROMPT)) * 4:
                prompt = PROMPT[:length]
                answer = await patient.complete(prompt, model="base", sampling=sampling(8))
                assert off_by(answer, None, prompt) < 1e-4
    finally:
        server.stop()


async def test_an_adapter_that_was_changed_truncated_or_removed_is_named(
    engine: HttpEngine, committed: Sessions, adapters: list[PublishedAdapter], tmp_path: Path
) -> None:
    swap = open_loader(engine, committed, tmp_path)
    path = Path(shutil.copytree(adapters[0].path, tmp_path / adapters[0].hash))
    weights = (path / WEIGHTS).read_bytes()
    (path / WEIGHTS).write_bytes(weights[:-1] + b"\x3c")
    with pytest.raises(AdapterError, match="their content has the hash"):
        await swap.swap(path.name, None)
    (path / WEIGHTS).write_bytes(weights[:-100])
    with pytest.raises(AdapterError, match="cut off"):
        await swap.swap(path.name, None)
    shutil.rmtree(path)
    with pytest.raises(AdapterError, match="there is no adapter"):
        await swap.swap(path.name, None)
    await check_well(engine)


async def test_a_rank_above_the_servers_limit_is_the_adapters_fault(
    engine: HttpEngine, committed: Sessions, tmp_path: Path
) -> None:
    high = make_adapter(tmp_path, 9, rank=32)
    with pytest.raises(AdapterError, match=r"--max-lora-rank, .*LoRA rank 32 is greater than max_lora_rank 16"):
        await open_loader(engine, committed, tmp_path).swap(high.hash, None)
    await check_well(engine)


async def test_no_more_adapters_are_loaded_than_can_be_used_at_once(
    engine: HttpEngine, committed: Sessions, adapters: list[PublishedAdapter]
) -> None:
    """vLLM would load them, and then delay requests for the fifth until one of the four has none."""
    swap = open_loader(engine, committed, adapters[0].path.parent)
    for each in adapters:
        await swap.load(each.hash)
    loaded = await engine.loaded()
    assert len(loaded) == 1 + SLOTS
    assert loaded[-1] == adapters[-1].hash


async def test_an_adapter_in_use_outlives_more_others_than_the_server_keeps_in_memory(
    engine: HttpEngine, committed: Sessions, adapters: list[PublishedAdapter]
) -> None:
    """vLLM drops it and reads it again from its directory; if that is missing, the server dies."""
    kept = adapters[0]
    directory = kept.path.parent
    await release_row(committed, kept.hash, ReleaseState.CANARY)
    swap = open_loader(engine, committed, directory)
    await swap.load(kept.hash)
    for seed in range(100, 100 + HELD):
        other = make_adapter(directory, seed)
        await swap.load(other.hash)
        await engine.unload_adapter(other.hash)
        shutil.rmtree(other.path)  # nobody can request this one
    answer = await swap.complete(PROMPT, model=kept.hash, sampling=sampling(8))
    assert off_by(answer, kept.path, PROMPT) < 1e-4
    with pytest.raises(AdapterError, match="there is no adapter"):
        await swap.complete(PROMPT, model=other.hash, sampling=sampling(8))
    await engine.unload_adapter(kept.hash)
    await check_well(engine)


async def test_logprobs_of_prompts_are_never_requested(
    engine: HttpEngine, servers: Servers, adapters: list[PublishedAdapter]
) -> None:
    """Together with adapters they crash the server for some models."""
    await engine.load_adapter(adapters[0].hash, adapters[0].path)
    for model in ("base", adapters[0].hash):
        await engine.complete(PROMPT, model=model, sampling=sampling(4))
    asked = re.findall(r"prompt_logprobs=(\w+)", servers[0].said())
    assert len(asked) >= 2
    assert set(asked) == {"None"}

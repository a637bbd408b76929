"""The trainer puts a real vLLM to sleep: on a GPU that frees its memory; on the CPU it is refused."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from app.base.errors import EngineError, SettingError
from app.engine.client import HttpEngine
from app.engine.health import HealthChecks
from app.engine.protocol import Completion
from tests.integration.vllm.adapters import make_adapter
from tests.integration.vllm.live_requests import random_prompt, sampling
from tests.integration.vllm.server import WITH_LORA, VllmServer
from trainer.engines.servers import sleep_servers
from trainer.learning.adapter import PublishedAdapter

CACHE = 256 << 20  # bytes of the server's KV cache
PROMPT = random_prompt(1, 40)


@pytest.fixture
def adapter(tmp_path: Path) -> PublishedAdapter:
    return make_adapter(tmp_path / "adapters", 1)


@pytest.fixture
def server(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[VllmServer]:
    server = VllmServer(tmp_path / "log", [*WITH_LORA, *getattr(request, "param", ())], dev=True)
    try:
        yield server.wait()
    finally:
        server.stop()


async def said(server: VllmServer, adapter: PublishedAdapter) -> list[Completion]:
    """Completions of base and adapter, through a client that checks whether the server sleeps."""
    async with HttpEngine([server.url], checks=HealthChecks(may_sleep=True)) as engine:
        await engine.load_adapter(adapter.hash, adapter.path)
        return [
            await engine.complete(PROMPT, model=model, sampling=sampling(20)) for model in ("base", adapter.hash)
        ]


@pytest.mark.gpu
@pytest.mark.parametrize("server", [["--enable-sleep-mode"]], indirect=True)
async def test_memory_is_free_while_it_sleeps_and_completions_are_unchanged_afterwards(
    server: VllmServer, adapter: PublishedAdapter
) -> None:
    before, awake = await said(server, adapter), torch.cuda.mem_get_info()[0]
    with sleep_servers([server.url]):
        assert torch.cuda.mem_get_info()[0] - awake > CACHE / 2
        async with HttpEngine([server.url], checks=HealthChecks(may_sleep=True)) as engine:
            with pytest.raises(EngineError, match="is asleep"):
                await engine.complete(PROMPT, model="base", sampling=sampling(1))
    after = await said(server, adapter)
    assert [each.ids for each in after] == [each.ids for each in before]
    for now, then in zip(after, before, strict=True):
        assert now.logprobs == pytest.approx(then.logprobs, abs=1e-4)


async def test_a_server_that_cannot_sleep_is_named_and_keeps_serving(
    server: VllmServer, adapter: PublishedAdapter
) -> None:
    before = await said(server, adapter)
    with pytest.raises(SettingError, match="--enable-sleep-mode"), sleep_servers([server.url]):
        raise AssertionError("the update must not begin")
    assert [each.ids for each in await said(server, adapter)] == [each.ids for each in before]

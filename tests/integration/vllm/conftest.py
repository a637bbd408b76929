"""Two replicas of a real vLLM on the seed policy, started once for all tests, and clients of them.

`make test-vllm` installs vLLM in an environment of its own; VLLM_BIN names another one.
"""

from collections.abc import AsyncIterator, Iterator

import httpx
import pytest

from app.engine.client import HttpEngine
from tests.integration.vllm.adapters import RANK, make_adapter
from tests.integration.vllm.server import SLOTS, WITH_LORA, VllmServer
from trainer.learning.adapter import PublishedAdapter

collect_ignore = ["on_cpu"]  # imported by vLLM, in vLLM's environment

Servers = tuple[VllmServer, VllmServer]


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    logs = tmp_path_factory.mktemp("vllm")
    low = [*WITH_LORA, "--max-lora-rank", str(RANK)]  # the last flag counts
    high = [*WITH_LORA, "--enable-log-requests"]
    both = VllmServer(logs / "one.log", high), VllmServer(logs / "two.log", low)
    try:
        for each in both:
            each.wait()
        yield both
    finally:
        for each in both:
            each.stop()


@pytest.fixture(scope="session")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> list[PublishedAdapter]:
    """One more than a server can use at once."""
    root = tmp_path_factory.mktemp("adapters")
    return [make_adapter(root, seed) for seed in range(SLOTS + 1)]


@pytest.fixture
async def engine(servers: Servers) -> AsyncIterator[HttpEngine]:
    """A client of the first replica only; nothing is loaded."""
    async with HttpEngine([servers[0].url]) as engine:
        yield engine
        await empty(engine)


@pytest.fixture
async def both(servers: Servers) -> AsyncIterator[HttpEngine]:
    async with HttpEngine([each.url for each in servers]) as engine:
        yield engine
        await empty(engine)


async def empty(engine: HttpEngine) -> None:
    for name in await engine.loaded():
        if name != "base":
            await engine.unload_adapter(name)


@pytest.fixture
async def http(servers: Servers) -> AsyncIterator[httpx.AsyncClient]:
    """A plain HTTP client of the first replica."""
    async with httpx.AsyncClient(base_url=servers[0].url, timeout=300, trust_env=False) as http:
        yield http

"""Model servers of rollouts and gates have the adapters after a run that they had before it."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from app.base.errors import EngineRefusalError
from app.engine.client import HttpEngine
from app.engine.protocol import Sampling
from tests.support.scripted_engine import ScriptedEngine, byte_tokenizer
from tests.support.scripted_server import scripted_server
from trainer.engines.servers import SharedServers

SAMPLING = Sampling(max_tokens=9)


@pytest.fixture
async def url(tmp_path: Path) -> AsyncIterator[str]:
    engine = ScriptedEngine(byte_tokenizer(tmp_path), script=lambda *_: "so be it")
    async with scripted_server(engine) as opened:
        yield opened


@pytest.fixture
async def others(url: str) -> AsyncIterator[HttpEngine]:
    """Another process that uses the servers."""
    async with HttpEngine([url]) as opened:
        yield opened


async def test_a_run_unloads_what_it_loaded_and_nothing_else(url: str, others: HttpEngine, tmp_path: Path) -> None:
    await others.load_adapter("serving", tmp_path)
    async with SharedServers([url]) as servers:
        for name in ("serving", "first", "second"):
            await servers.load_adapter(name, tmp_path)
        for name in ("serving", "first"):
            await servers.unload_adapter(name)
        assert await others.loaded() == ["base", "serving", "second"]
    assert await others.loaded() == ["base", "serving"]


async def test_what_another_run_unloads_is_loaded_again(url: str, others: HttpEngine, tmp_path: Path) -> None:
    await others.load_adapter("shared", tmp_path)
    async with SharedServers([url]) as servers:
        await servers.load_adapter("shared", tmp_path)
        await others.unload_adapter("shared")
        assert (await servers.complete((1,), model="shared", sampling=SAMPLING)).ids
        with pytest.raises(EngineRefusalError):
            await servers.complete((1,), model="unknown", sampling=SAMPLING)
    assert await others.loaded() == ["base"]

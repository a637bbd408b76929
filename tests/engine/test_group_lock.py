"""Base and adapter requests never share a batch on servers that would mix them up."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from app.engine.client import HttpEngine
from app.engine.replica import GroupLock
from tests.support.engine_process import engine_process
from tests.support.faulty_proxy import Forward, Reply, faulty_proxy
from tests.support.loader_setup import GREEDY, PROMPT
from tests.support.named_adapters import make_named
from tests.support.tiny_model import make_model_dir

BASE, ADAPTER = True, False


class Crowd:
    """Visitors that hold the lock until they are told to leave."""

    def __init__(self) -> None:
        self.lock = GroupLock()
        self.inside: list[str] = []
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self.doors: dict[str, asyncio.Event] = {}

    async def send(self, name: str, group: bool) -> None:
        self.doors[name] = asyncio.Event()
        self.tasks[name] = asyncio.create_task(self._visit(name, group))
        await settle()

    async def leave(self, name: str) -> None:
        self.doors[name].set()
        await self.tasks[name]
        await settle()

    async def _visit(self, name: str, group: bool) -> None:
        async with self.lock.hold(group):
            self.inside.append(name)
            await self.doors[name].wait()
            self.inside.remove(name)


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_one_group_enters_together_and_the_other_group_waits() -> None:
    crowd = Crowd()
    await crowd.send("one", BASE)
    await crowd.send("two", BASE)
    await crowd.send("other", ADAPTER)
    assert crowd.inside == ["one", "two"]
    await crowd.leave("one")
    assert crowd.inside == ["two"]
    await crowd.leave("two")
    assert crowd.inside == ["other"]
    await crowd.leave("other")


async def test_a_late_request_does_not_overtake_one_that_waits() -> None:
    crowd = Crowd()
    await crowd.send("one", BASE)
    await crowd.send("other", ADAPTER)
    await crowd.send("late", BASE)
    assert crowd.inside == ["one"]
    await crowd.leave("one")
    assert crowd.inside == ["other"]
    await crowd.leave("other")
    assert crowd.inside == ["late"]
    await crowd.leave("late")


async def test_a_cancelled_request_blocks_nobody() -> None:
    crowd = Crowd()
    await crowd.send("one", BASE)
    await crowd.send("other", ADAPTER)
    await crowd.send("late", BASE)
    crowd.tasks["other"].cancel()
    await settle()
    assert crowd.inside == ["one", "late"]
    await crowd.leave("one")
    await crowd.leave("late")


async def test_a_request_cancelled_as_it_is_admitted_releases_the_lock() -> None:
    crowd = Crowd()
    async with crowd.lock.hold(BASE):
        await crowd.send("other", ADAPTER)
    crowd.tasks["other"].cancel()  # before it could run
    await settle()
    assert crowd.inside == []
    await crowd.send("late", BASE)
    assert crowd.inside == ["late"]
    await crowd.leave("late")


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model_dir(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def server(model_dir: Path) -> Iterator[str]:
    with engine_process(model_dir, "--embeddings", "none") as url:
        yield url


@pytest.fixture
async def mixed(server: str) -> AsyncIterator[tuple[str, list[set[str]]]]:
    """A proxy's URL, and of each request which models were in the server with it."""
    under_way: list[str] = []
    seen: list[set[str]] = []

    async def watch(path: str, body: Any, forward: Forward) -> Reply | None:
        if path != "/v1/completions":
            return await forward()
        under_way.append(body["model"])
        seen.append(set(under_way))
        try:
            return await forward()
        finally:
            under_way.remove(body["model"])

    async with faulty_proxy(server, watch) as proxy:
        yield proxy.url, seen


@pytest.mark.parametrize("separate", [True, False])
async def test_a_server_never_has_both_groups_at_once_if_they_are_separated(
    mixed: tuple[str, list[set[str]]], model_dir: Path, tmp_path: Path, separate: bool
) -> None:
    url, seen = mixed
    name = make_named(model_dir, tmp_path, 1)
    async with HttpEngine([url], separate_base=separate) as engine:
        await engine.load_adapter(name, tmp_path / name)
        models = ["base", name] * 6
        await asyncio.gather(*(engine.complete(PROMPT, model=model, sampling=GREEDY) for model in models))
        await engine.unload_adapter(name)
    assert any({"base", name} <= together for together in seen) is not separate

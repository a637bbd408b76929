"""Adapters come and go under load, on the model server as it really runs."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest

from app.db import leases, models, releases
from app.db.models import ReleaseState
from app.db.session import Sessions
from app.engine.client import HttpEngine
from app.engine.patient import PatientEngine
from app.engine.protocol import Completion, Sampling
from app.errors import AdapterError, EngineError
from app.hot_swap import HotSwap
from tests.engine_process import engine_process
from tests.processes import free_ports
from tests.rows import project_row, task_row
from tests.tiny_adapter import make_adapter, reference
from tests.tiny_model import make_model_dir

PROMPT = [3, 1, 4, 1, 5]
GREEDY = Sampling(max_tokens=6, temperature=0)
ROOM = 2  # adapters that the server holds


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model_dir(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def adapters(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("adapters")
    for seed, name in enumerate("abcd"):
        make_adapter(model_dir, root / name, seed)
    make_adapter(model_dir, root / "nan", 9, fill=float("nan"))
    cut = make_adapter(model_dir, root / "cut", 9) / "adapter_model.safetensors"
    cut.write_bytes(cut.read_bytes()[:-100])
    return root


@pytest.fixture(scope="module")
def server(model_dir: Path) -> Iterator[str]:
    with engine_process(model_dir, "--embeddings", "none", "--max-loras", str(ROOM)) as url:
        yield url


@pytest.fixture
async def engine(server: str) -> AsyncIterator[HttpEngine]:
    """With nothing loaded."""
    async with HttpEngine([server]) as engine:
        for name in (await engine.loaded())[1:]:
            await engine.unload_adapter(name)
        yield engine


@pytest.fixture
def swap(engine: HttpEngine, committed: Sessions, adapters: Path) -> HotSwap:
    return HotSwap(engine, committed, adapters)


async def ask(engine: HotSwap | PatientEngine, model: str) -> Completion:
    return await engine.complete(PROMPT, model=model, sampling=GREEDY)


async def release_row(sessions: Sessions, model: str, state: ReleaseState) -> models.Release:
    """The only one of a project of its own."""
    async with sessions.begin() as session:
        project = await project_row(session)
        first = await releases.active(session, project.id)
        first.model, first.state = model, state
    return first


async def test_rollouts_keep_their_adapter_while_others_begin_with_the_next(
    swap: HotSwap, model_dir: Path, adapters: Path
) -> None:
    async def rollout(model: str) -> list[Completion]:
        return [await ask(swap, model) for _ in range(4)]

    began = [asyncio.create_task(rollout(model)) for model in ("base", "a") * 4]
    await asyncio.sleep(0.05)
    await swap.load("b")
    later = [asyncio.create_task(rollout("b")) for _ in range(4)]
    answers = await asyncio.gather(*began, *later)
    for model, turns in zip([*("base", "a") * 4, *"bbbb"], answers, strict=True):
        path = None if model == "base" else adapters / model
        expected = reference(model_dir, path, PROMPT, list(turns[0].ids))
        for turn in turns:
            assert turn.ids == turns[0].ids
            np.testing.assert_allclose(turn.logprobs, expected, atol=1e-3)


async def test_many_that_ask_at_once_have_it_loaded_once(swap: HotSwap, engine: HttpEngine) -> None:
    await asyncio.gather(*(ask(swap, "a") for _ in range(8)))
    assert await engine.loaded() == ["base", "a"]


async def test_what_another_process_unloaded_is_loaded_again(swap: HotSwap, engine: HttpEngine) -> None:
    before = await ask(swap, "a")
    await engine.unload_adapter("a")
    assert await ask(swap, "a") == before
    await engine.unload_adapter("a")
    await swap.load("a")
    assert await engine.loaded() == ["base", "a"]


async def test_a_server_that_was_restarted_gets_its_adapter_back(
    model_dir: Path, adapters: Path, committed: Sessions
) -> None:
    [port] = free_ports(1)
    options = ("--embeddings", "none", "--port", str(port))  # the last --port counts
    with contextlib.ExitStack() as first, contextlib.ExitStack() as second:
        url = first.enter_context(engine_process(model_dir, *options))
        async with HttpEngine([url]) as engine:
            swap = PatientEngine(HotSwap(engine, committed, adapters), pause=0.05)
            before = await ask(swap, "a")
            first.close()
            waiting = asyncio.create_task(ask(swap, "a"))
            await asyncio.to_thread(second.enter_context, engine_process(model_dir, *options))
            assert await waiting == before
            assert await engine.loaded() == ["base", "a"]


@pytest.mark.parametrize(
    ("model", "words"),
    [("none", "there is no adapter in .*none"), ("nan", "not finite"), ("cut", "cannot be read")],
)
async def test_a_spoiled_adapter_is_named_and_nothing_else_is_touched(
    swap: HotSwap, engine: HttpEngine, model: str, words: str
) -> None:
    await swap.load("a")
    await swap.load("b")
    with pytest.raises(AdapterError, match=words):
        await ask(swap, model)
    assert await engine.loaded() == ["base", "a", "b"]


async def test_an_adapter_of_another_base_is_refused(
    engine: HttpEngine, committed: Sessions, tmp_path: Path
) -> None:
    make_adapter(make_model_dir(tmp_path / "llama", "llama"), tmp_path / "adapters" / "x", 1)
    with pytest.raises(AdapterError, match="does not fit"):
        await HotSwap(engine, committed, tmp_path / "adapters").load("x")


async def test_without_room_an_adapter_that_nobody_needs_goes(
    swap: HotSwap, engine: HttpEngine, committed: Sessions
) -> None:
    await release_row(committed, "a", ReleaseState.ACTIVE)
    await release_row(committed, "b", ReleaseState.RETIRED)
    for name in "abc":
        await swap.load(name)
    assert await engine.loaded() == ["base", "a", "c"]


async def test_without_room_an_idle_active_release_goes_before_a_candidate(
    swap: HotSwap, engine: HttpEngine, committed: Sessions
) -> None:
    await release_row(committed, "a", ReleaseState.CANDIDATE)
    await release_row(committed, "b", ReleaseState.ACTIVE)
    for name in "abc":
        await swap.load(name)
    assert await engine.loaded() == ["base", "a", "c"]


async def test_the_adapters_of_unfinished_tasks_stay_and_a_further_one_waits(
    swap: HotSwap, engine: HttpEngine, committed: Sessions
) -> None:
    for name in "ab":
        release = await release_row(committed, name, ReleaseState.ACTIVE)
        async with committed.begin() as session:
            task = await task_row(session, release.project_id)
            await leases.claim(session, name, 30)
        await swap.load(name)
    with pytest.raises(EngineError, match=r"all adapters loaded are in use.*--max-loras"):
        await swap.load("c")
    async with committed.begin() as session:
        await leases.finish(session, task.id, "b", leases.Outcome(state=models.TaskState.DONE))
    await swap.load("c")
    assert await engine.loaded() == ["base", "a", "c"]


async def test_what_is_active_is_loaded_ahead_of_its_first_task(
    swap: HotSwap, engine: HttpEngine, committed: Sessions
) -> None:
    await release_row(committed, "nan", ReleaseState.ACTIVE)
    await release_row(committed, "a", ReleaseState.ACTIVE)
    async with swap, asyncio.timeout(10):
        while "a" not in await engine.loaded():  # noqa: ASYNC110  a load rings no bell
            await asyncio.sleep(0.02)
        await release_row(committed, "b", ReleaseState.ACTIVE)
        swap.wake()
        while "b" not in await engine.loaded():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def test_a_load_that_one_server_refuses_is_undone_on_the_other(
    engine: HttpEngine, adapters: Path, committed: Sessions, tmp_path: Path
) -> None:
    other = make_model_dir(tmp_path / "llama", "llama")
    with engine_process(other, "--embeddings", "none") as url:
        async with HttpEngine([engine.urls[0], url]) as both:
            with pytest.raises(AdapterError, match="does not fit"):
                await HotSwap(both, committed, adapters).load("a")
    assert await engine.loaded() == ["base"]
    async with httpx.AsyncClient(base_url=engine.urls[0]) as client:
        assert (await client.get("/health")).status_code == 200

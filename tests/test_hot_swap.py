"""Adapters come and go under load, on the model server as it really runs."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import numpy as np
import pytest

from app.db import models, releases, run_queue, runs, task_queue
from app.db.database import Sessions
from app.db.models import ReleaseState, RunState
from app.engine.capability import PROBE_PREFIX
from app.engine.http_engine import HttpEngine
from app.engine.protocol import Completion
from app.engine.retry import RetryingEngine
from app.errors import EngineError
from app.records import Json
from app.run_settings import RunSettings
from tests.engine_process import engine_process
from tests.narrow import narrow
from tests.processes import free_ports
from tests.rows import LEASE, project_row, task_row
from tests.swapping import GREEDY, PROMPT, Shelf, Swapping
from tests.tiny_adapter import reference
from tests.tiny_model import make_model_dir

ROOM = 2  # adapters that the server holds


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Shelf:
    model_dir = make_model_dir(tmp_path_factory.mktemp("model"))
    return Shelf.fill(model_dir, tmp_path_factory.mktemp("adapters"))


@pytest.fixture(scope="module")
def server(shelf: Shelf) -> Iterator[str]:
    with engine_process(shelf.model_dir, "--embeddings", "none", "--max-loras", str(ROOM)) as url:
        yield url


@pytest.fixture
async def swapping(server: str, committed: Sessions, shelf: Shelf) -> AsyncIterator[Swapping]:
    """With nothing loaded."""
    async with HttpEngine([server]) as engine:
        for name in (await engine.loaded())[1:]:
            await engine.unload_adapter(name)
        yield Swapping(engine, committed, shelf, shelf.swap(engine, committed))


async def test_rollouts_keep_their_adapter_while_others_begin_with_the_next(
    swapping: Swapping, shelf: Shelf
) -> None:
    async def rollout(model: str) -> list[Completion]:
        return [await swapping.ask(model) for _ in range(4)]

    began = [asyncio.create_task(rollout(model)) for model in ("base", "a") * 4]
    await asyncio.sleep(0.05)
    await swapping.load("b")
    later = [asyncio.create_task(rollout("b")) for _ in range(4)]
    answers = await asyncio.gather(*began, *later)
    for model, turns in zip([*("base", "a") * 4, *"bbbb"], answers, strict=True):
        path = None if model == "base" else shelf.path / shelf.names[model]
        expected = reference(shelf.model_dir, path, PROMPT, list(turns[0].ids))
        for turn in turns:
            assert turn.ids == turns[0].ids
            np.testing.assert_allclose(turn.logprobs, expected, atol=1e-3)


async def test_many_that_ask_at_once_have_it_loaded_once(swapping: Swapping) -> None:
    await asyncio.gather(*(swapping.ask("a") for _ in range(8)))
    assert await swapping.loaded() == ["a"]


async def test_what_another_process_unloaded_is_loaded_again(swapping: Swapping) -> None:
    before = await swapping.ask("a")
    await swapping.unload("a")
    assert await swapping.ask("a") == before
    await swapping.unload("a")
    await swapping.load("a")
    assert await swapping.loaded() == ["a"]


async def test_a_server_that_was_restarted_has_proven_what_serves_before_it_is_asked(
    shelf: Shelf, committed: Sessions
) -> None:
    [port] = free_ports(1)
    options = ("--embeddings", "none", "--port", str(port))  # the last --port counts
    with contextlib.ExitStack() as first, contextlib.ExitStack() as second:
        url = first.enter_context(engine_process(shelf.model_dir, *options))
        async with HttpEngine([url]) as engine, shelf.swap(engine, committed) as hot:
            swapping = Swapping(engine, committed, shelf, hot)
            await swapping.release("b", ReleaseState.ACTIVE)
            before = await swapping.ask("a")
            first.close()
            patient = RetryingEngine(hot, pause=0.05)
            waiting = asyncio.create_task(patient.complete(PROMPT, model=shelf.names["a"], sampling=GREEDY))
            await asyncio.to_thread(second.enter_context, engine_process(shelf.model_dir, *options))
            assert await waiting == before
            assert set(await swapping.loaded()) == {"a", "b"}


async def test_without_room_an_adapter_that_nobody_needs_goes(swapping: Swapping) -> None:
    await swapping.release("a", ReleaseState.ACTIVE)
    await swapping.release("b", ReleaseState.RETIRED)
    for name in "abc":
        await swapping.load(name)
    assert await swapping.loaded() == ["a", "c"]


@pytest.mark.parametrize("state", [ReleaseState.PASSED, ReleaseState.CANARY])
async def test_without_room_an_idle_active_release_goes_before_one_that_is_to_be_asked(
    swapping: Swapping, state: ReleaseState
) -> None:
    await swapping.release("a", state)
    await swapping.release("b", ReleaseState.ACTIVE)
    for name in "abc":
        await swapping.load(name)
    assert await swapping.loaded() == ["a", "c"]


async def test_a_candidate_needs_room_while_its_run_examines_it_and_no_longer(swapping: Swapping) -> None:
    candidate = await swapping.release("a", ReleaseState.CANDIDATE)
    async with swapping.sessions.begin() as session:
        run = await runs.create(session, candidate.project_id, RunSettings())
        await run_queue.claim(session, "trainer", LEASE, run.id)
        (await releases.get(session, candidate.id)).training_run_id = run.id
    await swapping.release("b", ReleaseState.ACTIVE)
    for name in "abc":
        await swapping.load(name)
    assert await swapping.loaded() == ["a", "c"]
    async with swapping.sessions.begin() as session:
        await run_queue.finish(session, run.id, "trainer", RunState.FAILED, failure="killed")
    await swapping.release("c", ReleaseState.ACTIVE)
    await swapping.load("b")
    assert await swapping.loaded() == ["c", "b"]


@pytest.mark.parametrize("evidence", [None, {"verdict": "untested"}])
async def test_a_candidate_that_waits_for_a_person_needs_no_room(
    swapping: Swapping, evidence: dict[str, Json] | None
) -> None:
    waiting = await swapping.release("a", ReleaseState.CANDIDATE)
    async with swapping.sessions.begin() as session:
        (await session.get_one(models.Release, waiting.id)).evidence = evidence
    await swapping.release("b", ReleaseState.ACTIVE)
    for name in "abc":
        await swapping.load(name)
    assert await swapping.loaded() == ["b", "c"]


async def test_what_a_training_run_loaded_for_itself_stays_until_no_run_is_left(swapping: Swapping) -> None:
    names, engine = swapping.shelf.names, swapping.engine
    async with swapping.sessions.begin() as session:
        run = await runs.create(session, (await project_row(session)).id, RunSettings())
        await run_queue.claim(session, "trainer", LEASE, run.id)
    await engine.load_adapter(names["a"], swapping.shelf.path / names["a"])  # no row tells of it
    for name in "bc":
        await swapping.release(name, ReleaseState.RETIRED)
        await swapping.load(name)
    assert await swapping.loaded() == ["a", "c"]
    async with swapping.sessions.begin() as session:
        await run_queue.finish(session, run.id, "trainer", RunState.FAILED, failure="killed")
    await swapping.load("b")
    assert await swapping.loaded() == ["c", "b"]


async def test_what_an_examination_left_behind_goes_also_while_a_run_trains(swapping: Swapping) -> None:
    async with swapping.sessions.begin() as session:
        run = await runs.create(session, (await project_row(session)).id, RunSettings())
        await run_queue.claim(session, "trainer", LEASE, run.id)
    for name in (f"{PROBE_PREFIX}left", swapping.shelf.names["a"]):
        await swapping.engine.load_adapter(name, swapping.shelf.path / swapping.shelf.names["a"])
    await swapping.load("b")
    assert await swapping.loaded() == ["a", "b"]


async def test_the_adapters_of_unfinished_tasks_stay_and_a_further_one_waits(swapping: Swapping) -> None:
    for name in "ab":
        release = await swapping.release(name, ReleaseState.ACTIVE)
        async with swapping.sessions.begin() as session:
            task = await task_row(session, release.project_id)
            await task_queue.claim(session, name, 30)
        await swapping.load(name)
    with pytest.raises(EngineError, match=r"all adapters loaded are in use.*--max-loras"):
        await swapping.load("c")
    assert await swapping.loaded() == ["a", "b"]
    async with swapping.sessions.begin() as session:
        await task_queue.finish(session, task.id, "b", task_queue.TaskOutcome(state=models.TaskState.DONE))
    await swapping.load("c")
    assert await swapping.loaded() == ["a", "c"]


async def test_what_is_active_is_loaded_ahead_of_its_first_task(swapping: Swapping) -> None:
    await swapping.release("nan", ReleaseState.ACTIVE)
    await swapping.release("a", ReleaseState.ACTIVE)
    async with swapping.hot, asyncio.timeout(10):
        while "a" not in await swapping.loaded():  # noqa: ASYNC110  a load rings no bell
            await asyncio.sleep(0.02)
        await swapping.release("b", ReleaseState.ACTIVE)
        swapping.hot.wake()
        while "b" not in await swapping.loaded():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def test_what_is_active_and_cannot_be_loaded_is_remarked_until_it_can(
    swapping: Swapping, shelf: Shelf, tmp_path: Path
) -> None:
    name = shelf.names["c"]
    away = shelf.path / name
    async with swapping.hot as hot:
        away.rename(tmp_path / name)
        try:
            await swapping.release("c", ReleaseState.ACTIVE)
            hot.wake()
            async with asyncio.timeout(20):
                while "there is no adapter in" not in await hot.ready():  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
        finally:
            (tmp_path / name).rename(away)
        await swapping.ask("c")
        assert await hot.ready() == ""


async def test_after_a_while_without_a_connection_what_is_active_is_still_loaded_ahead(
    swapping: Swapping, database_url: str
) -> None:
    async with narrow(database_url) as database:
        starving = asyncio.create_task(database.starve(0.5))
        await asyncio.sleep(0.1)
        async with swapping.shelf.swap(swapping.engine, database.sessions) as hot:
            await starving
            await swapping.release("a", ReleaseState.ACTIVE)
            hot.wake()
            async with asyncio.timeout(20):
                while "a" not in await swapping.loaded():  # noqa: ASYNC110
                    await asyncio.sleep(0.02)

"""Adapters are loaded and evicted under load, on a real model server."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from uuid import UUID

import msgspec
import numpy as np
import pytest
from prometheus_client import REGISTRY

from app.base import telemetry
from app.base.errors import AdapterError, EngineError, EngineRefusalError
from app.base.run_settings import RunSettings
from app.base.values import Json, hosted
from app.db import tables
from app.db.database import Sessions
from app.db.tables import ReleaseState, RunState
from app.engine.client import HttpEngine
from app.engine.protocol import Completion, RetryingEngine
from app.engine.replica import PROBE_PREFIX
from app.projects import store as projects
from app.releases import store as releases
from app.releases.swap import AdapterLoader
from app.runs import store as runs
from app.tasks import queue
from tests.support.engine_process import engine_process
from tests.support.hosted_project import always, hosted_entry
from tests.support.loader_setup import GREEDY, PROMPT, LoaderSetup, NamedAdapters
from tests.support.processes import free_ports
from tests.support.rows import LEASE, project_row, task_row
from tests.support.scripted_chat import ScriptedChatModel
from tests.support.single_connection import single_connection
from tests.support.tiny_adapter import reference
from tests.support.tiny_model import make_model_dir

ROOM = 2  # --max-loras of the server


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> NamedAdapters:
    model_dir = make_model_dir(tmp_path_factory.mktemp("model"))
    return NamedAdapters.fill(model_dir, tmp_path_factory.mktemp("adapters"))


@pytest.fixture(scope="module")
def server(adapters: NamedAdapters) -> Iterator[str]:
    with engine_process(adapters.model_dir, "--embeddings", "none", "--max-loras", str(ROOM)) as url:
        yield url


@pytest.fixture
async def setup(server: str, committed: Sessions, adapters: NamedAdapters) -> AsyncIterator[LoaderSetup]:
    """With nothing loaded."""
    async with HttpEngine([server]) as engine:
        for name in (await engine.loaded())[1:]:
            await engine.unload_adapter(name)
        yield LoaderSetup(engine, committed, adapters, adapters.loader(engine, committed))


async def fault(loader: AdapterLoader) -> str:
    try:
        return await loader.ready()
    except AdapterError as error:
        return str(error)


async def test_rollouts_keep_their_adapter_while_others_begin_with_the_next(
    setup: LoaderSetup, adapters: NamedAdapters
) -> None:
    async def rollout(model: str) -> list[Completion]:
        return [await setup.ask(model) for _ in range(4)]

    began = [asyncio.create_task(rollout(model)) for model in ("base", "a") * 4]
    await asyncio.sleep(0.05)
    await setup.load("b")
    later = [asyncio.create_task(rollout("b")) for _ in range(4)]
    answers = await asyncio.gather(*began, *later)
    for model, turns in zip([*("base", "a") * 4, *"bbbb"], answers, strict=True):
        path = None if model == "base" else adapters.path / adapters.names[model]
        expected = reference(adapters.model_dir, path, PROMPT, list(turns[0].ids))
        for turn in turns:
            assert turn.ids == turns[0].ids
            np.testing.assert_allclose(turn.logprobs, expected, atol=1e-3)


async def test_concurrent_requests_load_an_adapter_once(setup: LoaderSetup) -> None:
    await asyncio.gather(*(setup.ask("a") for _ in range(8)))
    assert await setup.loaded() == ["a"]


async def test_an_adapter_that_another_process_unloaded_is_loaded_again(setup: LoaderSetup) -> None:
    before = await setup.ask("a")
    await setup.unload("a")
    assert await setup.ask("a") == before
    await setup.unload("a")
    await setup.load("a")
    assert await setup.loaded() == ["a"]


@pytest.mark.slow
async def test_a_restarted_server_is_verified_before_it_gets_requests(
    adapters: NamedAdapters, committed: Sessions
) -> None:
    [port] = free_ports(1)
    options = ("--embeddings", "none", "--port", str(port))  # the last --port counts
    with contextlib.ExitStack() as first, contextlib.ExitStack() as second:
        url = first.enter_context(engine_process(adapters.model_dir, *options))
        async with HttpEngine([url]) as engine, adapters.loader(engine, committed) as loader:
            setup = LoaderSetup(engine, committed, adapters, loader)
            await setup.release("b", ReleaseState.ACTIVE)
            before = await setup.ask("a")
            first.close()
            patient = RetryingEngine(loader, pause=0.05)
            waiting = asyncio.create_task(patient.complete(PROMPT, model=adapters.names["a"], sampling=GREEDY))
            await asyncio.to_thread(second.enter_context, engine_process(adapters.model_dir, *options))
            assert await waiting == before
            assert set(await setup.loaded()) == {"a", "b"}


async def test_without_room_an_unneeded_adapter_is_evicted(setup: LoaderSetup) -> None:
    await setup.release("a", ReleaseState.ACTIVE)
    await setup.release("b", ReleaseState.RETIRED)
    for name in "abc":
        await setup.load(name)
    assert await setup.loaded() == ["a", "c"]


@pytest.mark.parametrize("state", [ReleaseState.PASSED, ReleaseState.CANARY])
async def test_without_room_an_idle_active_release_is_evicted_before_one_with_tasks(
    setup: LoaderSetup, state: ReleaseState
) -> None:
    await setup.release("a", state)
    await setup.release("b", ReleaseState.ACTIVE)
    for name in "abc":
        await setup.load(name)
    assert await setup.loaded() == ["a", "c"]


async def test_a_candidate_is_kept_while_its_run_evaluates_it_and_no_longer(setup: LoaderSetup) -> None:
    candidate = await setup.release("a", ReleaseState.CANDIDATE)
    async with setup.sessions.begin() as session:
        run = await runs.create(session, candidate.project_id, RunSettings())
        await runs.claim(session, "trainer", LEASE, run.id)
        (await releases.get(session, candidate.id)).training_run_id = run.id
    await setup.release("b", ReleaseState.ACTIVE)
    for name in "abc":
        await setup.load(name)
    assert await setup.loaded() == ["a", "c"]
    async with setup.sessions.begin() as session:
        await runs.finish(session, run.id, "trainer", RunState.FAILED, failure="killed")
    await setup.release("c", ReleaseState.ACTIVE)
    await setup.load("b")
    assert await setup.loaded() == ["c", "b"]


@pytest.mark.parametrize("evidence", [None, {"verdict": "untested"}])
async def test_a_candidate_that_waits_for_a_person_may_be_evicted(
    setup: LoaderSetup, evidence: dict[str, Json] | None
) -> None:
    waiting = await setup.release("a", ReleaseState.CANDIDATE)
    async with setup.sessions.begin() as session:
        (await session.get_one(tables.Release, waiting.id)).evidence = evidence
    await setup.release("b", ReleaseState.ACTIVE)
    for name in "abc":
        await setup.load(name)
    assert await setup.loaded() == ["b", "c"]


async def test_the_policy_of_a_training_run_is_kept_until_no_run_is_left(setup: LoaderSetup) -> None:
    names, engine = setup.adapters.names, setup.engine
    async with setup.sessions.begin() as session:
        run = await runs.create(session, (await project_row(session)).id, RunSettings())
        await runs.claim(session, "trainer", LEASE, run.id)
    await engine.load_adapter(names["a"], setup.adapters.path / names["a"])  # no row refers to it
    for name in "bc":
        await setup.release(name, ReleaseState.RETIRED)
        await setup.load(name)
    assert await setup.loaded() == ["a", "c"]
    async with setup.sessions.begin() as session:
        await runs.finish(session, run.id, "trainer", RunState.FAILED, failure="killed")
    await setup.load("b")
    assert await setup.loaded() == ["c", "b"]


async def test_a_leftover_probe_adapter_is_evicted_even_while_a_run_trains(setup: LoaderSetup) -> None:
    async with setup.sessions.begin() as session:
        run = await runs.create(session, (await project_row(session)).id, RunSettings())
        await runs.claim(session, "trainer", LEASE, run.id)
    for name in (f"{PROBE_PREFIX}left", setup.adapters.names["a"]):
        await setup.engine.load_adapter(name, setup.adapters.path / setup.adapters.names["a"])
    await setup.load("b")
    assert await setup.loaded() == ["a", "b"]


async def test_the_adapters_of_unfinished_tasks_are_kept_and_another_one_waits(setup: LoaderSetup) -> None:
    for name in "ab":
        release = await setup.release(name, ReleaseState.ACTIVE)
        async with setup.sessions.begin() as session:
            task = await task_row(session, release.project_id)
            await queue.claim(session, name, 30)
        await setup.load(name)
    with pytest.raises(EngineError, match=r"all loaded adapters are in use.*--max-loras"):
        await setup.load("c")
    assert await setup.loaded() == ["a", "b"]
    async with setup.sessions.begin() as session:
        await queue.finish(session, task.id, "b", queue.TaskOutcome(state=tables.TaskState.DONE))
    await setup.load("c")
    assert await setup.loaded() == ["a", "c"]


async def test_an_active_adapter_is_loaded_ahead_of_its_first_task(setup: LoaderSetup) -> None:
    await setup.release("nan", ReleaseState.ACTIVE)
    await setup.release("a", ReleaseState.ACTIVE)
    async with setup.loader:
        while "a" not in await setup.loaded():  # noqa: ASYNC110  a load notifies nobody
            await asyncio.sleep(0.02)
        await setup.release("b", ReleaseState.ACTIVE)
        setup.loader.wake()
        while "b" not in await setup.loaded():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("reports_limit", [True, False])
async def test_an_active_adapter_makes_no_room_for_another_one_until_a_task_needs_that(
    setup: LoaderSetup, reports_limit: bool
) -> None:
    for name in "abc":
        await setup.release(name, ReleaseState.ACTIVE)
    for name in "ab":
        await setup.load(name)
    [replica] = setup.engine.replicas
    assert replica.capabilities is not None
    limit = ROOM if reports_limit else None
    replica.capabilities = msgspec.structs.replace(replica.capabilities, max_loras=limit)
    telemetry.ADAPTERS.labels("failed").set(-1)
    async with setup.loader as loader:
        while (REGISTRY.get_sample_value("sage_adapters", {"state": "failed"}) or 0) < 0:  # noqa: ASYNC110
            await asyncio.sleep(0.02)  # until a round, or a swap, has ended
        assert await setup.loaded() == ["a", "b"]
        assert await loader.ready() == ""
        await setup.ask("c")
        assert await setup.loaded() == ["b", "c"]


async def test_an_adapter_of_no_active_release_makes_room_ahead_of_a_task(setup: LoaderSetup) -> None:
    for name in "ab":
        await setup.release(name, ReleaseState.ACTIVE)
    for name in "ac":
        await setup.load(name)
    await setup.loader.load(setup.adapters.names["b"], ahead=True)
    assert await setup.loaded() == ["a", "b"]


async def test_an_active_adapter_that_cannot_be_loaded_is_reported_until_it_can(
    setup: LoaderSetup, adapters: NamedAdapters, tmp_path: Path
) -> None:
    name = adapters.names["c"]
    away = adapters.path / name
    async with setup.loader as loader:
        away.rename(tmp_path / name)
        try:
            releases = [await setup.release(each, ReleaseState.ACTIVE) for each in "acc"]
            loader.wake()
            while not await fault(loader):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            served, *waiting = (str(each.project_id) for each in releases)
            expected = f"tasks of projects {', '.join(sorted(waiting))} wait: there is no adapter in"
            assert (await fault(loader)).startswith(expected)
            assert served not in await fault(loader)
        finally:
            (tmp_path / name).rename(away)
        await setup.ask("c")
        assert await loader.ready() == ""


async def test_a_hosted_model_is_loaded_nowhere_and_proves_that_it_answers(setup: LoaderSetup) -> None:
    model = ScriptedChatModel("ready", EngineRefusalError("it refuses the key"))
    loader = setup.adapters.loader(setup.engine, setup.sessions, always(model))
    release = await setup.release("base", ReleaseState.ACTIVE)
    entry = await hosted_entry(setup.sessions, release.project_id)
    report = await loader.swap(hosted(entry.id), None)
    assert (report.model, report.endpoint, report.replicas) == (
        hosted(entry.id),
        "m-1 at http://tables.test/v1",
        (),
    )
    with pytest.raises(EngineRefusalError, match="refuses the key"):
        await loader.swap(hosted(entry.id), None)
    await loader.load(hosted(entry.id))
    assert (len(model.requests), await setup.loaded()) == (2, [])


async def test_a_release_of_a_hosted_model_neither_needs_an_adapter_nor_keeps_one(setup: LoaderSetup) -> None:
    await setup.release("nan", ReleaseState.ACTIVE)
    async with setup.sessions.begin() as session:
        await projects.create(session, "hosted", hosted(UUID(int=7)))
    for name in "ab":
        await setup.load(name)
    await setup.load("c")
    assert "c" in await setup.loaded()
    async with setup.loader as loader:
        while not (found := await loader.ready()):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        assert "hosted" not in found, "and what can serve does"


async def test_active_adapters_are_loaded_ahead_after_the_database_was_away(
    setup: LoaderSetup, database_url: str
) -> None:
    async with single_connection(database_url) as database:
        starving = AsyncExitStack()
        await starving.enter_async_context(database.starved())
        async with setup.adapters.loader(setup.engine, database.sessions) as loader:
            await asyncio.sleep(0.5)
            await starving.aclose()
            await setup.release("a", ReleaseState.ACTIVE)
            loader.wake()
            while "a" not in await setup.loaded():  # noqa: ASYNC110
                await asyncio.sleep(0.02)

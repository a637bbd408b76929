"""A swap is a transaction: verified on every model server, or undone on all of them."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from app.base.errors import AdapterError, EngineError, EngineRefusalError
from app.base.values import Probe
from app.db.database import Sessions
from app.db.tables import AuditAction, ReleaseState
from app.engine.client import HttpEngine
from app.engine.health import HealthChecks
from app.projects import audit
from tests.support.engine_process import engine_process
from tests.support.faulty_proxy import (
    COMPLETIONS,
    Fault,
    FaultyProxy,
    Forward,
    Reply,
    answering,
    dying,
    faulty_proxy,
    freezing,
    rewriting,
    sound,
    until,
)
from tests.support.loader_setup import LoaderSetup, NamedAdapters
from tests.support.tiny_adapter import make_adapter
from tests.support.tiny_model import make_model_dir

LOAD = "/v1/load_lora_adapter"


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> NamedAdapters:
    model_dir = make_model_dir(tmp_path_factory.mktemp("model"))
    return NamedAdapters.fill(model_dir, tmp_path_factory.mktemp("adapters"))


@pytest.fixture(scope="module")
def probe(adapters: NamedAdapters) -> Probe:
    """Of adapter a."""
    return adapters.probe("a")


@pytest.fixture(scope="module")
def servers(adapters: NamedAdapters) -> Iterator[list[str]]:
    options = ("--embeddings", "none", "--max-loras", "4")
    with (
        engine_process(adapters.model_dir, *options) as one,
        engine_process(adapters.model_dir, *options) as other,
    ):
        yield [one, other]


class Pair(msgspec.Struct, frozen=True):
    """Two model servers, the second behind a proxy that may fail."""

    setup: LoaderSetup
    second: FaultyProxy

    async def alone(self, index: int) -> list[str]:
        """The adapters of one server, by short names."""
        short = {long: name for name, long in self.setup.adapters.names.items()}
        names = await self.setup.engine.replicas[index].models()
        return [short[each] for each in names if each != "base"]


@pytest.fixture
async def pair(servers: list[str], committed: Sessions, adapters: NamedAdapters) -> AsyncIterator[Pair]:
    """With nothing loaded."""
    async with AsyncExitStack() as stack:
        second = await stack.enter_async_context(faulty_proxy(servers[1]))
        engine = await stack.enter_async_context(
            HttpEngine([servers[0], second.url], checks=HealthChecks(interval=0.2))
        )
        for name in (await engine.loaded())[1:]:
            await engine.unload_adapter(name)
        yield Pair(LoaderSetup(engine, committed, adapters, adapters.loader(engine, committed)), second)


async def test_every_server_is_verified_against_the_trainer_and_reported(pair: Pair, probe: Probe) -> None:
    report = await pair.setup.swap("a", probe)
    assert report.model == pair.setup.adapters.names["a"]
    assert [each.url for each in report.replicas] == list(pair.setup.engine.urls)
    for each in report.replicas:
        assert each.probed
        assert max(each.error, each.noise) < 1e-3
        assert each.distance > 0.1
        assert 0 < each.load_seconds < report.seconds
        assert 0 < each.probe_seconds < report.seconds
    assert await pair.setup.loaded() == ["a"]


async def test_an_adapter_without_a_probe_must_behave_the_same_everywhere_and_unlike_the_base(
    pair: Pair,
) -> None:
    report = await pair.setup.swap("b")
    assert [each.probed for each in report.replicas] == [False, False]
    assert max(each.error for each in report.replicas) < 1e-3
    assert min(each.distance for each in report.replicas) > 0.1


async def test_the_base_needs_no_verification(pair: Pair) -> None:
    assert (await pair.setup.swap("base")).replicas == ()


async def test_other_weights_than_the_trained_ones_are_unloaded_again(pair: Pair, probe: Probe) -> None:
    with pytest.raises(AdapterError, match=r"does not serve adapter .*other weights than the trained ones"):
        await pair.setup.swap("b", probe)
    assert await pair.setup.loaded() == []


async def test_a_failed_verification_keeps_what_was_loaded_before(pair: Pair, probe: Probe) -> None:
    await pair.setup.load("b")
    with pytest.raises(AdapterError):
        await pair.setup.swap("b", probe)
    assert await pair.setup.loaded() == ["b"]


async def test_a_server_that_serves_the_base_under_the_adapters_name_is_detected(
    pair: Pair, probe: Probe, servers: list[str]
) -> None:
    pair.second.fault = as_base(servers[1])
    for spoken in (probe, None):
        with pytest.raises(AdapterError, match=r"behaves like the base|other weights"):
            await pair.setup.swap("a", spoken)
        assert await pair.setup.loaded() == []


async def test_a_load_that_one_server_refuses_is_undone_on_the_other(pair: Pair, probe: Probe) -> None:
    pair.second.fault = answering(
        500, {"error": {"message": "LoRA rank 16 is greater than max_lora_rank 8"}}, LOAD
    )
    with pytest.raises(AdapterError, match=r"cannot be served: .*max_lora_rank 8"):
        await pair.setup.swap("a", probe)
    assert await pair.setup.loaded() == []


async def test_a_server_that_does_not_see_the_files_is_not_the_adapters_fault(pair: Pair, probe: Probe) -> None:
    pair.second.fault = answering(404, {"error": {"message": "No adapter found for a"}}, LOAD)
    with pytest.raises(EngineError, match=r"does not see /.*No adapter found.*at the same path") as caught:
        await pair.setup.swap("a", probe)
    assert not isinstance(caught.value, EngineRefusalError), "it may be asked again"
    assert await pair.setup.loaded() == []


async def test_a_server_that_fails_at_everything_is_not_the_adapters_fault(pair: Pair, probe: Probe) -> None:
    pair.second.fault = answering(500, "broken", LOAD, COMPLETIONS)
    with pytest.raises(EngineError, match="500"):
        await pair.setup.swap("a", probe)
    assert await pair.alone(0) == []


@pytest.mark.parametrize("path", [LOAD, COMPLETIONS])
async def test_a_server_that_dies_during_a_swap_undoes_it_and_a_retry_succeeds_without_it(
    pair: Pair, probe: Probe, path: str
) -> None:
    pair.second.fault = dying(pair.second, path)
    with pytest.raises(EngineError):
        await pair.setup.swap("a", probe)
    assert await pair.alone(0) == []
    await until(lambda: not pair.setup.engine.replicas[1].alive)
    report = await pair.setup.swap("a", probe)
    assert [each.url for each in report.replicas] == [pair.setup.engine.urls[0]]


async def test_a_proof_whose_connection_breaks_is_asked_for_again_with_the_same_seed(
    pair: Pair, probe: Probe
) -> None:
    broken = dict[str, int]()

    async def once_each(path: str, body: Any, forward: Forward) -> Reply | None:
        question = f"{path} {body}"
        broken[question] = broken.get(question, 0) + 1
        if broken[question] > 1:
            return await forward()
        if path == LOAD:  # done, but the answer is lost
            await forward()
        return None

    pair.second.fault = once_each
    for spoken, name in ((probe, "a"), (None, "b")):
        report = await pair.setup.swap(name, spoken)
        assert [each.url for each in report.replicas] == list(pair.setup.engine.urls)
    assert min(broken.values()) > 1, "each question was asked again, as it was"
    assert await pair.alone(1) == ["a", "b"]
    assert pair.setup.engine.replicas[1].alive


@pytest.mark.slow
async def test_a_server_that_hangs_during_a_swap_is_ejected_and_a_retry_succeeds_without_it(
    pair: Pair, probe: Probe
) -> None:
    checks, adapters = HealthChecks(interval=0.2, timeout=2.0), pair.setup.adapters
    async with HttpEngine(pair.setup.engine.urls, checks=checks) as engine:
        assert await engine.health()
        loader = adapters.loader(engine, pair.setup.sessions)
        pair.second.fault = freezing(pair.second, LOAD)
        with pytest.raises(EngineError, match="does not answer"):
            await loader.swap(adapters.names["a"], probe)
        assert await pair.alone(0) == []
        report = await loader.swap(adapters.names["a"], probe)
    assert [each.url for each in report.replicas] == [engine.urls[0]]
    assert report.absent == (engine.urls[1],)


async def test_a_server_that_returns_is_verified_before_it_gets_requests_and_that_is_audited(
    pair: Pair, servers: list[str]
) -> None:
    setup = pair.setup
    async with setup.loader:
        await pair.second.down()
        await until(lambda: not setup.engine.replicas[1].alive)
        release = await setup.release("c", ReleaseState.ACTIVE)
        assert (await setup.swap("c")).absent == (pair.second.url,)
        pair.second.fault = as_base(servers[1])
        await pair.second.up()
        await until(lambda: "behaves like the base" in str(setup.engine.replicas[1].cause))
        assert not setup.engine.replicas[1].alive
        pair.second.fault = sound
        await until(lambda: setup.engine.replicas[1].alive)
        assert await pair.alone(1) == ["c"]
        await pair.second.down()
        await until(lambda: not setup.engine.replicas[1].alive)
        await pair.second.up()  # with all that it had: this is not audited
        await until(lambda: setup.engine.replicas[1].alive)
    async with setup.sessions() as session:
        [entry] = (await audit.page(session, release.project_id, limit=10)).items
    assert (entry.release_id, entry.actor, entry.action) == (release.id, "server", AuditAction.RESTORED)
    [proof] = entry.detail["swap"]["replicas"]
    assert proof["url"] == pair.second.url
    assert proof["error"] < 1e-3 < 0.1 < proof["distance"]


async def test_a_cancelled_swap_leaves_nothing(pair: Pair, probe: Probe) -> None:
    asked = asyncio.Event()

    async def wait(path: str, _: Any, forward: Forward) -> Reply | None:
        if path == COMPLETIONS:
            asked.set()
            await asyncio.Event().wait()
        return await forward()

    pair.second.fault = wait
    swap = asyncio.create_task(pair.setup.swap("a", probe))
    await asked.wait()
    swap.cancel()
    with pytest.raises(asyncio.CancelledError):
        await swap
    assert await pair.setup.loaded() == []


@pytest.mark.parametrize(
    ("model", "words"),
    [("none", r"there is no adapter in .*0000"), ("nan", "not finite"), ("cut", "cannot be read")],
)
async def test_a_damaged_adapter_is_named_and_reaches_no_server(pair: Pair, model: str, words: str) -> None:
    await pair.setup.load("b")
    asked = len(pair.second.bodies)
    with pytest.raises(AdapterError, match=words):
        await pair.setup.ask(model)
    assert await pair.setup.loaded() == ["b"]
    assert len(pair.second.bodies) == asked


async def test_an_adapter_of_another_base_is_refused(pair: Pair, adapters: NamedAdapters, tmp_path: Path) -> None:
    other = make_adapter(make_model_dir(tmp_path / "llama", "llama"), tmp_path / "adapters" / "x", 1)
    away = NamedAdapters(adapters.model_dir, tmp_path / "adapters", {"x": other.name})
    with pytest.raises(AdapterError, match="does not fit"):
        await away.loader(pair.setup.engine, pair.setup.sessions).load("x")


async def test_a_server_that_ignores_allowed_tokens_cannot_be_verified(pair: Pair, probe: Probe) -> None:
    def draw(body: Any, reply: Any) -> Any:
        if body.get("allowed_token_ids"):
            reply["choices"][0]["token_ids"] = [body["allowed_token_ids"][0] ^ 1]
        return reply

    pair.second.fault = rewriting(COMPLETIONS, draw)
    with pytest.raises(EngineError):
        await pair.setup.swap("a", probe)
    assert await pair.alone(0) == []


def as_base(upstream: str) -> Fault:
    """The base answers, whatever adapter is requested."""

    async def fault(path: str, body: Any, forward: Forward) -> Reply | None:
        if path != COMPLETIONS:
            return await forward()
        async with httpx.AsyncClient(timeout=300, trust_env=False) as client:
            answer = await client.post(f"{upstream}{path}", json={**body, "model": "base"})
        return answer.status_code, answer.json()

    return fault

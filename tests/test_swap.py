"""A swap is a transaction: proven on every model server, or undone on all of them."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from app.db import audit
from app.db.database import Sessions
from app.db.models import AuditAction, ReleaseState
from app.engine.health_monitor import HealthChecks
from app.engine.http_engine import HttpEngine
from app.errors import AdapterError, EngineError, EngineRefusalError
from app.records import Probe
from tests.engine_process import engine_process
from tests.faulty_proxy import (
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
from tests.swapping import Shelf, Swapping
from tests.tiny_adapter import make_adapter
from tests.tiny_model import make_model_dir

LOAD = "/v1/load_lora_adapter"


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Shelf:
    model_dir = make_model_dir(tmp_path_factory.mktemp("model"))
    return Shelf.fill(model_dir, tmp_path_factory.mktemp("adapters"))


@pytest.fixture(scope="module")
def probe(shelf: Shelf) -> Probe:
    """Of adapter a."""
    return shelf.probe("a")


@pytest.fixture(scope="module")
def servers(shelf: Shelf) -> Iterator[list[str]]:
    options = ("--embeddings", "none", "--max-loras", "4")
    with engine_process(shelf.model_dir, *options) as one, engine_process(shelf.model_dir, *options) as other:
        yield [one, other]


class Pair(msgspec.Struct, frozen=True):
    """Two model servers, the second behind a proxy that may fail."""

    swapping: Swapping
    second: FaultyProxy

    async def alone(self, index: int) -> list[str]:
        """What one of them has loaded, by short names."""
        short = {long: name for name, long in self.swapping.shelf.names.items()}
        names = await self.swapping.engine.replicas[index].models()
        return [short[each] for each in names if each != "base"]


@pytest.fixture
async def pair(servers: list[str], committed: Sessions, shelf: Shelf) -> AsyncIterator[Pair]:
    """With nothing loaded."""
    async with AsyncExitStack() as stack:
        second = await stack.enter_async_context(faulty_proxy(servers[1]))
        engine = await stack.enter_async_context(
            HttpEngine([servers[0], second.url], checks=HealthChecks(interval=0.2))
        )
        for name in (await engine.loaded())[1:]:
            await engine.unload_adapter(name)
        yield Pair(Swapping(engine, committed, shelf, shelf.swap(engine, committed)), second)


async def test_every_server_proves_what_the_trainer_said_and_the_receipt_tells(pair: Pair, probe: Probe) -> None:
    receipt = await pair.swapping.swap("a", probe)
    assert receipt.model == pair.swapping.shelf.names["a"]
    assert [each.url for each in receipt.replicas] == list(pair.swapping.engine.urls)
    for each in receipt.replicas:
        assert each.probed
        assert max(each.error, each.noise) < 1e-3
        assert each.distance > 0.1
        assert 0 < each.load_seconds < receipt.seconds
        assert 0 < each.probe_seconds < receipt.seconds
    assert await pair.swapping.loaded() == ["a"]


async def test_an_adapter_that_no_trainer_spoke_for_must_be_the_same_everywhere_and_not_the_base(
    pair: Pair,
) -> None:
    receipt = await pair.swapping.swap("b")
    assert [each.probed for each in receipt.replicas] == [False, False]
    assert max(each.error for each in receipt.replicas) < 1e-3
    assert min(each.distance for each in receipt.replicas) > 0.1


async def test_the_base_needs_no_proof(pair: Pair) -> None:
    assert (await pair.swapping.swap("base")).replicas == ()


async def test_other_weights_than_the_trainer_spoke_of_are_taken_out_again(pair: Pair, probe: Probe) -> None:
    with pytest.raises(AdapterError, match=r"does not serve adapter .*other weights than were trained"):
        await pair.swapping.swap("b", probe)
    assert await pair.swapping.loaded() == []


async def test_a_failed_proof_leaves_loaded_what_was_loaded_before(pair: Pair, probe: Probe) -> None:
    await pair.swapping.load("b")
    with pytest.raises(AdapterError):
        await pair.swapping.swap("b", probe)
    assert await pair.swapping.loaded() == ["b"]


async def test_a_server_that_answers_as_the_base_under_the_adapters_name_is_found_out(
    pair: Pair, probe: Probe, servers: list[str]
) -> None:
    pair.second.fault = as_base(servers[1])
    for spoken in (probe, None):
        with pytest.raises(AdapterError, match=r"answers as the base does|other weights"):
            await pair.swapping.swap("a", spoken)
        assert await pair.swapping.loaded() == []


async def test_a_load_that_one_server_refuses_is_undone_on_the_other(pair: Pair, probe: Probe) -> None:
    pair.second.fault = answering(
        500, {"error": {"message": "LoRA rank 16 is greater than max_lora_rank 8"}}, LOAD
    )
    with pytest.raises(AdapterError, match=r"cannot be served: .*max_lora_rank 8"):
        await pair.swapping.swap("a", probe)
    assert await pair.swapping.loaded() == []


async def test_a_server_that_does_not_see_the_files_is_no_fault_of_the_adapter(pair: Pair, probe: Probe) -> None:
    pair.second.fault = answering(404, {"error": {"message": "No adapter found for a"}}, LOAD)
    with pytest.raises(EngineError, match=r"does not see /.*No adapter found.*at the same path") as caught:
        await pair.swapping.swap("a", probe)
    assert not isinstance(caught.value, EngineRefusalError), "it may be asked again"
    assert await pair.swapping.loaded() == []


async def test_a_server_that_fails_at_everything_is_no_fault_of_the_adapter(pair: Pair, probe: Probe) -> None:
    pair.second.fault = answering(500, "broken", LOAD, COMPLETIONS)
    with pytest.raises(EngineError, match="500"):
        await pair.swapping.swap("a", probe)
    assert await pair.alone(0) == []


@pytest.mark.parametrize("path", [LOAD, COMPLETIONS])
async def test_a_server_that_dies_in_the_middle_undoes_the_other_and_the_rest_can_go_on_without_it(
    pair: Pair, probe: Probe, path: str
) -> None:
    pair.second.fault = dying(pair.second, path)
    with pytest.raises(EngineError):
        await pair.swapping.swap("a", probe)
    assert await pair.alone(0) == []
    await until(lambda: not pair.swapping.engine.replicas[1].alive, seconds=60)
    receipt = await pair.swapping.swap("a", probe)
    assert [each.url for each in receipt.replicas] == [pair.swapping.engine.urls[0]]


async def test_a_server_that_hangs_in_the_middle_is_missed_and_the_rest_can_go_on_without_it(
    pair: Pair, probe: Probe
) -> None:
    checks, shelf = HealthChecks(interval=0.2, timeout=2.0), pair.swapping.shelf
    async with HttpEngine(pair.swapping.engine.urls, checks=checks) as engine:
        assert await engine.health()
        hot = shelf.swap(engine, pair.swapping.sessions)
        pair.second.fault = freezing(pair.second, LOAD)
        async with asyncio.timeout(120):
            with pytest.raises(EngineError, match="does not answer"):
                await hot.swap(shelf.names["a"], probe)
            assert await pair.alone(0) == []
            receipt = await hot.swap(shelf.names["a"], probe)
    assert [each.url for each in receipt.replicas] == [engine.urls[0]]
    assert receipt.absent == (engine.urls[1],)


async def test_one_that_was_away_proves_what_serves_before_it_is_asked_again_and_the_log_has_the_proof(
    pair: Pair, servers: list[str]
) -> None:
    swapping = pair.swapping
    async with swapping.hot:
        await pair.second.down()
        await until(lambda: not swapping.engine.replicas[1].alive, seconds=60)
        release = await swapping.release("c", ReleaseState.ACTIVE)
        assert (await swapping.swap("c")).absent == (pair.second.url,)
        pair.second.fault = as_base(servers[1])
        await pair.second.up()
        await until(lambda: "as the base does" in str(swapping.engine.replicas[1].cause), seconds=60)
        assert not swapping.engine.replicas[1].alive
        pair.second.fault = sound
        await until(lambda: swapping.engine.replicas[1].alive, seconds=60)
        assert await pair.alone(1) == ["c"]
        await pair.second.down()
        await until(lambda: not swapping.engine.replicas[1].alive, seconds=60)
        await pair.second.up()  # with all that it had: of this the log need not tell
        await until(lambda: swapping.engine.replicas[1].alive, seconds=60)
    async with swapping.sessions() as session:
        [entry] = (await audit.page(session, release.project_id, limit=10)).items
    assert (entry.release_id, entry.actor, entry.action) == (release.id, "server", AuditAction.RESTORED)
    [proof] = entry.detail["receipt"]["replicas"]
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
    swap = asyncio.create_task(pair.swapping.swap("a", probe))
    await asked.wait()
    swap.cancel()
    with pytest.raises(asyncio.CancelledError):
        await swap
    assert await pair.swapping.loaded() == []


@pytest.mark.parametrize(
    ("model", "words"),
    [("none", r"there is no adapter in .*0000"), ("nan", "not finite"), ("cut", "cannot be read")],
)
async def test_a_spoiled_adapter_is_named_and_no_server_is_asked(pair: Pair, model: str, words: str) -> None:
    await pair.swapping.load("b")
    asked = len(pair.second.bodies)
    with pytest.raises(AdapterError, match=words):
        await pair.swapping.ask(model)
    assert await pair.swapping.loaded() == ["b"]
    assert len(pair.second.bodies) == asked


async def test_an_adapter_of_another_base_is_refused(pair: Pair, shelf: Shelf, tmp_path: Path) -> None:
    other = make_adapter(make_model_dir(tmp_path / "llama", "llama"), tmp_path / "adapters" / "x", 1)
    away = Shelf(shelf.model_dir, tmp_path / "adapters", {"x": other.name})
    with pytest.raises(AdapterError, match="does not fit"):
        await away.swap(pair.swapping.engine, pair.swapping.sessions).load("x")


async def test_a_server_that_draws_other_tokens_than_it_may_cannot_prove_anything(
    pair: Pair, probe: Probe
) -> None:
    def draw(body: Any, reply: Any) -> Any:
        if body.get("allowed_token_ids"):
            reply["choices"][0]["token_ids"] = [body["allowed_token_ids"][0] ^ 1]
        return reply

    pair.second.fault = rewriting(COMPLETIONS, draw)
    with pytest.raises(EngineError):
        await pair.swapping.swap("a", probe)
    assert await pair.alone(0) == []


def as_base(upstream: str) -> Fault:
    """Whatever adapter is asked for, the base answers."""

    async def fault(path: str, body: Any, forward: Forward) -> Reply | None:
        if path != COMPLETIONS:
            return await forward()
        async with httpx.AsyncClient(trust_env=False) as client:
            answer = await client.post(f"{upstream}{path}", json={**body, "model": "base"})
        return answer.status_code, answer.json()

    return fault

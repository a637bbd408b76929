"""The swap as a transaction, on two live replicas, with probes from the trainer."""

import asyncio

import pytest

from app.base.errors import AdapterError
from app.db.database import Sessions
from app.engine.client import HttpEngine
from app.releases.swap import AdapterLoader
from tests.integration.vllm.loader_setup import open_loader
from tests.integration.vllm.streams import Streams
from trainer.learning.adapter import PublishedAdapter


@pytest.fixture
def swap(both: HttpEngine, committed: Sessions, adapters: list[PublishedAdapter]) -> AdapterLoader:
    return open_loader(both, committed, adapters[0].path.parent)


async def test_every_replica_is_verified_to_serve_the_trained_weights(
    swap: AdapterLoader, both: HttpEngine, adapters: list[PublishedAdapter]
) -> None:
    mine = adapters[0]
    report = await swap.swap(mine.hash, mine.probe)
    assert [each.url for each in report.replicas] == [each.url for each in both.replicas]
    for each in report.replicas:
        assert each.probed
        assert each.error < 1e-4
        assert each.distance > 0.1
    assert await both.models() == ["base", mine.hash]


async def test_other_weights_than_the_trainers_are_loaded_nowhere(
    swap: AdapterLoader, both: HttpEngine, adapters: list[PublishedAdapter]
) -> None:
    with pytest.raises(AdapterError, match="other weights than the trained ones"):
        await swap.swap(adapters[0].hash, adapters[1].probe)
    assert await both.loaded() == ["base"]


async def test_without_a_probe_the_replicas_must_agree_and_differ_from_the_base(
    swap: AdapterLoader, adapters: list[PublishedAdapter]
) -> None:
    report = await swap.swap(adapters[0].hash, None)
    assert [each.probed for each in report.replicas] == [False, False]
    assert max(each.error for each in report.replicas) < 1e-4
    assert min(each.distance for each in report.replicas) > 0.1


async def test_no_token_is_sampled_from_other_weights_during_swaps_under_load(
    swap: AdapterLoader, both: HttpEngine, adapters: list[PublishedAdapter]
) -> None:
    """There is one adapter more than the servers hold: each swap loads one, and the last ones evict another."""
    first = adapters[0]
    await swap.swap(first.hash, first.probe)
    streams = Streams(swap, first)
    async with streams.running(8):
        for each in (*adapters[1:], first):
            await asyncio.sleep(1)
            assert each.hash not in await both.loaded()
            await swap.swap(each.hash, each.probe)
            streams.serving = each
        await asyncio.sleep(1)
    assert not streams.failures
    assert {request.adapter.hash for request in streams.answered} == {each.hash for each in adapters}
    assert max(request.off_by for request in streams.answered) < 1e-3


async def test_concurrent_swaps_are_serialized(
    swap: AdapterLoader, both: HttpEngine, adapters: list[PublishedAdapter]
) -> None:
    names = [each.hash for each in adapters[:2]]
    reports = await asyncio.gather(*(swap.swap(each.hash, each.probe) for each in adapters[:2]))
    assert [report.model for report in reports] == names
    assert sorted(await both.models()) == sorted(["base", *names])

"""A model server that sleeps while a run updates gets no requests, and gets them again once it wakes."""

from collections.abc import Iterator
from typing import Any

import pytest

from app.base.errors import EngineError
from app.engine.client import HttpEngine
from app.engine.health import HealthChecks
from app.engine.protocol import Sampling
from tests.support.engine_process import engine_process
from tests.support.faulty_proxy import FaultyProxy, Forward, Reply, faulty_proxy, until
from tests.support.tiny_model import make_model_dir

CHECKS = HealthChecks(interval=0.05, timeout=10.0, may_sleep=True)


@pytest.fixture(scope="module")
def upstream(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with engine_process(make_model_dir(tmp_path_factory.mktemp("model")), "--embeddings", "none") as url:
        yield url


class Bed:
    """Replies to /is_sleeping."""

    def __init__(self) -> None:
        self.sleeping = False

    async def fault(self, path: str, _: Any, forward: Forward) -> Reply | None:
        return (200, {"is_sleeping": self.sleeping}) if path == "/is_sleeping" else await forward()


async def ask(engine: HttpEngine) -> None:
    await engine.complete([1, 2, 3], model="base", sampling=Sampling(max_tokens=2))


async def asked_by(engine: HttpEngine, proxy: FaultyProxy) -> int:
    before = len(proxy.bodies)
    await ask(engine)
    await ask(engine)
    return len(proxy.bodies) - before


async def test_while_one_server_sleeps_the_other_gets_all_requests(upstream: str) -> None:
    bed, other = Bed(), Bed()
    async with (
        faulty_proxy(upstream, bed.fault) as first,
        faulty_proxy(upstream, other.fault) as second,
        HttpEngine([first.url, second.url], checks=CHECKS) as engine,
    ):
        await ask(engine)
        bed.sleeping = True
        await until(lambda: not engine.replicas[0].alive)
        assert "asleep" in str(engine.replicas[0].cause)
        assert (await asked_by(engine, first), await asked_by(engine, second)) == (0, 2)
        other.sleeping = True
        await until(lambda: not engine.replicas[1].alive)
        with pytest.raises(EngineError, match="is asleep"):
            await ask(engine)
        bed.sleeping = False
        await until(lambda: engine.replicas[0].alive)
        await ask(engine)


async def test_a_server_that_cannot_report_whether_it_sleeps_is_refused_with_its_missing_flags(
    upstream: str,
) -> None:
    async with HttpEngine([upstream], checks=CHECKS) as engine:
        with pytest.raises(EngineError, match=r"VLLM_SERVER_DEV_MODE=1 and --enable-sleep-mode"):
            await ask(engine)


async def test_servers_that_never_sleep_are_not_asked(upstream: str) -> None:
    async with HttpEngine([upstream], checks=HealthChecks(interval=0.05, timeout=10.0)) as engine:
        await ask(engine)

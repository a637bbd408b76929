"""Training runs are handed over through real brokers, whichever of worker and broker is killed."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from app.db.database import Sessions
from app.db.tables import RunState
from app.machine.doctor import check_broker
from tests.support.broker_servers import BrokerServer, rabbitmq_server, redis_server
from tests.support.worker_host import WorkerHost


@pytest.fixture(params=[redis_server, rabbitmq_server], ids=["redis", "rabbitmq"])
async def broker(request: pytest.FixtureRequest) -> AsyncIterator[BrokerServer]:
    opened: AbstractContextManager[BrokerServer] = request.param()
    with opened as server:
        yield server


@pytest.mark.slow
async def test_a_run_is_neither_lost_nor_doubled_if_its_worker_or_the_broker_is_killed(
    broker: BrokerServer, committed: Sessions, database_url: str, tmp_path: Path
) -> None:
    host = WorkerHost(committed, database_url, tmp_path, broker.url)
    try:
        assert check_broker(host.settings).verdict == "ok"
        worker = await host.worker()
        resumed = await host.queue(steps=15)
        await host.started(resumed)
        worker.kill()
        await worker.wait()
        [worker] = await host.workers(1)
        run = await host.ended(resumed)
        assert (run.state, run.step, run.attempt) == (RunState.DONE, 15, 2)
        assert [what for what, *_ in host.notes(resumed)] == ["began", "began", "ended"]

        broker.kill()
        during = await host.queue()  # the message is lost, the run is not
        await asyncio.to_thread(broker.start)
        after = await host.queue()
        for run_id in (during, after):
            run = await host.ended(run_id)
            assert (run.state, run.attempt) == (RunState.DONE, 1)
            assert [what for what, *_ in host.notes(run_id)] == ["began", "ended"]
        assert worker.returncode is None, "it has reconnected, and was not replaced"
    finally:
        await host.close()

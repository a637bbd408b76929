"""A staging server that several projects share: trials of one never meet what those of another do."""

import asyncio
from dataclasses import replace

import pytest
from sqlalchemy import text

from app.db.database import UNAVAILABLE, Sessions
from app.db.lease import staging_lock
from app.projects import secrets
from app.projects import store as projects
from tests.support.ledger_project import put_ledger, until
from tests.support.lock_waits import waits_for_a_lock
from tests.support.webhook_receiver import SECRET
from tests.trainer.exam.test_staging_reset import Stage
from tests.trainer.exam.test_staging_reset import stage as stage  # a fixture

SHOP, BANK, MAIL = "shop.test", "bank.test", "mail.test"
_END_OTHERS = text(
    "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND pid <> pg_backend_pid()"
    " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
)


@pytest.fixture
async def neighbour(stage: Stage) -> Stage:
    """Another project with the same staging server."""
    async with stage.project.sessions.begin() as session:
        other = await projects.create(session, "other")
        await put_ledger(session, other.id, stage.receiver.ledger, stage.live)
        await secrets.put(session, other.id, "reset-key", SECRET)
    found = replace(stage, project=replace(stage.project, id=other.id))
    await found.settings()
    return found


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost"])
async def test_trials_of_two_projects_wait_for_each_other(stage: Stage, neighbour: Stage, name: str) -> None:
    await neighbour.settings(server=stage.server.replace("127.0.0.1", name))
    ledger = stage.receiver.ledger
    ledger.answers.clear()
    first = asyncio.create_task(stage.tried())
    await until(lambda: bool(ledger.entries))
    second = asyncio.create_task(neighbour.tried(count=2))
    await asyncio.sleep(1)  # it would have begun long ago
    assert len(stage.receiver.received) == 1, "the first one is reset while it goes on"
    ledger.answers.set()
    assert [each.success for each in [*await first, *await second]] == [True] * 3
    assert len(stage.receiver.received) == 3


async def test_servers_that_are_not_shared_wait_for_nobody(committed: Sessions) -> None:
    async with staging_lock(committed, [SHOP, BANK]), staging_lock(committed, [MAIL]):
        pass


async def test_a_trial_whose_lock_was_lost_does_not_count(committed: Sessions) -> None:
    with pytest.raises(UNAVAILABLE):
        async with staging_lock(committed, [SHOP]), committed.begin() as session:
            await session.execute(_END_OTHERS)


async def test_whoever_waits_for_several_servers_gets_them_without_a_deadlock(committed: Sessions) -> None:
    async def take(*services: str) -> None:
        for _ in range(10):
            async with staging_lock(committed, services):
                await asyncio.sleep(0.005)

    await asyncio.gather(take(SHOP, BANK, MAIL), take(MAIL, SHOP), take(BANK, SHOP, SHOP))


async def test_whoever_stops_waiting_leaves_the_server_to_others(committed: Sessions) -> None:
    async def wait() -> None:
        async with staging_lock(committed, [BANK, SHOP]):
            pass

    async with staging_lock(committed, [SHOP]):
        waiting = asyncio.create_task(wait())
        await until(lambda: waits_for_a_lock(committed))
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    await wait()

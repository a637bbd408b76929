"""The queue of training runs: lost processes are replaced, and idle workers notified."""

from uuid import UUID

import pytest
from sqlalchemy.ext.asyncio import AsyncSession

from app.db import tables
from app.db.database import Sessions
from app.db.tables import RunState
from app.releases import manifest_store
from app.runs import store as runs
from tests.support.queued_runs import EXPIRED, held, queued
from tests.support.rows import LEASE
from trainer.worker.launcher import reconcile


async def test_a_run_that_loses_its_process_too_often_fails(session: AsyncSession) -> None:
    run = await held(session, EXPIRED)
    for attempt in range(2, runs.MAX_LOSSES + 1):
        assert await runs.requeue_expired(session) == [run.id]
        again = await runs.claim(session, "me", EXPIRED)
        assert again is not None
        assert again.attempt == attempt
    assert await runs.requeue_expired(session) == []
    lost = await runs.get(session, run.id)
    assert lost.state is RunState.FAILED
    assert lost.failure is not None
    assert lost.failure.startswith("RunLostError: the process of this run was lost 3 times")


async def lost_at(session: AsyncSession, run_id: UUID, *steps: int) -> tables.TrainingRun:
    """Claim the run, report these steps, and lose its process."""
    await runs.claim(session, "me", LEASE, run_id)
    for index in steps:
        await runs.append_step(session, run_id, "me", index, {})
    await runs.expire(session, run_id, "me")
    await runs.requeue_expired(session)
    return await runs.get(session, run_id)


async def test_a_run_that_progresses_between_losses_never_fails(session: AsyncSession) -> None:
    run_id = (await queued(session)).id
    for index in range(1, 8):
        run = await lost_at(session, run_id, index)
        assert (run.state, run.attempt) == (RunState.QUEUED, index)
    assert (await lost_at(session, run_id)).state is RunState.QUEUED
    assert (await lost_at(session, run_id)).state is RunState.FAILED
    await runs.retry(session, run_id)
    states = [(await lost_at(session, run_id)).state for _ in range(runs.MAX_LOSSES)]
    assert states[1:] == [RunState.QUEUED, RunState.FAILED], "a retried run has all its attempts"


async def test_a_step_that_kills_every_process_fails_the_run_although_earlier_steps_are_repeated(
    session: AsyncSession,
) -> None:
    run_id = (await queued(session)).id
    states = [(await lost_at(session, run_id, 1, 2, 3)).state for _ in range(runs.MAX_LOSSES)]
    assert states == [RunState.QUEUED, RunState.QUEUED, RunState.FAILED]


async def test_a_lost_run_whose_cancellation_was_requested_is_cancelled(session: AsyncSession) -> None:
    run = await held(session, EXPIRED)
    await runs.request_cancel(session, run.id)
    assert await runs.requeue_expired(session) == []
    assert (await runs.get(session, run.id)).state is RunState.CANCELLED


async def test_expiring_a_lease_affects_only_that_owner(session: AsyncSession) -> None:
    run = await held(session)
    await runs.expire(session, run.id, "another")
    assert await runs.requeue_expired(session) == []
    await runs.expire(session, run.id, "me")
    assert await runs.requeue_expired(session) == [run.id]


async def test_the_oldest_queued_run_of_each_project_can_start_unless_one_is_running(
    session: AsyncSession,
) -> None:
    first = await queued(session)
    second = await queued(session, first.project_id)
    other = await queued(session)
    assert set(await runs.startable(session)) == {first.id, other.id}
    await runs.claim(session, "me", LEASE, first.id)
    assert await runs.startable(session) == [other.id]
    await runs.finish(session, first.id, "me", RunState.DONE)
    assert set(await runs.startable(session)) == {second.id, other.id}


@pytest.mark.parametrize("is_idle", [True, False])
async def test_only_an_idle_worker_notifies_of_queued_runs(committed: Sessions, is_idle: bool) -> None:
    async with committed.begin() as session:
        run = await queued(session)
    notified: list[UUID] = []
    for _ in range(2):
        await reconcile(committed, notified.append, lambda: is_idle)
    assert notified == ([run.id, run.id] if is_idle else [])


async def test_any_running_is_true_until_the_last_run_has_ended(session: AsyncSession) -> None:
    run = await held(session)
    assert await manifest_store.any_trains(session)
    await runs.finish(session, run.id, "me", RunState.DONE)
    await queued(session)
    assert not await manifest_store.any_trains(session)

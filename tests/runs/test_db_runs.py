"""Training runs: claims, leases, steps, cancellation and listings."""

import asyncio
from collections import Counter
from uuid import UUID, uuid4

import psycopg
import pytest
from sqlalchemy.ext.asyncio import AsyncSession

from app.base.errors import ConflictError, NotFoundError
from app.base.run_settings import RunKind, read_settings
from app.db import notify
from app.db.database import Sessions
from app.db.tables import RunState
from app.runs import store as runs
from tests.support.queued_runs import EXPIRED, SFT, held, queued
from tests.support.rows import LEASE, project_row


async def test_a_new_run_is_queued_with_its_settings(session: AsyncSession) -> None:
    run = await queued(session)
    assert (run.state, run.kind, run.attempt, run.step, run.steps) == (RunState.QUEUED, RunKind.SFT, 0, 0, 0)
    assert read_settings(run.settings) == SFT
    with pytest.raises(NotFoundError):
        await runs.get(session, run.id, uuid4())


async def test_the_oldest_run_is_claimed_first_and_one_per_project(session: AsyncSession) -> None:
    first = await queued(session)
    second = await queued(session, first.project_id)
    third = await queued(session)
    claimed = [await runs.claim(session, "me", LEASE) for _ in range(3)]
    assert [run.id if run else None for run in claimed] == [first.id, third.id, None]
    assert await runs.claim(session, "me", LEASE, second.id) is None
    await runs.finish(session, first.id, "me", RunState.DONE)
    next_one = await runs.claim(session, "me", LEASE)
    assert next_one is not None
    assert (next_one.id, next_one.state, next_one.attempt) == (second.id, RunState.RUNNING, 1)


async def test_of_many_processes_one_claims_a_run_and_one_trains_a_project(committed: Sessions) -> None:
    async with committed.begin() as session:
        projects = [(await project_row(session)).id for _ in range(3)]
        for project_id in projects * 2:
            await queued(session, project_id)

    async def claim(number: int) -> UUID | None:
        async with committed.begin() as session:
            run = await runs.claim(session, f"process {number}", LEASE)
            return run.project_id if run else None

    claimed = await asyncio.gather(*map(claim, range(12)))
    assert all(count == 1 for project, count in Counter(claimed).items() if project)
    while (project := await claim(99)) is not None:
        claimed.append(project)
    assert {project for project in claimed if project} == set(projects)


async def test_two_runs_of_a_project_cannot_be_claimed_concurrently_by_id(committed: Sessions) -> None:
    async with committed.begin() as session:
        first = await queued(session)
        second = await queued(session, first.project_id)
    async with committed() as one, committed() as other:
        assert await runs.claim(one, "one", LEASE, first.id) is not None
        waiting = asyncio.create_task(runs.claim(other, "other", LEASE, second.id))
        await asyncio.sleep(0.1)
        await one.commit()
        assert await waiting is None
        await other.commit()
    async with committed() as session:
        assert (await runs.get(session, second.id)).state is RunState.QUEUED


async def test_steps_are_stored_in_order_with_the_progress(session: AsyncSession) -> None:
    run = await held(session)
    for index in (1, 2, 3):
        assert not await runs.append_step(session, run.id, "me", index, {"reward": index}, total=5)
    assert [(step.index, step.metrics) for step in await runs.steps(session, run.id, after=1)] == [
        (2, {"reward": 2}),
        (3, {"reward": 3}),
    ]
    again = await runs.get(session, run.id)
    assert (again.step, again.steps) == (3, 5)


async def test_another_attempt_deletes_the_steps_after_its_checkpoint(session: AsyncSession) -> None:
    run = await held(session)
    for index in (1, 2, 3):
        await runs.append_step(session, run.id, "me", index, {"attempt": 1})
    await runs.append_step(session, run.id, "me", 2, {"attempt": 2})
    kept = [(step.index, step.metrics["attempt"]) for step in await runs.steps(session, run.id)]
    assert kept == [(1, 1), (2, 2)]


async def test_metrics_that_json_cannot_represent_are_stored_as_null(session: AsyncSession) -> None:
    run = await held(session)
    await runs.append_step(session, run.id, "me", 1, {"grad_norm": float("nan"), "reward": 0.5})
    [step] = await runs.steps(session, run.id)
    assert step.metrics == {"grad_norm": None, "reward": 0.5}


async def test_a_process_that_lost_its_run_can_write_nothing(session: AsyncSession) -> None:
    run = await held(session, EXPIRED)
    assert await runs.requeue_expired(session) == [run.id]
    await runs.claim(session, "another", LEASE)
    for attempt in (
        runs.extend(session, run.id, "me", LEASE),
        runs.hold(session, run.id, "me"),
        runs.append_step(session, run.id, "me", 1, {}),
    ):
        with pytest.raises(ConflictError, match="no longer held by me"):
            await attempt
    assert not await runs.finish(session, run.id, "me", RunState.DONE)
    assert not await runs.hand_back(session, run.id, "me")
    assert await runs.steps(session, run.id) == []
    assert await runs.extend(session, run.id, "another", LEASE) is False


async def test_a_held_run_cannot_be_requeued_before_the_transaction_ends(committed: Sessions) -> None:
    async with committed.begin() as session:
        run = await held(session, EXPIRED)
    async with committed() as mine:
        await runs.hold(mine, run.id, "me")
        async with committed.begin() as other:
            taken = asyncio.create_task(runs.requeue_expired(other))
            await asyncio.sleep(0.1)
            assert not taken.done()
            await mine.commit()
            assert await taken == [run.id]


async def test_a_run_ends_once_with_its_result(session: AsyncSession) -> None:
    run = await held(session)
    assert await runs.finish(session, run.id, "me", RunState.DONE, result={"adapter": "f00d"})
    assert not await runs.finish(session, run.id, "me", RunState.FAILED, failure="late")
    ended = await runs.get(session, run.id)
    assert (ended.state, ended.result, ended.failure) == (RunState.DONE, {"adapter": "f00d"}, None)
    assert (ended.owner, ended.lease_until) == (None, None)
    assert ended.finished_at is not None


@pytest.mark.parametrize("state", [RunState.QUEUED, RunState.RUNNING])
async def test_a_run_cannot_finish_in_a_state_that_is_not_final(session: AsyncSession, state: RunState) -> None:
    run = await held(session)
    with pytest.raises(ValueError, match="cannot end as"):
        await runs.finish(session, run.id, "me", state)


async def test_a_queued_run_is_cancelled_at_once_and_a_running_one_is_flagged(session: AsyncSession) -> None:
    running = await held(session)
    waiting = await queued(session, running.project_id)
    assert (await runs.request_cancel(session, waiting.id)).state is RunState.CANCELLED
    assert (await runs.request_cancel(session, running.id)).state is RunState.RUNNING
    assert await runs.extend(session, running.id, "me", LEASE) is True
    assert await runs.append_step(session, running.id, "me", 1, {}) is True
    await runs.finish(session, running.id, "me", RunState.CANCELLED)
    assert (await runs.request_cancel(session, running.id)).state is RunState.CANCELLED
    done = await held(session)
    await runs.finish(session, done.id, "me", RunState.DONE)
    with pytest.raises(ConflictError, match="is already done"):
        await runs.request_cancel(session, done.id)


async def test_only_failed_and_cancelled_runs_can_be_retried(session: AsyncSession) -> None:
    run = await held(session)
    with pytest.raises(ConflictError, match="is running: only one that failed or was cancelled"):
        await runs.retry(session, run.id)
    await runs.finish(session, run.id, "me", RunState.FAILED, failure="InvalidError: no data")
    again = await runs.retry(session, run.id)
    assert (again.state, again.attempt, again.failure, again.finished_at) == (RunState.QUEUED, 0, None, None)
    await runs.request_cancel(session, run.id)
    again = await runs.retry(session, run.id)
    assert (again.state, again.cancel_requested) == (RunState.QUEUED, False)


async def test_handing_back_does_not_count_as_an_attempt(session: AsyncSession) -> None:
    run = await held(session)
    assert await runs.hand_back(session, run.id, "me")
    waiting = await runs.get(session, run.id)
    assert (waiting.state, waiting.attempt, waiting.owner) == (RunState.QUEUED, 0, None)
    await runs.claim(session, "me", LEASE)
    await runs.request_cancel(session, run.id)
    assert await runs.hand_back(session, run.id, "me")
    assert (await runs.get(session, run.id)).state is RunState.CANCELLED


async def test_runs_are_listed_newest_first_by_page_and_state(session: AsyncSession) -> None:
    project_id = (await project_row(session)).id
    ids = [(await queued(session, project_id)).id for _ in range(3)]
    await queued(session)
    page = await runs.page(session, project_id, limit=2)
    rest = await runs.page(session, project_id, limit=2, cursor=page.cursor)
    assert [run.id for run in (*page.items, *rest.items)] == ids[::-1]
    assert rest.cursor is None
    await runs.claim(session, "me", LEASE, ids[1])
    assert [run.id for run in (await runs.page(session, project_id, state=RunState.RUNNING)).items] == [ids[1]]


async def test_followers_of_a_run_are_notified_of_each_change(committed: Sessions, database_url: str) -> None:
    plain = database_url.replace("+psycopg", "")
    async with await psycopg.AsyncConnection.connect(plain, autocommit=True) as listener:
        await listener.execute(f"LISTEN {notify.RUNS}")
        async with committed.begin() as session:
            run = await queued(session)
        for change in (
            lambda session: runs.claim(session, "me", LEASE),
            lambda session: runs.append_step(session, run.id, "me", 1, {}),
            lambda session: runs.finish(session, run.id, "me", RunState.DONE),
        ):
            async with committed.begin() as session:
                await change(session)
        notified = [notice.payload async for notice in listener.notifies(timeout=300, stop_after=4)]
    assert notified == [str(run.id)] * 4

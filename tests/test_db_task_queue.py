"""The queue of tasks: claims, leases and their owners."""

import asyncio
from collections.abc import Sequence
from uuid import UUID

import psycopg
import pytest
from sqlalchemy.ext.asyncio import AsyncSession

from app.db import models, task_queue, tasks
from app.db.database import Sessions
from app.db.models import ReleaseState, TaskState
from app.db.task_queue import TaskOutcome
from app.errors import ConflictError
from app.records import Stop
from tests.rows import LEASE, claimed_task, project_row, task_row

DONE = TaskOutcome(state=TaskState.DONE, stop=Stop.COMPLETED, answer=7, turns=2, generated_tokens=31, calls=4)
EXPIRED = -1.0  # a lease that has expired when it begins


async def test_the_oldest_task_is_claimed_first(session: AsyncSession) -> None:
    project = await project_row(session)
    submitted = [(await task_row(session, project.id)).id for _ in range(3)]
    claimed = [await task_queue.claim(session, "me", LEASE) for _ in range(4)]
    assert [task.id if task else None for task in claimed] == [*submitted, None]


async def test_two_runners_never_get_the_same_task(committed: Sessions) -> None:
    async with committed.begin() as session:
        project = await project_row(session)
        submitted = {(await task_row(session, project.id)).id for _ in range(40)}

    async def claim_all(owner: str) -> Sequence[UUID]:
        mine: list[UUID] = []
        while True:
            async with committed.begin() as session:
                task = await task_queue.claim(session, owner, LEASE)
                if task is None:
                    return mine
                mine.append(task.id)

    claimed = await asyncio.gather(*(claim_all(f"runner {number}") for number in range(6)))
    everything = [task_id for mine in claimed for task_id in mine]
    assert len(everything) == 40
    assert set(everything) == submitted


async def test_a_task_locked_by_another_claimer_is_skipped_not_waited_for(committed: Sessions) -> None:
    async with committed.begin() as session:
        project = await project_row(session)
        first, second = [(await task_row(session, project.id)).id for _ in range(2)]
    async with committed.begin() as one, committed.begin() as other, asyncio.timeout(5):
        mine, yours = await task_queue.claim(one, "one", LEASE), await task_queue.claim(other, "other", LEASE)
        assert mine is not None
        assert yours is not None
        assert (mine.id, yours.id) == (first, second)


async def test_the_first_claim_pins_the_active_release_and_the_clock(session: AsyncSession) -> None:
    project = await project_row(session)
    task = await task_row(session, project.id)
    first = await task_queue.claim(session, "me", EXPIRED)
    assert first is not None
    pinned, started = first.release_id, first.started_at
    release = await session.get_one(models.Release, pinned)
    assert (release.project_id, release.number, release.state) == (project.id, 1, ReleaseState.ACTIVE)
    release.state = ReleaseState.RETIRED
    session.add(models.Release(project_id=project.id, number=2, state=ReleaseState.ACTIVE))
    await session.flush()
    again = await task_queue.claim(session, "another", LEASE)
    assert again is not None
    assert (again.id, again.release_id, again.started_at) == (task.id, pinned, started)
    assert (again.attempt, again.owner) == (2, "another")


async def test_a_task_cannot_be_claimed_while_its_lease_is_valid(session: AsyncSession) -> None:
    await claimed_task(session)
    assert await task_queue.claim(session, "another", LEASE) is None


async def test_extending_renews_leases_and_returns_requested_cancellations(session: AsyncSession) -> None:
    project = await project_row(session)
    kept, stopped = await task_row(session, project.id), await task_row(session, project.id)
    for _ in range(2):
        await task_queue.claim(session, "me", EXPIRED)
        await task_queue.extend(session, "me", LEASE)
    await tasks.request_cancel(session, stopped.id)
    assert await task_queue.extend(session, "me", LEASE) == {kept.id: False, stopped.id: True}
    assert await task_queue.extend(session, "me", LEASE, [kept.id]) == {kept.id: False}
    assert await task_queue.cancelled(session, "me") == {stopped.id}
    assert await task_queue.cancelled(session, "another") == set()
    assert await task_queue.claim(session, "another", LEASE) is None


async def test_a_runner_that_lost_its_task_can_neither_finish_nor_extend_it(session: AsyncSession) -> None:
    await task_row(session, (await project_row(session)).id)
    task = await task_queue.claim(session, "slow", EXPIRED)
    assert task is not None
    await task_queue.claim(session, "quick", LEASE)
    assert await task_queue.extend(session, "slow", LEASE) == {}
    assert await task_queue.finish(session, task.id, "slow", DONE) is False
    with pytest.raises(ConflictError, match="no longer held by slow"):
        await task_queue.hold(session, task.id, "slow")
    assert (await tasks.get(session, task.id)).state is TaskState.RUNNING
    assert await task_queue.finish(session, task.id, "quick", DONE) is True


async def test_a_held_task_cannot_be_claimed_even_if_its_lease_expires(committed: Sessions) -> None:
    async with committed.begin() as session:
        task = await task_row(session, (await project_row(session)).id)
        await task_queue.claim(session, "me", EXPIRED)
    async with committed.begin() as mine:
        await task_queue.hold(mine, task.id, "me")
        async with committed.begin() as other:
            assert await task_queue.claim(other, "another", LEASE) is None
    async with committed.begin() as other:
        assert await task_queue.claim(other, "another", LEASE) is not None


async def test_finishing_stores_the_outcome_once(session: AsyncSession) -> None:
    task = await claimed_task(session)
    assert await task_queue.finish(session, task.id, "me", DONE) is True
    assert await task_queue.finish(session, task.id, "me", TaskOutcome(state=TaskState.FAILED)) is False
    found = await tasks.get(session, task.id)
    assert (found.state, found.stop, found.answer) == (TaskState.DONE, Stop.COMPLETED, 7)
    assert (found.turns, found.generated_tokens, found.calls) == (2, 31, 4)
    assert (found.owner, found.lease_until, found.checked) == (None, None, False)
    assert found.finished_at is not None


async def test_a_task_cannot_end_as_running(session: AsyncSession) -> None:
    task = await claimed_task(session)
    with pytest.raises(ValueError, match="cannot end as running"):
        await task_queue.finish(session, task.id, "me", TaskOutcome(state=TaskState.RUNNING))


async def test_a_task_that_is_handed_back_can_be_claimed_at_once_as_another_attempt(session: AsyncSession) -> None:
    task = await claimed_task(session)
    assert await task_queue.hand_back(session, "another") == []
    assert await task_queue.hand_back(session, "me") == [task.id]
    again = await task_queue.claim(session, "another", LEASE)
    assert again is not None
    assert (again.id, again.attempt) == (task.id, 2)


async def test_runners_are_notified_of_a_task_when_it_is_committed(committed: Sessions, database_url: str) -> None:
    plain = database_url.replace("+psycopg", "")
    async with await psycopg.AsyncConnection.connect(plain, autocommit=True) as listener:
        await listener.execute(f"LISTEN {tasks.CHANNEL}")
        async with committed.begin() as session:
            await task_row(session, (await project_row(session)).id)
            assert [notice async for notice in listener.notifies(timeout=0.1)] == []
        notified = [notice.channel async for notice in listener.notifies(timeout=5, stop_after=1)]
    assert notified == [tasks.CHANNEL]

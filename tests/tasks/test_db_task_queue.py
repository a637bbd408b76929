"""The queue of tasks: claims, leases and their owners."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from uuid import UUID

import psycopg
import pytest
from sqlalchemy import update
from sqlalchemy.ext.asyncio import AsyncSession

from app.base.errors import ConflictError
from app.base.values import Stop
from app.db import lease, notify, runners, tables
from app.db.database import Sessions
from app.db.tables import ReleaseState, TaskState
from app.tasks import queue
from app.tasks import store as tasks
from app.tasks.queue import TaskOutcome
from tests.support.rows import LEASE, claimed_task, project_row, runner_report, task_row

DONE = TaskOutcome(state=TaskState.DONE, stop=Stop.COMPLETED, answer=7, turns=2, generated_tokens=31, calls=4)
EXPIRED = -1.0  # a lease that has expired when it begins


async def test_the_oldest_task_is_claimed_first(session: AsyncSession) -> None:
    project = await project_row(session)
    submitted = [(await task_row(session, project.id)).id for _ in range(3)]
    claimed = [await queue.claim(session, "me", LEASE) for _ in range(4)]
    assert [task.id if task else None for task in claimed] == [*submitted, None]


async def test_two_runners_never_get_the_same_task(committed: Sessions) -> None:
    async with committed.begin() as session:
        project = await project_row(session)
        submitted = {(await task_row(session, project.id)).id for _ in range(40)}

    async def claim_all(owner: str) -> Sequence[UUID]:
        mine: list[UUID] = []
        while True:
            async with committed.begin() as session:
                task = await queue.claim(session, owner, LEASE)
                if task is None:
                    return mine
                mine.append(task.id)

    claimed = await asyncio.gather(*(claim_all(f"runner {number}") for number in range(6)))
    everything = [task_id for mine in claimed for task_id in mine]
    assert len(everything) == 40
    assert set(everything) == submitted


async def test_the_first_claim_pins_the_active_release_and_the_clock(session: AsyncSession) -> None:
    project = await project_row(session)
    task = await task_row(session, project.id)
    first = await queue.claim(session, "me", EXPIRED)
    assert first is not None
    pinned, started = first.release_id, first.started_at
    release = await session.get_one(tables.Release, pinned)
    assert (release.project_id, release.number, release.state) == (project.id, 1, ReleaseState.ACTIVE)
    release.state = ReleaseState.RETIRED
    session.add(tables.Release(project_id=project.id, number=2, state=ReleaseState.ACTIVE))
    await session.flush()
    again = await queue.claim(session, "another", LEASE)
    assert again is not None
    assert (again.id, again.release_id, again.started_at) == (task.id, pinned, started)
    assert (again.attempt, again.owner) == (2, "another")


async def test_a_death_is_counted_when_a_lease_expired_and_not_when_a_task_was_handed_back(
    session: AsyncSession,
) -> None:
    task = await task_row(session, (await project_row(session)).id)
    deaths = []
    for owner in ("a", "b", "b", "c"):
        claimed = await queue.claim(session, owner, EXPIRED)
        assert claimed is not None
        deaths.append(claimed.deaths)
        if owner == "c":
            await queue.hand_back(session, owner)
    claimed = await queue.claim(session, "d", LEASE)
    assert claimed is not None
    assert (claimed.id, [*deaths, claimed.deaths]) == (task.id, [0, 1, 1, 2, 2])


async def test_the_tasks_of_a_dead_owner_can_be_claimed_at_once_and_are_suspects(session: AsyncSession) -> None:
    task = await claimed_task(session)
    assert await queue.abandon(session, "me") == [task.id]
    claimed = await queue.claim(session, "another", LEASE, abandoned=False)
    assert claimed is not None
    assert (claimed.id, claimed.deaths, queue.is_suspect(claimed)) == (task.id, 1, True)


async def test_expired_leases_are_respected_while_their_owners_may_be_alive(session: AsyncSession) -> None:
    project = await project_row(session)
    await task_row(session, project.id)
    await queue.claim(session, "me", EXPIRED)
    assert await queue.claim(session, "another", LEASE, abandoned=False) is None
    fresh = await task_row(session, project.id)
    claimed = await queue.claim(session, "another", LEASE, abandoned=False)
    assert claimed is not None
    assert claimed.id == fresh.id


async def test_suspects_occupy_half_of_the_live_runners_and_at_least_one(session: AsyncSession) -> None:
    project = await project_row(session)
    for _ in range(6):
        await task_row(session, project.id)
        await queue.claim(session, "dead", LEASE)
    await queue.abandon(session, "dead")

    async def claimed_suspects() -> int:
        count = 0
        while await queue.claim(session, f"runner {count}", LEASE) is not None:
            count += 1
        for number in range(count):
            await queue.hand_back(session, f"runner {number}")
        return count

    assert await claimed_suspects() == 1
    for number in range(5):
        await runners.report(session, runner_report(id=f"live {number}"))
    assert await claimed_suspects() == 2


async def test_a_task_is_condemned_only_if_two_runners_died_while_it_ran_alone(session: AsyncSession) -> None:
    await claimed_task(session, "a")
    verdicts = []
    for owner, alone in (("b", False), ("c", True), ("d", False), ("e", True), ("f", False)):
        await queue.abandon(session, chr(ord(owner) - 1))
        claimed = await queue.claim(session, owner, LEASE)
        assert claimed is not None
        verdicts.append((claimed.deaths, queue.is_condemned(claimed)))
        if alone:
            await queue.mark_alone(session, claimed.id, owner)
    assert verdicts == [(1, False), (2, False), (3, False), (4, False), (5, True)]
    [task_id] = await queue.hand_back(session, "f")
    with pytest.raises(ConflictError):
        await queue.mark_alone(session, task_id, "f")
    await queue.claim(session, "g", LEASE)
    await queue.abandon(session, "g")
    claimed = await queue.claim(session, "h", LEASE)
    assert claimed is not None
    assert queue.is_condemned(claimed), "also once it was handed back"
    assert claimed.lone_deaths == 3, "a runner that died while it recorded the end"


async def test_kills_from_outside_condemn_a_task_later_than_ends_of_runners_by_themselves(
    session: AsyncSession,
) -> None:
    async def deaths_until_condemned(*killed: bool) -> list[bool]:
        task_id, verdicts = (await claimed_task(session, "a0")).id, list[bool]()
        await queue.abandon(session, "a0")
        for number, each in enumerate(killed):
            await queue.claim(session, f"b{number}", LEASE)
            await queue.mark_alone(session, task_id, f"b{number}")
            await queue.abandon(session, f"b{number}", killed=each)
            row = await tasks.get(session, task_id)
            verdicts.append(queue.is_condemned(row))
        await session.delete(row)
        await session.flush()
        return verdicts

    assert await deaths_until_condemned(False, False) == [False, True]
    assert await deaths_until_condemned(True, False, True, False) == [False, False, False, True]
    assert await deaths_until_condemned(*[True] * 5) == [False] * 4 + [True]


async def test_a_suspect_that_makes_progress_between_two_deaths_is_not_condemned(session: AsyncSession) -> None:
    task_id = (await claimed_task(session, "a")).id
    await queue.abandon(session, "a")
    for owner in "bcd":
        claimed = await queue.claim(session, owner, LEASE)
        assert claimed is not None
        assert not queue.is_condemned(claimed)
        await queue.mark_alone(session, task_id, owner)
        await queue.advance(session, task_id, owner)
        await queue.abandon(session, owner)


async def test_a_task_that_is_put_back_waits_and_its_attempt_does_not_count(session: AsyncSession) -> None:
    task = await claimed_task(session, "a")
    await queue.put_back(session, task.id, "a", seconds=3, sandbox_failures=1)
    assert await queue.claim(session, "b", LEASE) is None
    await session.execute(update(tables.Task).values(lease_until=tables.Task.lease_until - timedelta(seconds=3)))
    again = await queue.claim(session, "b", LEASE, abandoned=False)
    assert again is not None
    assert (again.attempt, again.deaths, again.sandbox_failures) == (1, 0, 1)


async def test_a_claim_passes_over_the_projects_that_are_held_off(session: AsyncSession) -> None:
    begun = await claimed_task(session, "a")
    await queue.hand_back(session, "a")
    waiting = await task_row(session, (await project_row(session)).id)
    held_off = [begun.project_id, waiting.project_id]
    assert await queue.claim(session, "b", LEASE, held_off=held_off) is None
    claimed = await queue.claim(session, "b", LEASE, held_off=held_off[:1])
    assert claimed is not None
    assert claimed.id == waiting.id


async def test_a_task_cannot_be_claimed_while_its_lease_is_valid(session: AsyncSession) -> None:
    await claimed_task(session)
    assert await queue.claim(session, "another", LEASE) is None


async def test_extending_renews_leases_and_returns_requested_cancellations(session: AsyncSession) -> None:
    project = await project_row(session)
    kept, stopped = await task_row(session, project.id), await task_row(session, project.id)
    for each in (kept, stopped):
        await queue.claim(session, "me", EXPIRED)
        await queue.extend(session, {each.id: "me"}, LEASE)
    await tasks.request_cancel(session, stopped.id)
    both = {kept.id: "me", stopped.id: "me"}
    assert await queue.extend(session, both, LEASE) == {kept.id: False, stopped.id: True}
    assert await queue.extend(session, {kept.id: "me", stopped.id: "another"}, LEASE) == {kept.id: False}
    assert await queue.cancelled(session, "me") == {stopped.id}
    assert await queue.cancelled(session, "another") == set()
    assert await queue.claim(session, "another", LEASE) is None


async def test_a_runner_that_lost_its_task_can_neither_finish_nor_extend_it(session: AsyncSession) -> None:
    await task_row(session, (await project_row(session)).id)
    task = await queue.claim(session, "slow", EXPIRED)
    assert task is not None
    await queue.claim(session, "quick", LEASE)
    assert await queue.extend(session, {task.id: "slow"}, LEASE) == {}
    assert await queue.finish(session, task.id, "slow", DONE) is False
    with pytest.raises(ConflictError, match="no longer held by slow"):
        await lease.hold(session, task.id, "slow")
    assert (await tasks.get(session, task.id)).state is TaskState.RUNNING
    assert await queue.finish(session, task.id, "quick", DONE) is True


async def test_a_held_task_cannot_be_claimed_even_if_its_lease_expires(committed: Sessions) -> None:
    async with committed.begin() as session:
        task = await task_row(session, (await project_row(session)).id)
        await queue.claim(session, "me", EXPIRED)
    async with committed.begin() as mine:
        await lease.hold(mine, task.id, "me")
        async with committed.begin() as other:
            assert await queue.claim(other, "another", LEASE) is None
    async with committed.begin() as other:
        assert await queue.claim(other, "another", LEASE) is not None


async def test_finishing_stores_the_outcome_once(session: AsyncSession) -> None:
    task = await claimed_task(session)
    assert await queue.finish(session, task.id, "me", DONE) is True
    assert await queue.finish(session, task.id, "me", TaskOutcome(state=TaskState.FAILED)) is False
    found = await tasks.get(session, task.id)
    assert (found.state, found.stop, found.answer) == (TaskState.DONE, Stop.COMPLETED, 7)
    assert (found.turns, found.generated_tokens, found.calls) == (2, 31, 4)
    assert (found.owner, found.lease_until, found.checked) == (None, None, False)
    assert found.finished_at is not None


async def test_a_task_cannot_end_as_running(session: AsyncSession) -> None:
    task = await claimed_task(session)
    with pytest.raises(ValueError, match="cannot end as running"):
        await queue.finish(session, task.id, "me", TaskOutcome(state=TaskState.RUNNING))


async def test_a_task_that_is_handed_back_can_be_claimed_at_once_as_another_attempt(session: AsyncSession) -> None:
    task = await claimed_task(session)
    assert await queue.hand_back(session, "another") == []
    assert await queue.hand_back(session, "me") == [task.id]
    again = await queue.claim(session, "another", LEASE)
    assert again is not None
    assert (again.id, again.attempt) == (task.id, 2)


async def test_runners_are_notified_of_a_task_when_it_is_committed(committed: Sessions, database_url: str) -> None:
    plain = database_url.replace("+psycopg", "")
    async with await psycopg.AsyncConnection.connect(plain, autocommit=True) as listener:
        await listener.execute(f"LISTEN {notify.TASKS}")
        async with committed.begin() as session:
            await task_row(session, (await project_row(session)).id)
            assert [notice async for notice in listener.notifies(timeout=0.1)] == []
        notified = [notice.channel async for notice in listener.notifies(timeout=300, stop_after=1)]
    assert notified == [notify.TASKS]

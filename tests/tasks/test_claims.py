"""A claim is an owner of its own: a process changes nothing by an earlier claim of the same task."""

from collections.abc import Awaitable, Callable

import pytest
from sqlalchemy import update
from sqlalchemy.ext.asyncio import AsyncSession

from app.apis.approvals import store as approvals
from app.apis.approvals.gate import ApprovalRequest, ShownCall
from app.base.errors import ConflictError
from app.base.values import Call, Stop
from app.db import lease, tables
from app.db.database import Sessions
from app.db.lease import new_claim
from app.db.tables import TaskState
from app.releases import trials_store
from app.tasks import calls, queue, turns
from tests.support.rows import LEASE, project_row, task_row, turn_of

EXPIRED = -1.0
CALL = Call(seq=0, turn=0, api="mail.send", arguments={})
DONE = queue.TaskOutcome(state=TaskState.DONE, stop=Stop.COMPLETED)
WANTED = ApprovalRequest(seq=0, turn=0, api="mail.send", arguments={}, digest="", timeout_seconds=60)

Write = Callable[[AsyncSession, tables.Task, str], Awaitable[object]]
WRITES: dict[str, Write] = {
    "turns.begin": lambda session, task, claim: turns.begin(session, task.id, claim, 0, turn_of()),
    "turns.end": lambda session, task, claim: turns.end(session, task.id, claim, 0, turn_of()),
    "calls.begin": lambda session, task, claim: calls.begin(session, task.id, claim, CALL, repeatable=False),
    "suspend": lambda session, task, claim: lease.suspend(session, task.id, claim),
    "approval": lambda session, task, claim: approvals.request(session, task, claim, WANTED, ShownCall({})),
    "mark_alone": lambda session, task, claim: queue.mark_alone(session, task.id, claim),
    "hold": lambda session, task, claim: lease.hold(session, task.id, claim),
    "hold_for": lambda session, task, claim: lease.hold_for(session, task.id, claim, 1),
}


async def claimed_twice(session: AsyncSession) -> tuple[tables.Task, str, str]:
    """A task that one process claimed again after its lease had expired, with both claims."""
    first, second = new_claim("me"), new_claim("me")
    task = await task_row(session, (await project_row(session)).id)
    assert await queue.claim(session, first, EXPIRED) is not None
    again = await queue.claim(session, second, LEASE)
    assert again is not None
    assert (again.id, again.owner, again.deaths) == (task.id, second, 0)
    return again, first, second


@pytest.mark.parametrize("name", WRITES)
async def test_an_earlier_claim_of_the_same_process_can_write_nothing(session: AsyncSession, name: str) -> None:
    task, first, second = await claimed_twice(session)
    with pytest.raises(ConflictError, match=f"no longer held by {first}"):
        await WRITES[name](session, task, first)
    await WRITES[name](session, task, second)


async def test_an_earlier_claim_can_neither_extend_nor_end_nor_hand_back_the_task(session: AsyncSession) -> None:
    task, first, second = await claimed_twice(session)
    assert await queue.extend(session, {task.id: first}, LEASE) == {}
    assert await queue.finish(session, task.id, first, DONE) is False
    await queue.put_back(session, task.id, first)
    assert await queue.extend(session, {task.id: second}, LEASE) == {task.id: False}
    assert await queue.finish(session, task.id, second, DONE) is True


async def test_a_process_hands_back_all_of_its_claims_and_no_other_process_does(session: AsyncSession) -> None:
    project = await project_row(session)
    ids = [(await task_row(session, project.id)).id for _ in range(3)]
    for process in ("me", "me", "meanwhile"):
        await queue.claim(session, new_claim(process), LEASE)
    assert set(await queue.hand_back(session, "me")) == set(ids[:2])
    assert await queue.abandon(session, "meanwhile") == ids[2:]


async def test_a_task_that_is_under_way_is_not_claimed_again_by_its_process(session: AsyncSession) -> None:
    task = await task_row(session, (await project_row(session)).id)
    await queue.claim(session, new_claim("me"), EXPIRED)
    assert await queue.claim(session, new_claim("me"), LEASE, ours=[task.id]) is None
    assert await queue.claim(session, new_claim("another"), LEASE) is not None


async def test_a_call_that_begins_keeps_an_expired_task_for_its_process(committed: Sessions) -> None:
    claim = new_claim("me")
    async with committed.begin() as session:
        task = await task_row(session, (await project_row(session)).id)
        await queue.claim(session, claim, EXPIRED)
        await calls.begin(session, task.id, claim, CALL, repeatable=False, seconds=30)
    async with committed.begin() as session:
        assert await queue.claim(session, new_claim("another"), LEASE) is None
        await session.execute(update(tables.Task).values(lease_until=None))
        assert await queue.claim(session, new_claim("another"), LEASE) is not None


async def test_a_shadow_that_was_claimed_again_is_not_finished_by_its_earlier_claim(session: AsyncSession) -> None:
    task = await task_row(session, (await project_row(session)).id)
    claimed = await queue.claim(session, "me", LEASE)
    assert claimed is not None
    assert claimed.release_id is not None
    await trials_store.add(session, claimed.release_id, [task.id])
    first = await trials_store.claim(session, new_claim("me"), EXPIRED)
    assert first is not None
    earlier = tables.Shadow(release_id=first.release_id, task_id=first.task_id, owner=first.owner)
    second = await trials_store.claim(session, new_claim("me"), LEASE)
    assert second is not None
    assert await trials_store.finish(session, earlier, trials_store.ShadowOutcome()) is False
    assert await trials_store.finish(session, second, trials_store.ShadowOutcome()) is True

"""The records of a running task: events in order, turns before their code runs, calls before they go out."""

import asyncio

import pytest
from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from app.base.errors import ConflictError, NotFoundError
from app.base.values import Call
from app.db import results, tables
from app.db.database import Sessions
from app.db.tables import TaskState
from app.tasks import calls, queue, turns
from tests.support.rows import LEASE, claimed_task, trajectory_of, turn_of

CALL = Call(seq=0, turn=0, api="mail.send", arguments={"to": "iris", "n": 1.0})


async def test_events_are_numbered_from_one_and_read_from_any_number(session: AsyncSession) -> None:
    task = await claimed_task(session)
    assert [await results.append(session, task.id, kind, {}) for kind in ("turn", "call", "done")] == [1, 2, 3]
    assert [(each.seq, each.kind) for each in await results.after(session, task.id, 1)] == [
        (2, "call"),
        (3, "done"),
    ]
    assert [each.seq for each in await results.after(session, task.id, 0, limit=2)] == [1, 2]


async def test_events_appended_concurrently_are_numbered_without_a_gap(committed: Sessions) -> None:
    async with committed.begin() as session:
        task = await claimed_task(session)

    async def append() -> int:
        async with committed.begin() as session:
            return await results.append(session, task.id, "turn", {})

    assert sorted(await asyncio.gather(*(append() for _ in range(12)))) == list(range(1, 13))


async def test_events_become_visible_in_the_order_of_their_numbers(committed: Sessions) -> None:
    async with committed.begin() as session:
        task = await claimed_task(session)
    async with committed.begin() as slow:
        await results.append(slow, task.id, "first", {})

        async def overtake() -> None:
            async with committed.begin() as quick:
                await results.append(quick, task.id, "second", {})

        overtaking = asyncio.create_task(overtake())
        await asyncio.sleep(0.1)
        async with committed() as reader:
            assert await results.after(reader, task.id) == []
    await overtaking
    async with committed() as reader:
        assert [each.kind for each in await results.after(reader, task.id)] == ["first", "second"]


async def test_a_turn_is_recorded_before_and_after_its_code_runs(session: AsyncSession) -> None:
    task = await claimed_task(session)
    before, after = turn_of("print(1)"), turn_of("print(1)", calls=(CALL,))
    await turns.begin(session, task.id, "me", 0, before)
    assert await turns.of_task(session, task.id) == [turns.RecordedTurn(0, before, ended=False)]
    await turns.end(session, task.id, "me", 0, after)
    await turns.begin(session, task.id, "me", 1, before)
    assert await turns.of_task(session, task.id) == [
        turns.RecordedTurn(0, after, ended=True),
        turns.RecordedTurn(1, before, ended=False),
    ]


async def test_a_call_is_journalled_before_it_goes_out_and_completed_after(session: AsyncSession) -> None:
    task = await claimed_task(session)
    await calls.begin(session, task.id, "me", CALL, repeatable=False)
    [lost] = await calls.of_task(session, task.id)
    assert (lost.seq, lost.api, lost.arguments, lost.repeatable) == (0, "mail.send", CALL.arguments, False)
    assert lost.call is None
    result = Call(seq=0, turn=0, api="mail.send", arguments=CALL.arguments, result={"id": 7})
    await calls.end(session, task.id, result)
    [done] = await calls.of_task(session, task.id)
    assert done.call == result


async def test_the_journal_is_encrypted_and_read_back(session: AsyncSession) -> None:
    task, secret = await claimed_task(session), turn_of("print('s3cret')")
    await turns.begin(session, task.id, "me", 0, secret)
    call = Call(seq=0, turn=0, api="mail.log_in", arguments={"password": "s3cret"})
    await calls.begin(session, task.id, "me", call, repeatable=False)
    await calls.end(session, task.id, call)
    stored = [
        *(await session.scalars(select(tables.TaskTurn.record))),
        *(await session.execute(select(tables.TaskCall))).scalars(),
    ]
    shown = [each if isinstance(each, bytes) else bytes(str(vars(each)), "utf-8") for each in stored]
    assert not any(b"s3cret" in each for each in shown)
    assert [each.turn for each in await turns.of_task(session, task.id)] == [secret]
    [read] = await calls.of_task(session, task.id)
    assert (read.call, read.arguments) == (call, call.arguments)


async def test_only_a_repeatable_call_without_a_result_may_begin_again(session: AsyncSession) -> None:
    task = await claimed_task(session)
    reading = Call(seq=1, turn=0, api="mail.list", arguments={})
    await calls.begin(session, task.id, "me", CALL, repeatable=False)
    await calls.begin(session, task.id, "me", reading, repeatable=True)
    await calls.begin(session, task.id, "me", reading, repeatable=True)
    with pytest.raises(ConflictError, match="went out before"):
        await calls.begin(session, task.id, "me", CALL, repeatable=False)
    await calls.end(session, task.id, reading)
    with pytest.raises(ConflictError, match="went out before"):
        await calls.begin(session, task.id, "me", reading, repeatable=True)


async def test_a_runner_that_lost_its_task_can_begin_no_turn_and_no_call(session: AsyncSession) -> None:
    task = await claimed_task(session, "slow")
    await queue.hand_back(session, "slow")
    await queue.claim(session, "quick", LEASE)
    with pytest.raises(ConflictError, match="no longer held by slow"):
        await turns.begin(session, task.id, "slow", 0, turn_of())
    with pytest.raises(ConflictError, match="no longer held by slow"):
        await turns.end(session, task.id, "slow", 0, turn_of())
    with pytest.raises(ConflictError, match="no longer held by slow"):
        await calls.begin(session, task.id, "slow", CALL, repeatable=True)
    assert (await turns.of_task(session, task.id), await calls.of_task(session, task.id)) == ([], [])


async def test_the_end_of_a_task_deletes_its_own_journal_only(
    session: AsyncSession,
) -> None:
    first, second = await claimed_task(session), await claimed_task(session)
    for task in (first, second):
        await turns.begin(session, task.id, "me", 0, turn_of())
        await calls.begin(session, task.id, "me", CALL, repeatable=False)
    await queue.finish(session, first.id, "me", queue.TaskOutcome(state=TaskState.DONE))
    assert (await turns.of_task(session, first.id), await calls.of_task(session, first.id)) == ([], [])
    assert len(await turns.of_task(session, second.id)) == len(await calls.of_task(session, second.id)) == 1


async def test_a_trajectory_is_read_as_it_was_saved_and_replaced_when_saved_again(session: AsyncSession) -> None:
    task = await claimed_task(session)
    with pytest.raises(NotFoundError, match="has no trajectory"):
        await results.of_task(session, task.id)
    await results.save(session, task.project_id, trajectory_of(task))
    whole = trajectory_of(task, turn_of(calls=(CALL,)))
    await results.save(session, task.project_id, whole)
    assert await results.of_task(session, task.id) == whole


async def test_values_that_msgpack_cannot_encode_are_replaced_and_the_record_is_kept(
    session: AsyncSession,
) -> None:
    task = await claimed_task(session)
    odd = Call(seq=0, turn=0, api="mail.send", arguments={"n": 2**99}, result="half \ud800")
    await results.save(session, task.project_id, trajectory_of(task, turn_of(calls=(odd,))))
    [stored] = (await results.of_task(session, task.id)).calls
    assert (stored.arguments, stored.result) == ({"n": str(2**99)}, "half \ufffd")

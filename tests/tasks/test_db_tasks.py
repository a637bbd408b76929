"""Submitting, finding and cancelling tasks, on a real database."""

import asyncio
from datetime import timedelta
from uuid import UUID

import pytest
from sqlalchemy.ext.asyncio import AsyncSession

from app.base.errors import ConflictError, InvalidError, NotFoundError
from app.base.values import Call, Stop
from app.db import results
from app.db.database import Sessions
from app.db.tables import TaskState
from app.tasks import calls, queue, turns
from app.tasks import store as tasks
from app.tasks.queue import TaskOutcome
from app.tasks.store import NewTask, TaskFilter
from tests.support.rows import LEASE, project_row, task_row, turn_of

KEYED = NewTask(instruction="say hello", idempotency_key="k", request_digest="d1")


async def test_a_submitted_task_waits_for_a_runner(session: AsyncSession) -> None:
    project = await project_row(session)
    task = await tasks.submit(session, project.id, NewTask(instruction="say hello", variables={"world": "w7"}))
    found = await tasks.get(session, task.id, project.id)
    assert (found.state, found.variables, found.attempt, found.owner) == (
        TaskState.ACCEPTED,
        {"world": "w7"},
        0,
        None,
    )


async def test_a_repeated_submission_is_the_same_task(session: AsyncSession) -> None:
    project = await project_row(session)
    first = await tasks.submit(session, project.id, KEYED)
    again = await tasks.submit(session, project.id, KEYED)
    assert again.id == first.id


async def test_a_batch_is_queued_in_order_also_if_part_of_it_existed(
    session: AsyncSession,
) -> None:
    project = await project_row(session)
    batch = [(project.id, NewTask(instruction=f"{place}", idempotency_key=f"k{place}")) for place in range(300)]
    [early] = await tasks.submit_all(session, batch[7:8])
    rows = await tasks.submit_all(session, batch)
    assert [row.instruction for row in rows] == [new.instruction for _, new in batch]
    assert rows[7].id == early.id
    claims = [await queue.claim(session, "me", LEASE) for _ in range(10)]
    assert [claimed.instruction for claimed in claims if claimed] == [
        "7",
        *(str(place) for place in range(10) if place != 7),
    ]


async def test_a_key_used_for_another_request_is_a_conflict(session: AsyncSession) -> None:
    project = await project_row(session)
    await tasks.submit(session, project.id, KEYED)
    other = NewTask(instruction="say goodbye", idempotency_key="k", request_digest="d2")
    with pytest.raises(ConflictError, match="used for another request"):
        await tasks.submit(session, project.id, other)


async def test_two_projects_may_use_the_same_idempotency_key(session: AsyncSession) -> None:
    first = await tasks.submit(session, (await project_row(session)).id, KEYED)
    second = await tasks.submit(session, (await project_row(session)).id, KEYED)
    assert first.id != second.id


async def test_of_concurrent_equal_submissions_one_is_stored(committed: Sessions) -> None:
    async with committed.begin() as session:
        project = await project_row(session)

    async def submit() -> UUID:
        async with committed.begin() as session:
            return (await tasks.submit(session, project.id, KEYED)).id

    assert len(set(await asyncio.gather(*(submit() for _ in range(8))))) == 1


async def test_a_task_of_another_project_is_not_found(session: AsyncSession) -> None:
    task = await task_row(session, (await project_row(session)).id)
    stranger = await project_row(session)
    with pytest.raises(NotFoundError):
        await tasks.get(session, task.id, stranger.id)


async def test_pages_are_newest_first_and_complete_while_rows_are_added(session: AsyncSession) -> None:
    project = await project_row(session)
    only = TaskFilter(project_id=project.id)
    for number in range(5):
        await task_row(session, project.id, str(number))
    first = await tasks.page(session, only, limit=2)
    await task_row(session, project.id, "late")
    second = await tasks.page(session, only, cursor=first.cursor, limit=2)
    third = await tasks.page(session, only, cursor=second.cursor, limit=2)
    assert [[task.instruction for task in page.items] for page in (first, second, third)] == [
        ["4", "3"],
        ["2", "1"],
        ["0"],
    ]
    assert third.cursor is None


async def test_a_listing_contains_only_what_matches_its_filter(session: AsyncSession) -> None:
    project, other = await project_row(session), await project_row(session)
    plain = await task_row(session, project.id)
    labelled = await tasks.submit(session, project.id, NewTask(instruction="x", scenario="greetings"))
    labelled.score = 0.75
    foreign = await task_row(session, other.id)
    await tasks.request_cancel(session, plain.id)

    async def listed(**only: object) -> set[UUID]:
        page = await tasks.page(session, TaskFilter(**only))  # type: ignore[arg-type]
        return {task.id for task in page.items}

    assert await listed() == {plain.id, labelled.id, foreign.id}
    assert await listed(project_id=other.id) == {foreign.id}
    assert await listed(state=TaskState.ACCEPTED) == {labelled.id, foreign.id}
    assert await listed(stop=Stop.CANCELLED) == {plain.id}
    assert await listed(scenario="greetings") == {labelled.id}
    assert await listed(min_score=0.75) == {labelled.id}
    assert await listed(min_score=0.76) == set()
    assert await listed(created_after=foreign.created_at) == {foreign.id}
    assert await listed(created_before=labelled.created_at) == {plain.id}
    assert await listed(created_before=plain.created_at - timedelta(seconds=1)) == set()


@pytest.mark.parametrize("cursor", ["", "x", "bm9uc2Vuc2U=", "é"])
async def test_an_invalid_cursor_is_refused(session: AsyncSession, cursor: str) -> None:
    with pytest.raises(InvalidError, match="cursor"):
        await tasks.page(session, TaskFilter(), cursor=cursor)


async def test_a_waiting_task_is_cancelled_at_once(session: AsyncSession) -> None:
    task = await task_row(session, (await project_row(session)).id)
    cancelled = await tasks.request_cancel(session, task.id)
    assert (cancelled.state, cancelled.stop) == (TaskState.CANCELLED, Stop.CANCELLED)
    assert cancelled.finished_at is not None
    assert await queue.claim(session, "me", LEASE) is None


async def test_a_running_task_is_only_flagged(session: AsyncSession) -> None:
    task = await task_row(session, (await project_row(session)).id)
    await queue.claim(session, "me", LEASE)
    flagged = await tasks.request_cancel(session, task.id)
    assert (flagged.state, flagged.cancel_requested, flagged.finished_at) == (TaskState.RUNNING, True, None)


async def test_a_task_whose_lease_has_expired_is_cancelled_at_once(session: AsyncSession) -> None:
    task = await task_row(session, (await project_row(session)).id)
    await queue.claim(session, "me", 0)
    cancelled = await tasks.request_cancel(session, task.id)
    assert (cancelled.state, cancelled.stop) == (TaskState.CANCELLED, Stop.CANCELLED)
    assert (cancelled.owner, cancelled.lease_until) == (None, None)
    assert await queue.extend(session, {task.id: "me"}, LEASE) == {}
    assert not await queue.finish(session, task.id, "me", TaskOutcome(state=TaskState.DONE))


async def test_a_task_that_is_cancelled_between_runners_keeps_no_secret_in_its_events(
    session: AsyncSession,
) -> None:
    task = await task_row(session, (await project_row(session)).id)
    await queue.claim(session, "me", LEASE)
    text = "log_in(password='guessed-4711')\nlog_in(password='guessed-4712')"
    await turns.begin(session, task.id, "me", 0, turn_of(text), [results.NewEvent("turn", {"text": text})])
    for seq, guess in enumerate(("guessed-4711", "guessed-4712")):
        call = Call(
            seq=seq, turn=0, api="vault.log_in", arguments={"password": guess}, error="ApiError: it is wrong"
        )
        await calls.begin(session, task.id, "me", call, repeatable=False)
    await calls.end(session, task.id, call)
    await queue.hand_back(session, "me")
    await tasks.request_cancel(session, task.id)
    event, ended = await results.after(session, task.id)
    assert (ended.kind, ended.data["state"]) == ("done", "cancelled")
    assert event.data == {"text": "log_in(password='***')\nlog_in(password='***')"}


async def test_cancelling_again_changes_nothing_and_a_done_task_is_a_conflict(session: AsyncSession) -> None:
    project = await project_row(session)
    task = await task_row(session, project.id)
    first = (await tasks.request_cancel(session, task.id)).finished_at
    assert (await tasks.request_cancel(session, task.id)).finished_at == first
    done = await task_row(session, project.id)
    await queue.claim(session, "me", LEASE)
    await queue.finish(session, done.id, "me", TaskOutcome(state=TaskState.DONE, stop=Stop.COMPLETED))
    with pytest.raises(ConflictError, match="is already done"):
        await tasks.request_cancel(session, done.id)


async def test_characters_that_postgresql_cannot_store_are_replaced(session: AsyncSession) -> None:
    project = await project_row(session)
    task = await task_row(session, project.id, "nul \x00 and half a pair \ud800")
    await queue.claim(session, "me", LEASE)
    answer = {"a\x00": ["\udfff", float("nan"), 2**99]}
    await queue.finish(session, task.id, "me", TaskOutcome(state=TaskState.DONE, answer=answer))
    found = await tasks.get(session, task.id)
    assert found.instruction == "nul \ufffd and half a pair \ufffd"
    assert found.answer == {"a\ufffd": ["\ufffd", None, 2**99]}

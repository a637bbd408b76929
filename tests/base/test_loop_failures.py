"""What happens to a background loop that fails: nothing ends it, and its part of the server is not ready."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from app.base.loop import Loop, faults_by_part, running_loops
from tests.support.faulty_proxy import until


async def cancel_itself() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(1)


async def leak_a_cancellation() -> None:
    raise asyncio.CancelledError


@pytest.mark.parametrize("tick", [cancel_itself, leak_a_cancellation])
async def test_a_round_that_cancels_its_own_loop_does_not_end_it(tick: Callable[[], Awaitable[None]]) -> None:
    async with Loop("work", tick, 0.01, part="claims") as loop:
        await until(lambda: loop.restarts >= 3)
        assert loop.failed >= 3
        assert faults_by_part() == {"claims": loop.fault}
        assert "CancelledError" in str(loop.fault)


async def test_a_loop_that_was_restarted_can_be_stopped() -> None:
    loop = Loop("work", leak_a_cancellation, 0.01)
    loop.start()
    await until(lambda: loop.restarts >= 1)
    await loop.stop()
    ended = loop.failed
    await asyncio.sleep(0.1)
    assert loop.failed == ended


async def test_a_failed_round_of_a_slow_loop_is_tried_again_within_seconds() -> None:
    rounds = 0

    async def fail_once() -> None:
        nonlocal rounds
        rounds += 1
        if rounds == 1:
            raise OSError("the database is away")

    async with Loop("work", fail_once, 3600, expected=(OSError,)):
        await until(lambda: rounds == 2)


async def test_one_failure_is_no_fault_but_two_in_a_row_are_until_a_round_succeeds() -> None:
    failing, rounds = asyncio.Event(), 0
    failing.set()

    async def tick() -> None:
        nonlocal rounds
        rounds += 1
        if failing.is_set():
            raise OSError("the disk is full\nand more")

    async with Loop("work", tick, 60, expected=(OSError,)) as loop:
        await until(lambda: rounds == 1)
        assert loop.fault is None
        loop.wake()
        await until(lambda: rounds == 2)
        await asyncio.sleep(0)
        assert loop.fault == "work: 2 rounds in a row failed, the last one with the disk is full"
        failing.clear()
        loop.wake()
        await until(lambda: loop.fault is None)
    assert (loop.failures, loop.failed) == (0, 2)


async def test_the_text_of_an_unforeseen_error_is_only_in_the_log() -> None:
    async def tick() -> None:
        raise ValueError("password=hunter2")

    async with Loop("work", tick, 0.01) as loop:
        await until(lambda: loop.fault is not None)
        assert str(loop.fault).endswith("the last one with ValueError")


async def test_a_round_beyond_its_limit_is_a_fault() -> None:
    stuck = asyncio.Event()

    async def tick() -> None:
        await stuck.wait()

    async with Loop("work", tick, 60, limit=0.02) as loop:
        await until(lambda: loop.fault is not None)
        assert str(loop.fault).startswith("work: its round has taken")
        stuck.set()
        await until(lambda: loop.fault is None)


async def test_a_long_round_that_works_again_has_no_fault() -> None:
    rounds = 0

    async def tick() -> None:
        nonlocal rounds
        rounds += 1
        if rounds <= 2:
            raise OSError("no connection")
        loop.recover()
        await asyncio.Event().wait()

    async with Loop("listen", tick, 0.01, expected=(OSError,)) as loop:
        await until(lambda: rounds == 3)
        assert loop.fault is None


async def test_the_loops_of_this_event_loop_are_known_while_they_run() -> None:
    def names_elsewhere() -> list[str]:
        async def see() -> list[str]:
            return [each.name for each in running_loops()]

        return asyncio.run(see())

    before = running_loops()
    async with Loop("b", _rest, 60) as b, Loop("a", _rest, 60) as a:
        assert [each for each in running_loops() if each not in before] == [a, b]
        assert await asyncio.to_thread(names_elsewhere) == []
    assert set(running_loops()) == set(before)


async def _rest() -> None:
    """A round without work."""

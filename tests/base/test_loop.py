"""The loop behind all background work: its pace, what wakes it, and that no error ends it."""

import asyncio
import time

from structlog.testing import capture_logs

from app.base.loop import Loop


class Rounds:
    """Counts the rounds of a loop; `errors` are raised by the first ones, then `pauses` are returned."""

    def __init__(self, *errors: Exception, pauses: tuple[float | None, ...] = ()) -> None:
        self.count = 0
        self.errors = list(errors)
        self.pauses = list(pauses)
        self._changed = asyncio.Condition()

    async def tick(self) -> float | None:
        self.count += 1
        async with self._changed:
            self._changed.notify_all()
        if self.errors:
            raise self.errors.pop(0)
        return self.pauses.pop(0) if self.pauses else None

    async def reach(self, count: int) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: self.count >= count)


async def test_it_ticks_at_its_pace() -> None:
    rounds, began = Rounds(), time.monotonic()
    async with Loop("work", rounds.tick, 0.05):
        await rounds.reach(3)
    assert time.monotonic() - began >= 0.1


async def test_a_call_of_wake_starts_the_next_round_at_once() -> None:
    rounds = Rounds()
    async with Loop("work", rounds.tick, 60) as loop:
        await rounds.reach(1)
        loop.wake()
        await rounds.reach(2)


async def test_a_call_of_wake_during_a_round_leads_to_another_one() -> None:
    entered, released, repeated = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def tick() -> None:
        if entered.is_set():
            repeated.set()
        entered.set()
        await released.wait()

    async with Loop("work", tick, 60) as loop:
        await entered.wait()
        loop.wake()
        released.set()
        await repeated.wait()


async def test_a_round_may_say_how_long_to_wait_for_the_next_one() -> None:
    rounds = Rounds(pauses=(0, 0, 60))
    async with Loop("work", rounds.tick, 60):
        await rounds.reach(3)
        await asyncio.sleep(0.05)
    assert rounds.count == 3


async def test_neither_an_expected_error_nor_a_defect_ends_it() -> None:
    rounds = Rounds(ConnectionError("no route\nto host"), ValueError("a defect"))
    with capture_logs() as logs:
        async with Loop("work", rounds.tick, 0.01, expected=(ConnectionError,)) as loop:
            await rounds.reach(2)
            await asyncio.sleep(0)
            assert loop.failures == 2
            await rounds.reach(4)
            assert loop.failures == 0
    assert [(each["log_level"], each.get("cause")) for each in logs] == [("warning", "no route"), ("error", None)]


async def test_leaving_it_cancels_the_round_under_way() -> None:
    entered, cancelled = asyncio.Event(), False

    async def tick() -> None:
        nonlocal cancelled
        entered.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled = True
            raise

    async with Loop("work", tick, 60):
        await entered.wait()
    assert cancelled


async def test_an_owner_may_start_and_stop_it_by_itself() -> None:
    rounds = Rounds()
    loop = Loop("work", rounds.tick, 0.01)
    loop.wake()
    assert rounds.count == 0
    loop.start()
    await rounds.reach(2)
    await loop.stop()
    await loop.stop()
    ended = rounds.count
    await asyncio.sleep(0.05)
    assert rounds.count == ended

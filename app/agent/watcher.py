"""Follows a rollout while it runs, and can end it."""

import asyncio

from app.records import Turn


class Watcher:
    """Override what you want to hear. The rollout waits for it; what it raises is passed on."""

    def __init__(self) -> None:
        self.halted = False
        self._clock: asyncio.Timeout | None = None

    async def sampled(self, index: int, turn: Turn) -> None:
        """The policy has answered; its code has not run yet, so `turn` has no observation."""

    async def ended(self, index: int, turn: Turn) -> None:
        """The code has run, or there was none. `turn` is complete."""

    def halt(self) -> None:
        """End the rollout at once, as cancelled, whatever it is doing."""
        self.halted = True
        if self._clock is not None and not self._clock.expired():
            self._clock.reschedule(asyncio.get_running_loop().time())

    def attach(self, clock: asyncio.Timeout) -> None:
        """The rollout hands over the clock it runs by."""
        self._clock = clock
        if self.halted:
            self.halt()

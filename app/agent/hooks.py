"""Follows a rollout while it runs."""

from app.agent.stop_signal import Halt
from app.records import Turn


class Watcher:
    """Override what you want to hear. The rollout waits for it; what it raises is passed on."""

    def __init__(self, halt: Halt | None = None) -> None:
        self.halt = halt or Halt()

    async def sampled(self, index: int, turn: Turn) -> None:
        """The policy has answered; its code has not run yet, so `turn` has no observation."""

    async def ended(self, index: int, turn: Turn) -> None:
        """The code has run, or there was none. `turn` is complete."""

"""Follows a rollout while it runs."""

from app.agent.stop_signal import StopSignal
from app.records import Turn


class RolloutHooks:
    """Override what you want to hear. The rollout waits for it; what it raises is passed on."""

    def __init__(self, stop_signal: StopSignal | None = None) -> None:
        self.stop_signal = stop_signal or StopSignal()

    async def on_sampled(self, index: int, turn: Turn) -> None:
        """The policy has answered; its code has not run yet, so `turn` has no observation."""

    async def on_turn_end(self, index: int, turn: Turn) -> None:
        """The code has run, or there was none. `turn` is complete."""

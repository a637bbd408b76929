"""Callbacks of a running rollout."""

from app.agent.stop_signal import StopSignal, SuspendedError
from app.base.values import Turn
from app.projects.settings import ApprovalRequest


class RolloutHooks:
    """Override the callbacks you need. The rollout awaits them; their exceptions propagate."""

    def __init__(self, stop_signal: StopSignal | None = None) -> None:
        self.stop_signal = stop_signal or StopSignal()

    async def on_sampled(self, index: int, turn: Turn) -> None:
        """The policy answered; its code has not run yet, so `turn` has no observation."""

    async def on_turn_end(self, index: int, turn: Turn) -> None:
        """The code ran, or there was none. `turn` is complete."""

    async def on_approval_wanted(self, request: ApprovalRequest) -> None:
        """A call waits for a person, and the session has ended. The code is run again once somebody decided.

        Raises SuspendedError; returns if the rollout is to end as cancelled instead.
        """
        raise SuspendedError(request.api)

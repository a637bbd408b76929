"""The limits of a rollout, and which of them it has reached. Pure."""

import re
from collections.abc import Sequence
from typing import Self

import msgspec

from app.agent.action import ends_in_thought, extract_code
from app.records import Stop, Turn
from app.sandbox.protocol import RunStop, SessionLimits
from app.settings import Settings

_SETUP_CPU_SECONDS = 60  # of a session: to define the offered skills
_IN_TURN = re.compile(r"<turn \d+>")  # in a traceback, as the name of a file


class RolloutLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Each limit has its own `Stop`."""

    turns: int = 12
    turn_tokens: int = 512  # generated in one turn
    task_tokens: int = 8192  # generated in all turns
    calls: int = 200  # to live APIs; the gateway refuses further ones
    errors: int = 8  # turns whose code raised or was stopped
    repeats: int = 3  # such turns with the same code and the same observation
    seconds: float = 300.0
    counts_generation: bool = True  # whether `seconds` run while the engine generates, or waits for its turn to
    session: SessionLimits = SessionLimits()

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """The limits that a deployment sets for each task."""
        return cls(
            turns=settings.max_turns,
            turn_tokens=settings.max_turn_tokens,
            task_tokens=settings.max_task_tokens,
            calls=settings.max_task_calls,
            seconds=settings.max_task_seconds,
            session=SessionLimits(
                cpu_seconds=settings.sandbox_cpu_seconds,
                session_cpu_seconds=2 * settings.sandbox_cpu_seconds * settings.max_turns + _SETUP_CPU_SECONDS,
                wall_seconds=settings.sandbox_wall_seconds,
                memory_bytes=settings.sandbox_memory_mb << 20,
                calls=2 * settings.max_task_calls + 100,  # look-ups count here too
            ),
        )

    def tokens_left(self, turns: Sequence[Turn]) -> int:
        return self.task_tokens - sum(turn.generated_tokens for turn in turns)

    def reached(self, turns: Sequence[Turn]) -> Stop | None:
        """The limit that ends the rollout after these turns; None if it continues."""
        if not turns:
            return None
        limits = (
            (self.tokens_left(turns) <= 0, Stop.TOKEN_LIMIT),  # first, since it may also have truncated the code
            (turns[-1].finish == "length" and ends_in_thought(turns[-1].full_text), Stop.TOKEN_LIMIT),
            (extract_code(turns[-1].full_text) is None, Stop.NO_CODE),
            (turns[-1].outcome == RunStop.CALLS, Stop.CALL_LIMIT),
            (sum(turn.failed for turn in turns) >= self.errors, Stop.ERROR_LIMIT),
            (self._repeats_an_error(turns), Stop.ERROR_LIMIT),
            (len(turns) >= self.turns, Stop.TURN_LIMIT),
        )
        return next((stop for is_reached, stop in limits if is_reached), None)

    def _repeats_an_error(self, turns: Sequence[Turn]) -> bool:
        """An agent that does so seldom stops before another limit, even if it looks something up in between."""
        failures = [
            (extract_code(turn.full_text), _IN_TURN.sub("", turn.observation)) for turn in turns if turn.failed
        ]
        return turns[-1].failed and failures.count(failures[-1]) >= self.repeats

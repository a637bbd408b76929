"""The limits of a rollout, and which of them it has reached. Pure."""

import re
from collections.abc import Sequence
from typing import Final, Self

import msgspec

from app.agent.action import ends_in_thought, extract_code
from app.base.settings import Settings
from app.base.values import Stop, Turn
from app.sandbox.protocol import RunStop, SessionLimits

TURN_TOKENS: Final = 512
THINKING_TURN_TOKENS: Final = 4096  # with fewer, many a thought would end before its code
_SETUP_CPU_SECONDS = 60  # of a session: to define the offered skills
_IN_TURN = re.compile(r"<turn \d+>")  # in a traceback, as the name of a file


class RolloutLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Each limit has its own `Stop`."""

    turns: int = 12
    turn_tokens: int = TURN_TOKENS  # generated in one turn
    thinking_turn_tokens: int | None = None  # in one of a hosted model that thinks; None: as many
    task_tokens: int = 8192  # generated in all turns
    calls: int = 200  # to live APIs; the gateway refuses further ones
    errors: int = 8  # turns whose code raised or was stopped
    repeats: int = 3  # such turns with the same code and observation; two in a row where no API refused a call;
    # and turns in a row that are the same word for word, with the same observation, even if nothing failed
    seconds: float = 300.0
    counts_generation: bool = True  # whether `seconds` run while the engine generates, or waits for its turn to
    session: SessionLimits = SessionLimits()

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """The limits that a deployment sets for each task."""
        return cls(
            turns=settings.max_turns,
            turn_tokens=settings.max_turn_tokens or TURN_TOKENS,
            thinking_turn_tokens=settings.max_turn_tokens or THINKING_TURN_TOKENS,
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
            (self._is_stuck(turns), Stop.STUCK),
            (sum(turn.failed for turn in turns) >= self.errors, Stop.ERROR_LIMIT),
            (len(turns) >= self.turns, Stop.TURN_LIMIT),
            (self._goes_round(turns), Stop.STUCK),
        )
        return next((stop for is_reached, stop in limits if is_reached), None)

    def _is_stuck(self, turns: Sequence[Turn]) -> bool:
        """An agent that repeats an error seldom stops by itself, even if it looks something up in between.

        What an API refused may be worth another try.
        """
        last = turns[-1]
        failures = [_code_and_error(turn) for turn in turns if turn.failed]
        if not last.failed:
            return False
        in_a_row = len(turns) > 1 and turns[-2].failed and failures[-2] == failures[-1]
        refused = any(call.error is not None for call in last.calls)
        return failures.count(failures[-1]) >= self.repeats or (in_a_row and not refused)

    def _goes_round(self, turns: Sequence[Turn]) -> bool:
        """An agent that writes the same, and sees the same, again and again does not stop by itself either."""
        last = [_words_and_result(turn) for turn in turns[-self.repeats :]]
        return len(last) == self.repeats and len(set(last)) == 1


def _words_and_result(turn: Turn) -> tuple[str, str]:
    return turn.full_text, _IN_TURN.sub("", turn.observation)


def _code_and_error(turn: Turn) -> tuple[str | None, str]:
    return extract_code(turn.full_text), _IN_TURN.sub("", turn.observation)

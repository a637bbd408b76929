"""Rejection sampling: which of an expert's trajectories are worth imitating. Pure."""

from collections import Counter
from collections.abc import Sequence
from enum import StrEnum
from typing import Literal

import msgspec

from app.agent.action import code_of
from trainer.rollouts.episode import Outcome

Rule = Literal["chain", "task"]
_FIRST = 2  # tasks of a scenario that must succeed, so that what the second used was worth using


class Fault(StrEnum):
    """Why a trajectory is not imitated."""

    FAILED = "the task failed"
    CHAIN = "an early task of the scenario failed"
    NO_CODE = "a turn had no code"
    CUT_OFF = "an answer was cut off"


class Selected(msgspec.Struct, frozen=True):
    kept: list[Outcome]
    dropped: dict[str, int]  # by reason


def select(outcomes: Sequence[Outcome], rule: Rule = "chain") -> Selected:
    """The successes of one pass over a scenario, of those where every turn is one to imitate.

    Under "chain", as in SAGE (arXiv 2512.17102), only where at least the first two tasks succeeded.
    """
    early = [outcome.verdict.success for outcome in outcomes[:_FIRST]]
    kept: list[Outcome] = []
    dropped = Counter[str]()
    for outcome in outcomes:
        fault = _fault(outcome) or (Fault.CHAIN if rule == "chain" and not all(early) else None)
        if fault is None:
            kept.append(outcome)
        else:
            dropped[fault.value] += 1
    return Selected(kept, dict(dropped))


def _fault(outcome: Outcome) -> Fault | None:
    turns = outcome.trajectory.turns
    if any(code_of(turn.text) is None for turn in turns):
        return Fault.NO_CODE
    if any(turn.finish == "length" for turn in turns):
        return Fault.CUT_OFF
    return None if outcome.verdict.success else Fault.FAILED

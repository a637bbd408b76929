"""Rejection sampling: which of an expert's trajectories are worth imitating. Pure."""

from collections import Counter
from collections.abc import Sequence
from enum import StrEnum
from typing import Literal

import msgspec

from app.agent.action import extract_code
from trainer.rollouts.episode import Episode

Rule = Literal["chain", "task"]
_FIRST = 2  # tasks of a scenario that must succeed, so that what the second used was worth using


class Fault(StrEnum):
    """Why a trajectory is not imitated."""

    FAILED = "the task failed"
    CHAIN = "an early task of the scenario failed"
    NO_CODE = "a turn had no code"
    CUT_OFF = "an answer was cut off"


class Selected(msgspec.Struct, frozen=True):
    kept: list[Episode]
    dropped: dict[str, int]  # by reason


def select(episodes: Sequence[Episode], rule: Rule = "chain") -> Selected:
    """The successes of one pass over a scenario, of those where every turn is one to imitate.

    Under "chain", as in SAGE (arXiv 2512.17102), only where at least the first two tasks succeeded.
    """
    early = [episode.verdict.success for episode in episodes[:_FIRST]]
    kept: list[Episode] = []
    dropped = Counter[str]()
    for episode in episodes:
        fault = _fault(episode) or (Fault.CHAIN if rule == "chain" and not all(early) else None)
        if fault is None:
            kept.append(episode)
        else:
            dropped[fault.value] += 1
    return Selected(kept, dict(dropped))


def _fault(episode: Episode) -> Fault | None:
    turns = episode.trajectory.turns
    if any(extract_code(turn.text) is None for turn in turns):
        return Fault.NO_CODE
    if any(turn.finish == "length" for turn in turns):
        return Fault.CUT_OFF
    return None if episode.verdict.success else Fault.FAILED

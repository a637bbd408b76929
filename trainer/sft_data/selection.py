"""Select the trajectories of an expert that are worth imitating."""

from collections import Counter
from collections.abc import Sequence
from enum import StrEnum
from typing import Literal, TypeAlias

import msgspec

from app.agent.action import extract_code
from trainer.rollouts.episode import Episode

KeepRule: TypeAlias = Literal["chain", "task"]
_FIRST = 2  # tasks of a scenario that must succeed, so that the skills the second used are good ones


class RejectReason(StrEnum):
    """Why a trajectory is not imitated."""

    FAILED = "the task failed"
    CHAIN = "an early task of the scenario failed"
    NO_CODE = "a turn had no code"
    CUT_OFF = "an answer was cut off"


class Selection(msgspec.Struct, frozen=True):
    kept: list[Episode]
    dropped: dict[str, int]  # by reason


def select(episodes: Sequence[Episode], rule: KeepRule = "chain") -> Selection:
    """The successes of one pass over a scenario in which every turn has code and was not cut off.

    Under "chain", as in SAGE (arXiv 2512.17102), only if at least the first two tasks succeeded.
    """
    early = [episode.verdict.success for episode in episodes[:_FIRST]]
    kept: list[Episode] = []
    dropped = Counter[str]()
    for episode in episodes:
        reason = _reject_reason(episode) or (RejectReason.CHAIN if rule == "chain" and not all(early) else None)
        if reason is None:
            kept.append(episode)
        else:
            dropped[reason.value] += 1
    return Selection(kept, dict(dropped))


def _reject_reason(episode: Episode) -> RejectReason | None:
    turns = episode.trajectory.turns
    if any(extract_code(turn.full_text) is None for turn in turns):
        return RejectReason.NO_CODE
    if any(turn.finish == "length" for turn in turns):
        return RejectReason.CUT_OFF
    return None if episode.verdict.success else RejectReason.FAILED

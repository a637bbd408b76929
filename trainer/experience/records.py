"""The words of logged experience: a task that was served and scored, why one is left out, and what was kept."""

from collections import Counter
from collections.abc import Collection, Iterable
from datetime import datetime
from enum import StrEnum
from uuid import UUID

import msgspec

from app.errors import InvalidError
from app.records import Stop, Trajectory

_SUCCESS = 1.0  # the score from which a task counts as done


class Drop(StrEnum):
    """Why a task that ended in the window is not learned from. The first that applies is counted."""

    CANCELLED = "cancelled"
    FAILED = "failed"  # it could not be carried out, or left no trajectory
    UNSCORED = "unscored"
    STALE = "stale"  # sampled by a release too many releases ago
    OTHER_BASE = "other_base"  # sampled by another base model
    REWRITTEN = "rewritten"  # the chat template rewrote what went before: it is no single sequence
    EMPTY = "empty"  # the policy sampled nothing
    BAD_LOGPROBS = "bad_logprobs"  # not finite
    NOT_SAMPLED = "not_sampled"  # not at temperature 1: the logprobs are not of how it was sampled
    ALONE = "alone"  # nothing to compare it with
    EVEN = "even"  # all of its group earned the same
    BEYOND = "beyond"  # of a group for which the run has no step left: raise `steps` or `pairs`
    WEAK = "weak"  # it did not succeed, so there is nothing to imitate
    CUT_OFF = "cut_off"  # a turn hit the limit of tokens, or had no code: no example to follow
    SURPLUS = "surplus"  # others of its kind succeeded with fewer tokens


_ADVICE = {
    Drop.CANCELLED: "wait for tasks that run to their end",
    Drop.FAILED: "look at the `failure` of the tasks",
    Drop.UNSCORED: "submit tasks with a `check`, or score them: POST /v1/feedback with their `task_id`",
    Drop.STALE: "raise `max_staleness`, or wait for tasks of the active release",
    Drop.OTHER_BASE: "wait for tasks of the model that is served now",
    Drop.REWRITTEN: "serve with a chat template that keeps earlier turns as they were",
    Drop.EMPTY: "look at the trajectories: the model answered nothing",
    Drop.BAD_LOGPROBS: "check the model server: it reported logprobs that are not finite",
    Drop.NOT_SAMPLED: "at temperature 0 the policy tries nothing new: serve with SAGE_TEMPERATURE=1",
    Drop.ALONE: "serve several tasks of one kind, or give them the same `scenario`",
    Drop.EVEN: "wait for tasks that succeed as well as fail; at temperature 0 equal tasks go alike",
    Drop.BEYOND: "raise `steps` or `pairs`",
    Drop.CUT_OFF: "raise SAGE_MAX_TURN_TOKENS, so that answers come to their end",
    Drop.WEAK: "wait for tasks that succeed, or train on `data` from elsewhere",
}


class Served(msgspec.Struct, frozen=True, kw_only=True):
    """A scored task as it was carried out."""

    trajectory: Trajectory
    score: float  # in [0, 1]
    began: datetime
    release: int  # number of the one that sampled it
    staleness: int  # releases between that one and the active one
    fault: Drop | None = None  # why it cannot be learned from, although what it did counts for others

    @property
    def id(self) -> UUID:
        return self.trajectory.task.id

    @property
    def success(self) -> bool:
        return self.score >= _SUCCESS and self.trajectory.stop is not Stop.NO_CODE


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """What a run may learn from, and why not from the rest."""

    tasks: int  # that ended in the window
    trajectories: int
    groups: int  # sets of trajectories that are compared, or imitated side by side
    tokens: int  # sampled ones
    fraction: float  # of the tasks
    dropped: dict[str, int]  # `Drop` -> tasks
    staleness: dict[str, int]  # releases -> trajectories


def tally(tasks: int, kept: Collection[tuple[Served, str]], dropped: Iterable[Drop]) -> Kept:
    """`kept` pairs each trajectory with its group. Raises InvalidError that says what to do if there is none."""
    reasons = Counter(dropped)
    if not kept:
        raise InvalidError(_nothing(tasks, reasons))
    staleness = Counter(served.staleness for served, _ in kept)
    return Kept(
        tasks=tasks,
        trajectories=len(kept),
        groups=len({group for _, group in kept}),
        tokens=sum(served.trajectory.generated_tokens for served, _ in kept),
        fraction=len(kept) / tasks,
        dropped={reason.value: reasons[reason] for reason in Drop if reasons[reason]},
        staleness={str(releases): staleness[releases] for releases in sorted(staleness)},
    )


def _nothing(tasks: int, reasons: Counter[Drop]) -> str:
    if not tasks:
        return "nothing to learn from: no task ended in the window; submit tasks, or widen `since` and `until`"
    if reasons[Drop.UNSCORED] == tasks:
        return f"no scored tasks in the window, of {tasks} that ended: {_ADVICE[Drop.UNSCORED]}"
    told = ", ".join(f"{count} {reason}" for reason, count in reasons.most_common())
    return f"nothing to learn from in {tasks} tasks ({told}): {_ADVICE[reasons.most_common(1)[0][0]]}"

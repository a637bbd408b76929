"""How much of the logged experience a run learns from, and why the rest was dropped."""

from collections import Counter
from collections.abc import Collection, Iterable

import msgspec

from app.errors import InvalidError
from trainer.experience.drop_reasons import ADVICE, DropReason
from trainer.experience.scored_task import ScoredTask


class DataSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The data of one run, stored with its result."""

    tasks: int  # that ended in the window
    trajectories: int  # learned from
    groups: int  # sets of trajectories that are compared, or imitated together
    tokens: int  # sampled ones
    fraction: float  # trajectories per task
    dropped: dict[str, int]  # `DropReason` -> tasks
    staleness: dict[str, int]  # releases -> trajectories


def summarize(tasks: int, kept: Collection[tuple[ScoredTask, str]], dropped: Iterable[DropReason]) -> DataSummary:
    """Summarize the data; `kept` pairs each task with its group. Raises InvalidError with advice where it is
    empty.
    """
    reasons = Counter(dropped)
    if not kept:
        raise InvalidError(_explain(tasks, reasons))
    staleness = Counter(task.staleness for task, _ in kept)
    return DataSummary(
        tasks=tasks,
        trajectories=len(kept),
        groups=len({group for _, group in kept}),
        tokens=sum(task.trajectory.generated_tokens for task, _ in kept),
        fraction=len(kept) / tasks,
        dropped={reason.value: reasons[reason] for reason in DropReason if reasons[reason]},
        staleness={str(releases): staleness[releases] for releases in sorted(staleness)},
    )


def _explain(tasks: int, reasons: Counter[DropReason]) -> str:
    if not tasks:
        return "nothing to learn from: no task ended in the window; submit tasks, or widen `since` and `until`"
    if reasons[DropReason.UNSCORED] == tasks:
        return f"no scored tasks in the window, of {tasks} that ended: {ADVICE[DropReason.UNSCORED]}"
    counts = ", ".join(f"{count} {reason}" for reason, count in reasons.most_common())
    return f"nothing to learn from in {tasks} tasks ({counts}): {ADVICE[reasons.most_common(1)[0][0]]}"

"""The metrics of a canary: what its tasks and those of the active weights show, and how they compare. Pure."""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from operator import attrgetter

import msgspec

from app.db.canaries import CanaryShare, CanaryTask, TypicalCost, UsualKind
from app.release.assigned_difference import AssignedValue, KindMean, at_any_time, at_the_end, effects
from app.release.canary_traffic import share_at
from app.release.confidence_sequence import Interval
from app.release.matched_pairs import mean

# Parts of alpha. A canary is rejected for its rewards or its errors at any time, or its rewards at the end; it is
# promoted for its rewards at any time, or at the end. So neither goes wrong more often than alpha.
_AT_ANY_TIME = 0.2  # for each of the metrics
_AT_THE_END = 0.6
_CEILING_FACTOR = 2.0  # times the usual: beyond it one long task would outweigh all others

MEASURES: Mapping[str, Callable[[CanaryTask], float | None]] = {
    "reward": attrgetter("reward"),
    "errors": attrgetter("error"),
    "turns": attrgetter("turns"),
    "tokens": attrgetter("tokens"),
}


class MetricComparison(msgspec.Struct, frozen=True, kw_only=True):
    """Means, and the number of tasks behind them. Null where an arm has no tasks.

    `difference` is the canary minus the baseline, by the tasks that chance gave to one or the other, each
    compared with what is usual of its kind; its bounds hold at all times. `at_the_end` holds at the end of the
    trial, and is null before.
    """

    tasks: dict[str, int]
    canary: float | None
    baseline: float | None
    difference: Interval | None
    at_the_end: Interval | None = None


def values_of(
    tasks: Sequence[CanaryTask], shares: Sequence[CanaryShare], ceilings: Mapping[str, float]
) -> dict[str, list[AssignedValue]]:
    """Of each metric, in the order in which they became known, as parts of the ceiling."""
    placed = [(task, share_at(shares, task.started_at)) for task in tasks]
    scored = sorted((each for each in placed if each[0].reward is not None), key=lambda each: _scored_at(each[0]))
    found = {}
    for name, measure in MEASURES.items():
        ceiling = ceilings[name]
        found[name] = [
            AssignedValue(
                task.kind,
                task.on_canary,
                share,
                min(value / ceiling, 1.0),
                task.scored_at if name == "reward" else task.finished_at,
                name == "reward" and task.unscored,
            )
            for task, share in (scored if name == "reward" else placed)
            if (value := measure(task)) is not None
        ]
    return found


def ceilings_of(typical: TypicalCost) -> dict[str, float]:
    """The largest value of each metric that counts, in its unit."""
    turns, tokens = (max(1.0, _CEILING_FACTOR * usual) for usual in (typical.turns, typical.tokens))
    return {"reward": 1.0, "errors": 1.0, "turns": turns, "tokens": tokens}


def usual_of(name: str, usual: Mapping[str, UsualKind]) -> dict[str, KindMean]:
    """Costs are expected from the tasks of the trial alone."""
    if name == "reward":
        return {kind: KindMean(each.scored, each.reward) for kind, each in usual.items()}
    return {kind: KindMean(each.tasks, each.errors) for kind, each in usual.items()} if name == "errors" else {}


def compare_metric(
    values: Sequence[AssignedValue], usual: Mapping[str, KindMean], ceiling: float, alpha: float, *, ended: bool
) -> MetricComparison:
    """Of values that are parts of the ceiling, in the unit of the metric. `ended`: the trial has."""
    arms = {
        name: [value.value * ceiling for value in values if value.on_canary is own]
        for name, own in (("canary", True), ("baseline", False))
    }
    by_task = effects(values, usual)
    difference = at_any_time(by_task, _AT_ANY_TIME * alpha) if all(arms.values()) else None
    last = at_the_end(by_task, _AT_THE_END * alpha) if ended and difference is not None else None
    return MetricComparison(
        tasks={name: len(each) for name, each in arms.items()},
        canary=mean(arms["canary"]),
        baseline=mean(arms["baseline"]),
        difference=None if difference is None else difference.scaled(ceiling),
        at_the_end=None if last is None else last.scaled(ceiling),
    )


def summarize(metrics: Mapping[str, MetricComparison], *, at_the_end: bool = False) -> str:
    """
    >>> some = Interval(0.25, 0.125, 0.5)
    >>> tasks = {"canary": 9, "baseline": 80}
    >>> summarize({"reward": MetricComparison(tasks=tasks, canary=1, baseline=0.75, difference=some)})
    'reward +0.25 [+0.125, +0.5] on 9 and 80 tasks'
    """
    parts = []
    for name, metric in metrics.items():
        by = metric.at_the_end if at_the_end else metric.difference
        interval = "unknown" if by is None else f"{by.mean:+.3g} [{by.low:+.3g}, {by.high:+.3g}]"
        parts.append(f"{name} {interval} on {metric.tasks['canary']} and {metric.tasks['baseline']} tasks")
    return ", ".join(parts)


def known_until(
    values: Sequence[AssignedValue], usual: Mapping[str, KindMean], moment: datetime, alpha: float
) -> Interval | None:
    """The difference as it was known at a moment; None before both arms had values."""
    known = [value for value in values if value.known_at is not None and value.known_at <= moment]
    if len({value.on_canary for value in known}) < 2:
        return None
    return at_any_time(effects(known, usual), _AT_ANY_TIME * alpha)


def _scored_at(task: CanaryTask) -> datetime:
    return task.scored_at or datetime.max.replace(tzinfo=UTC)

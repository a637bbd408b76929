"""Decides whether a canary is promoted, rejected or continues, from the samples of both arms. Pure.

It may be evaluated after every task: the intervals of all four metrics hold simultaneously at all times.
"""

from collections.abc import Sequence
from enum import StrEnum

import msgspec

from app.release.confidence_sequence import Interval, difference, mean_interval

_METRICS = 4  # reward, errors, turns, tokens: each gets an equal part of alpha


class CanaryAction(StrEnum):
    PROMOTE = "promote"
    REJECT = "reject"
    STOP = "stop"  # it is a candidate again: its time is over, and nothing speaks for or against it
    WAIT = "wait"


class CanaryRules(msgspec.Struct, frozen=True, kw_only=True):
    """Thresholds of the decision."""

    alpha: float = 0.05  # probability that any interval of a comparison is ever wrong
    margin: float = 0.05  # of reward: a larger loss must be ruled out where tokens decide
    max_scored: int = 2_000  # scored tasks of the canary, after which its trial ends
    max_compared: int = 40_000  # tasks of both arms, after which it ends: later ones are not compared
    expired: str = ""  # why its trial ends now, however few tasks it had
    passed_gate: bool = False  # compared with what is active: without a difference it is promoted, not rejected


class ArmSamples(msgspec.Struct, frozen=True):
    """The values of one metric in both arms, in the order they became known, clipped at the ceiling."""

    canary: Sequence[float]
    baseline: Sequence[float]
    ceiling: float = 1.0


class MetricComparison(msgspec.Struct, frozen=True, kw_only=True):
    """Means with intervals, and the number of tasks behind them. None if an arm has no tasks."""

    tasks: dict[str, int]
    canary: Interval | None
    baseline: Interval | None
    difference: Interval | None  # canary minus baseline


class CanaryDecision(msgspec.Struct, frozen=True, kw_only=True):
    """The action, with the comparisons that it rests on."""

    action: CanaryAction
    reason: str
    metrics: dict[str, MetricComparison]


def decide(
    reward: ArmSamples,
    errors: ArmSamples,
    turns: ArmSamples,
    tokens: ArmSamples,
    rules: CanaryRules | None = None,
) -> CanaryDecision:
    """Reject if reward or errors are worse; promote if reward is better, or equal with fewer tokens.

    At the end of the trial, one that passed the gate is promoted unless its means look worse; any other is not.
    Without scores a canary can be rejected, but not promoted before that. Scores that are all the same, as of a
    check that is always true, cannot tell better from worse: then fewer tokens do not promote it.
    """
    rules = rules or CanaryRules()
    samples = {"reward": reward, "errors": errors, "turns": turns, "tokens": tokens}
    metrics = {name: _compare(sample, rules.alpha / _METRICS) for name, sample in samples.items()}
    only = {*reward.canary, *reward.baseline}
    action, reason = _decide(metrics, rules, only.pop() if len(only) == 1 else None)
    return CanaryDecision(action=action, reason=reason, metrics=metrics)


def _decide(
    metrics: dict[str, MetricComparison], rules: CanaryRules, only: float | None
) -> tuple[CanaryAction, str]:
    """`only` is the score that all tasks of both arms have, if there is one."""
    reward, errors, tokens = (metrics[name].difference for name in ("reward", "errors", "tokens"))
    summary = _summarize(metrics)
    if errors is not None and errors.low > 0:
        return CanaryAction.REJECT, f"more errors: {summary}"
    if reward is not None:
        if reward.high < 0:
            return CanaryAction.REJECT, f"lower reward: {summary}"
        if reward.low > 0:
            return CanaryAction.PROMOTE, f"higher reward: {summary}"
        if only is None and reward.low >= -rules.margin and tokens is not None and tokens.high < 0:
            return CanaryAction.PROMOTE, f"reward within {rules.margin:g}, with fewer tokens: {summary}"
    if only is not None:
        summary = f"every score is {only:g}, and such scores show no loss (send feedback): {summary}"
    return _undecided(metrics, rules, summary)


def _undecided(metrics: dict[str, MetricComparison], rules: CanaryRules, summary: str) -> tuple[CanaryAction, str]:
    """The decision while no difference is significant."""
    if ended := _end_of_trial(metrics, rules):
        if not rules.passed_gate:
            action = CanaryAction.STOP if ended == rules.expired else CanaryAction.REJECT
            return action, f"{ended}: {summary}"
        if _looks_worse(metrics, rules.margin):
            return CanaryAction.REJECT, f"{ended}, but worse on average: {summary}"
        return CanaryAction.PROMOTE, f"{ended}, and it passed the gate: {summary}"
    if metrics["reward"].difference is None:
        return CanaryAction.WAIT, f"no scores to compare, which promotion needs (send feedback): {summary}"
    left = rules.max_scored - metrics["reward"].tasks["canary"]
    return CanaryAction.WAIT, f"no significant difference yet, at most {left} more scored tasks: {summary}"


def _end_of_trial(metrics: dict[str, MetricComparison], rules: CanaryRules) -> str:
    """Why the comparison ends without a significant difference. Empty while it goes on."""
    compared, reward = metrics["errors"], metrics["reward"]
    if compared.difference is not None and sum(compared.tasks.values()) >= rules.max_compared:
        return f"no difference in the first {rules.max_compared} tasks of both"
    if reward.difference is not None and reward.tasks["canary"] >= rules.max_scored:
        return f"no difference in {rules.max_scored} scored tasks"
    return rules.expired


def _looks_worse(metrics: dict[str, MetricComparison], margin: float) -> bool:
    """Whether its means, uncertain as they are, show a loss beyond the margin."""
    reward, errors = metrics["reward"].difference, metrics["errors"].difference
    return (reward is not None and reward.mean < -margin) or (errors is not None and errors.mean > margin)


def _summarize(metrics: dict[str, MetricComparison]) -> str:
    """
    >>> some = Interval(0.25, 0.125, 0.5)
    >>> tasks = {"canary": 9, "baseline": 80}
    >>> _summarize({"reward": MetricComparison(tasks=tasks, canary=some, baseline=some, difference=some)})
    'reward +0.25 [+0.125, +0.5] on 9 and 80 tasks'
    """
    return ", ".join(_summarize_metric(name, metric) for name, metric in metrics.items())


def _summarize_metric(name: str, metric: MetricComparison) -> str:
    by = metric.difference
    interval = "unknown" if by is None else f"{by.mean:+.3g} [{by.low:+.3g}, {by.high:+.3g}]"
    return f"{name} {interval} on {metric.tasks['canary']} and {metric.tasks['baseline']} tasks"


def _compare(sample: ArmSamples, alpha: float) -> MetricComparison:
    canary, baseline = (
        [min(value / sample.ceiling, 1.0) for value in arm] for arm in (sample.canary, sample.baseline)
    )
    intervals = (
        mean_interval(canary, alpha / 2),
        mean_interval(baseline, alpha / 2),
        difference(canary, baseline, alpha),
    )
    own, other, between = (None if each is None else each.scaled(sample.ceiling) for each in intervals)
    tasks = {"canary": len(canary), "baseline": len(baseline)}
    return MetricComparison(tasks=tasks, canary=own, baseline=other, difference=between)

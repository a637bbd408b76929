"""Decides whether a canary is promoted, rejected or continues, from the tasks of both arms. Pure.

It may be evaluated after every task: what it concludes before the end of the trial rests on bounds that hold at
all times. The end is one more look, at a time that was fixed before, for which narrower bounds are enough.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import StrEnum

import msgspec

from app.db.canaries import CanaryShare, CanaryTask, TypicalCost, UsualKind
from app.release.assigned_difference import AssignedValue
from app.release.canary_metrics import (
    MEASURES,
    MetricComparison,
    ceilings_of,
    compare_metric,
    known_until,
    summarize,
    usual_of,
    values_of,
)
from app.release.canary_traffic import UncountedTraffic, counted, vanished
from app.release.confidence_sequence import Interval


class CanaryAction(StrEnum):
    PROMOTE = "promote"
    REJECT = "reject"
    STOP = "stop"  # it is a candidate again: its time is over, and nothing speaks for or against it
    WAIT = "wait"


class CanaryRules(msgspec.Struct, frozen=True, kw_only=True):
    """Thresholds of the decision."""

    alpha: float = 0.05  # probability of rejecting one that is as good, and of promoting one that is worse
    margin: float = 0.05  # of reward: a larger loss must be ruled out where tokens decide
    loss: float = 0.2  # of reward, and of the share without errors: must be ruled out at the end
    max_scored: int = 2_000  # scored tasks of the canary, after which its trial ends
    max_compared: int = 20_000  # tasks of both arms, after which it ends: later ones are not compared
    expired: str = ""  # why its trial ends now, however few tasks it had
    passed_gate: bool = False  # compared with what is active: promoted at the end if no loss is left to fear
    possible_loss: float = 0.0  # of the active release, see `CanaryDecision`: without a gate it narrows the margin

    @property
    def margin_left(self) -> float:
        return self.margin if self.passed_gate else max(0.0, self.margin - self.possible_loss)


class CanaryDecision(msgspec.Struct, frozen=True, kw_only=True):
    """The action, with the comparisons that it rests on.

    `possible_loss` is of one that is promoted: the reward that it and the releases before it may have lost since
    the reference, by promotions without a gate, less what they gained for certain. It stays within the margin,
    however many there are.
    """

    action: CanaryAction
    reason: str
    metrics: dict[str, MetricComparison]
    not_counted: UncountedTraffic = UncountedTraffic()
    possible_loss: float = 0.0


def decide(
    tasks: Sequence[CanaryTask],
    shares: Sequence[CanaryShare],
    usual: Mapping[str, UsualKind],
    typical: TypicalCost,
    rules: CanaryRules | None = None,
) -> CanaryDecision:
    """Reject if reward or errors are worse; promote if reward is better, or equal with fewer tokens.

    At the end of the trial one look more decides by narrower bounds, and one that passed the gate is promoted if a
    loss beyond `rules.loss` is ruled out.
    What is undecided then is a candidate again. Without scores a canary can be rejected, but not promoted
    before that. Scores that are all the same, as of a check that is always true, cannot tell better from worse:
    they do not count, by kind, and where all are the same, fewer tokens do not promote it.

    `tasks` are in the order of their ends, `usual` is from before them.
    """
    rules = rules or CanaryRules()
    ceilings = ceilings_of(typical)
    known = values_of(tasks, shares, ceilings)
    ended = _end_of_trial(known, rules)
    values, ignored = counted(known, usual, rules.alpha)
    metrics = {
        name: compare_metric(each, usual_of(name, usual), ceilings[name], rules.alpha, ended=bool(ended))
        for name, each in values.items()
    }
    alike = _alike(values["reward"], ignored)
    ignored = msgspec.structs.replace(ignored, vanished=vanished(usual, tasks))
    action, reason = _decide(metrics, rules, alike)
    if action is CanaryAction.WAIT and ended:
        action, reason = _at_the_end(metrics, rules, ignored, alike, ended)
    lost = _possible_loss(metrics["reward"], rules) if action is CanaryAction.PROMOTE else 0.0
    return CanaryDecision(action=action, reason=reason, metrics=metrics, not_counted=ignored, possible_loss=lost)


def race(
    tasks: Sequence[CanaryTask],
    shares: Sequence[CanaryShare],
    usual: Mapping[str, UsualKind],
    moments: Sequence[datetime],
    rules: CanaryRules | None = None,
) -> dict[str, list[Interval | None]]:
    """The differences of reward and errors as they were known at each of these moments, with the bounds that hold
    at all times. By the kinds of tasks that count now; arguments as of `decide`.
    """
    rules = rules or CanaryRules()
    values, _ = counted(values_of(tasks, shares, dict.fromkeys(MEASURES, 1.0)), usual, rules.alpha)
    return {
        name: [known_until(values[name], usual_of(name, usual), moment, rules.alpha) for moment in moments]
        for name in ("reward", "errors")
    }


def raised_percent(errors: MetricComparison, began: float, now: float, most: float) -> float:
    """The share that a canary may serve, in percent, from what is known about its errors.

    The share times the increase of errors that is not ruled out stays what it was when nothing was known,
    `began`: no more tasks are at risk than then. It rises by half at least, up to `most`, so that steps are
    few.

    >>> known = Interval(0.0, -0.25, 0.25)
    >>> raised_percent(MetricComparison(tasks={}, canary=0, baseline=0, difference=known), 10, 10, 50)
    40.0
    """
    if errors.difference is None:
        return now
    allowed = min(most, began / max(errors.difference.high, began / 100))
    return allowed if allowed >= 1.5 * now or now < allowed == most else now


def _alike(rewards: Sequence[AssignedValue], ignored: UncountedTraffic) -> str:
    """Why the rewards show no loss, although there are some. Empty if they may."""
    scores = {value.value for value in rewards if not value.unscored}
    if len(scores) > 1 or not (scores or ignored.constant_checks):
        return ""
    what = f"every score is {scores.pop():g}" if scores else "the scores of each kind are all the same"
    return f"{what}, and such scores show no loss (send feedback)"


def _decide(metrics: Mapping[str, MetricComparison], rules: CanaryRules, alike: str) -> tuple[CanaryAction, str]:
    """What the bounds say that hold at any time. `alike` says why rewards show no loss, if they do not."""
    reward, errors, tokens = (metrics[name].difference for name in ("reward", "errors", "tokens"))
    summary = summarize(metrics)
    if errors is not None and errors.low > 0:
        return CanaryAction.REJECT, f"more errors: {summary}"
    if reward is not None:
        if reward.high < 0:
            return CanaryAction.REJECT, f"lower reward: {summary}"
        if reward.low > 0:
            return CanaryAction.PROMOTE, f"higher reward: {summary}"
        if not alike and reward.low >= -rules.margin_left and tokens is not None and tokens.high < 0:
            return CanaryAction.PROMOTE, f"reward within {rules.margin_left:.2g}, with fewer tokens: {summary}"
    return CanaryAction.WAIT, f"{_missing(metrics, rules, alike)}: {summary}"


def _missing(metrics: Mapping[str, MetricComparison], rules: CanaryRules, alike: str) -> str:
    """What a decision waits for."""
    if metrics["reward"].difference is None and not alike:
        return "no scores to compare, which promotion needs (send feedback)"
    left = rules.max_scored - metrics["reward"].tasks["canary"]
    missing = f"no significant difference yet, at most {left} more scored tasks"
    if alike:
        return f"{missing}: {alike}"
    if rules.margin_left < rules.margin:
        missing += (
            f", and fewer tokens count within {rules.margin_left:.2g} of reward only, as earlier releases may "
            f"have lost {rules.possible_loss:.2g}"
        )
    return missing


def _at_the_end(
    metrics: Mapping[str, MetricComparison], rules: CanaryRules, ignored: UncountedTraffic, alike: str, ended: str
) -> tuple[CanaryAction, str]:
    reward, errors = None if alike else metrics["reward"].at_the_end, metrics["errors"].at_the_end
    summary = summarize(metrics, at_the_end=True)
    reason = f"{ended}, in the end {summary}"
    if reward is not None and reward.high < 0:
        return CanaryAction.REJECT, f"lower reward in the end: {summary}"
    if ignored.all_of:
        return (
            CanaryAction.STOP,
            f"not comparable, {ignored.all_of} came from one release more than chance explains: {reason}",
        )
    if reward is not None and reward.low > 0 and (errors is None or errors.low <= 0):
        return CanaryAction.PROMOTE, f"higher reward in the end: {summary}"
    if not rules.passed_gate:
        return CanaryAction.STOP, reason
    for name in ("errors",) if alike else ("errors", "reward"):
        if metrics[name].at_the_end is None and any(metrics[name].tasks.values()):
            return CanaryAction.STOP, f"chance left no {name} of both releases to compare: {reason}"
    lost = max(-reward.low if reward else 0.0, errors.high if errors else 0.0)
    if lost > rules.loss:
        return CanaryAction.STOP, f"a loss of {lost:.3g} is not ruled out: {reason}"
    what = f"{alike}, but no more errors beyond {rules.loss:g}" if alike else f"no loss beyond {rules.loss:g}"
    return CanaryAction.PROMOTE, f"{what}, and it passed the gate: {reason}"


def _possible_loss(reward: MetricComparison, rules: CanaryRules) -> float:
    """Since the reference: a proven gain makes up for as much as it is at least."""
    gained = max((each.low for each in (reward.difference, reward.at_the_end) if each is not None), default=0.0)
    if gained > 0:
        return max(0.0, rules.possible_loss - gained)
    own = 0.0 if rules.passed_gate or reward.difference is None else -reward.difference.low
    return rules.possible_loss + own


def _end_of_trial(values: Mapping[str, Sequence[AssignedValue]], rules: CanaryRules) -> str:
    """Why the comparison ends without a significant difference. Empty while it goes on."""
    if len(values["errors"]) >= rules.max_compared:
        return f"no difference in the first {rules.max_compared} tasks of both"
    if sum(value.on_canary for value in values["reward"]) >= rules.max_scored:
        return f"no difference in {rules.max_scored} scored tasks"
    return rules.expired

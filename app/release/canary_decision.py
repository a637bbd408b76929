"""Decides whether a canary is promoted, rejected or continues, from the tasks of both arms. Pure.

It may be evaluated after every task: what it concludes before the end of the trial rests on bounds that hold at
all times. The end is one more look, at a time that was fixed before, for which narrower bounds are enough.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from operator import attrgetter

import msgspec

from app.db.canaries import CanaryShare, CanaryTask, TypicalCost, UsualKind
from app.release.assigned_difference import AssignedValue, KindMean, at_any_time, at_the_end, effects
from app.release.canary_traffic import UncountedTraffic, counted, share_at, vanished
from app.release.confidence_sequence import Interval, is_gain
from app.release.matched_pairs import mean

# Parts of alpha. A canary is rejected for its rewards or its errors at any time, or its rewards at the end; it is
# promoted for its rewards at any time, or at the end. So neither goes wrong more often than alpha.
_AT_ANY_TIME = 0.2  # for each of the metrics
_AT_THE_END = 0.6
_CEILING_FACTOR = 2.0  # times the usual: beyond it one long task would outweigh all others

_MEASURES: Mapping[str, Callable[[CanaryTask], float | None]] = {
    "reward": attrgetter("reward"),
    "errors": attrgetter("error"),
    "turns": attrgetter("turns"),
    "tokens": attrgetter("tokens"),
}


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


class CanaryDecision(msgspec.Struct, frozen=True, kw_only=True):
    """The action, with the comparisons that it rests on.

    `possible_loss` is of one that is promoted: the reward that it and the releases before it may have lost since
    the last proven gain, by promotions without a gate. It stays within the margin, however many there are.
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
    ceilings = _ceilings(typical)
    known = _values(tasks, shares, ceilings)
    ended = _end_of_trial(known, rules)
    values, ignored = counted(known, usual, rules.alpha)
    metrics = {
        name: _compare(each, _usual_of(name, usual), ceilings[name], rules.alpha, ended=bool(ended))
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
    values, _ = counted(_values(tasks, shares, dict.fromkeys(_MEASURES, 1.0)), usual, rules.alpha)
    return {
        name: [_until(values[name], _usual_of(name, usual), moment, rules.alpha) for moment in moments]
        for name in ("reward", "errors")
    }


def _until(
    values: Sequence[AssignedValue], usual: Mapping[str, KindMean], moment: datetime, alpha: float
) -> Interval | None:
    known = [value for value in values if value.known_at is not None and value.known_at <= moment]
    if len({value.on_canary for value in known}) < 2:
        return None
    return at_any_time(effects(known, usual), _AT_ANY_TIME * alpha)


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
    summary = _summarize(metrics)
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
            f"have lost {rules.possible_loss:.2g} since the last proven gain"
        )
    return missing


def _at_the_end(
    metrics: Mapping[str, MetricComparison], rules: CanaryRules, ignored: UncountedTraffic, alike: str, ended: str
) -> tuple[CanaryAction, str]:
    reward, errors = None if alike else metrics["reward"].at_the_end, metrics["errors"].at_the_end
    summary = _summarize(metrics, at_the_end=True)
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
    lost = max(-reward.low if reward else 0.0, errors.high if errors else 0.0)
    if lost > rules.loss:
        return CanaryAction.STOP, f"a loss of {lost:.3g} is not ruled out: {reason}"
    what = f"{alike}, but no more errors beyond {rules.loss:g}" if alike else f"no loss beyond {rules.loss:g}"
    return CanaryAction.PROMOTE, f"{what}, and it passed the gate: {reason}"


def _possible_loss(reward: MetricComparison, rules: CanaryRules) -> float:
    if is_gain(reward.difference, reward.at_the_end):
        return 0.0
    own = 0.0 if rules.passed_gate or reward.difference is None else -reward.difference.low
    return rules.possible_loss + own


def _end_of_trial(values: Mapping[str, Sequence[AssignedValue]], rules: CanaryRules) -> str:
    """Why the comparison ends without a significant difference. Empty while it goes on."""
    if len(values["errors"]) >= rules.max_compared:
        return f"no difference in the first {rules.max_compared} tasks of both"
    if sum(value.on_canary for value in values["reward"]) >= rules.max_scored:
        return f"no difference in {rules.max_scored} scored tasks"
    return rules.expired


def _values(
    tasks: Sequence[CanaryTask], shares: Sequence[CanaryShare], ceilings: Mapping[str, float]
) -> dict[str, list[AssignedValue]]:
    """Of each metric, in the order in which they became known, as parts of the ceiling."""
    placed = [(task, share_at(shares, task.started_at)) for task in tasks]
    scored = sorted((each for each in placed if each[0].reward is not None), key=lambda each: _scored_at(each[0]))
    found = {}
    for name, measure in _MEASURES.items():
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


def _ceilings(typical: TypicalCost) -> dict[str, float]:
    turns, tokens = (max(1.0, _CEILING_FACTOR * usual) for usual in (typical.turns, typical.tokens))
    return {"reward": 1.0, "errors": 1.0, "turns": turns, "tokens": tokens}


def _usual_of(name: str, usual: Mapping[str, UsualKind]) -> dict[str, KindMean]:
    """Costs are expected from the tasks of the trial alone."""
    if name == "reward":
        return {kind: KindMean(each.scored, each.reward) for kind, each in usual.items()}
    return {kind: KindMean(each.tasks, each.errors) for kind, each in usual.items()} if name == "errors" else {}


def _compare(
    values: Sequence[AssignedValue], usual: Mapping[str, KindMean], ceiling: float, alpha: float, *, ended: bool
) -> MetricComparison:
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


def _summarize(metrics: Mapping[str, MetricComparison], *, at_the_end: bool = False) -> str:
    """
    >>> some = Interval(0.25, 0.125, 0.5)
    >>> tasks = {"canary": 9, "baseline": 80}
    >>> _summarize({"reward": MetricComparison(tasks=tasks, canary=1, baseline=0.75, difference=some)})
    'reward +0.25 [+0.125, +0.5] on 9 and 80 tasks'
    """
    parts = []
    for name, metric in metrics.items():
        by = metric.at_the_end if at_the_end else metric.difference
        interval = "unknown" if by is None else f"{by.mean:+.3g} [{by.low:+.3g}, {by.high:+.3g}]"
        parts.append(f"{name} {interval} on {metric.tasks['canary']} and {metric.tasks['baseline']} tasks")
    return ", ".join(parts)


def _scored_at(task: CanaryTask) -> datetime:
    return task.scored_at or datetime.max.replace(tzinfo=UTC)

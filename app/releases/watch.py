"""Decides whether a promoted release is kept or rolled back, by its tasks and those of the release before. Pure.

The two served at different times, so the mix of tasks may differ: only tasks of the same kind are compared
(`matched_pairs`), that is of the same scenario, or of the same instruction where they have none. A change of the
world within a kind cannot be told from a change of the release.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum

import msgspec

from app.db.results import UNLABELLED
from app.db.watches import WatchedTask
from app.release.constant_checks import ConstantChecks
from app.release.matched_pairs import LabelledValue, PairedDifference, compare, informative, match, mean

_METRICS = 3  # reward, errors, turns: each gets an equal part of alpha
_UNLABELLED = "(no scenario)"
_MOST_NAMED = 20  # scenarios in the evidence


class WatchAction(StrEnum):
    ROLL_BACK = "roll back"
    KEEP = "keep"
    CONTINUE = "continue"


class WatchRules(msgspec.Struct, frozen=True, kw_only=True):
    """Thresholds of the decision."""

    alpha: float = 0.05  # probability that any interval of a watch is ever wrong
    margin: float = 0.05  # of reward, and of the share of errors
    turns_margin: float = 0.5  # of the earlier mean of turns
    max_tasks: int = 2_000  # of the new release, after which it is kept


class ScenarioComparison(msgspec.Struct, frozen=True, kw_only=True):
    """One kind: all tasks of both releases, and their means. Reward is null without scores."""

    scenario: str
    tasks: dict[str, int]
    reward: dict[str, float | None]
    errors: dict[str, float | None]


class NotCounted(msgspec.Struct, frozen=True, kw_only=True):
    """Tasks by kind that show nothing about the release, at most 20 kinds each, those with most tasks.

    Tasks without a scenario whose instruction only one of the releases had are counted as `(no scenario)`.
    """

    vanished: dict[str, int]  #: earlier tasks of kinds that did not come again
    other_traffic: dict[str, int]  #: new tasks of kinds that the former release did not have
    constant_checks: dict[str, int]  #: new scored tasks of kinds whose scores are all the same: none counts
    unmatched: int  #: new tasks beyond the number of earlier ones of their kind


class WatchDecision(msgspec.Struct, frozen=True, kw_only=True):
    """The action, with the comparisons that it rests on."""

    action: WatchAction
    reason: str
    tasks: dict[str, int]
    metrics: dict[str, PairedDifference]
    scenarios: list[ScenarioComparison]
    not_counted: NotCounted


def decide(
    before: Sequence[WatchedTask],
    now: Sequence[WatchedTask],
    rules: WatchRules | None = None,
    *,
    expired: bool = False,
) -> WatchDecision:
    """Roll back if reward is lower, errors are more frequent, or turns without a gain in reward are more, each by
    more than its margin; keep it after the last task, or once its time has `expired`.

    `before` are in an order that does not depend on their values, `now` in the order of their ends.
    """
    rules = rules or WatchRules()
    usual = mean([task.turns for task in before if task.turns is not None]) or 0.0
    ceiling = max(1.0, 4 * usual)  # beyond it one long task would outweigh all others
    scored = sorted((task for task in now if task.reward is not None), key=_scored_at)
    pairs = {
        "reward": [*informative(match(_rewards(before), _rewards(scored)), _checks_of(before))],
        "errors": [*match(_errors(before), _errors(now))],
        "turns": [*match(_turns(before, ceiling), _turns(now, ceiling))],
    }
    alpha = rules.alpha / _METRICS
    metrics = {name: compare(each, alpha, ceiling if name == "turns" else 1.0) for name, each in pairs.items()}
    action, reason = _decide(metrics, rules, rules.turns_margin * usual)
    if action is WatchAction.CONTINUE and (expired or len(now) >= rules.max_tasks):
        action = WatchAction.KEEP
    return WatchDecision(
        action=action,
        reason=reason,
        tasks={"before": len(before), "now": len(now)},
        metrics=metrics,
        scenarios=_by_scenario(before, now),
        not_counted=_not_counted(before, now, scored, len(pairs["errors"])),
    )


def _decide(
    metrics: Mapping[str, PairedDifference], rules: WatchRules, more_turns: float
) -> tuple[WatchAction, str]:
    reward, errors, turns = (metrics[name].difference for name in ("reward", "errors", "turns"))
    summary = _summarize(metrics)
    if reward is not None and reward.high < -rules.margin:
        return WatchAction.ROLL_BACK, f"lower reward: {summary}"
    if errors is not None and errors.low > rules.margin:
        return WatchAction.ROLL_BACK, f"more errors: {summary}"
    better = reward is not None and reward.low > 0
    if turns is not None and turns.low > more_turns and not better:
        return WatchAction.ROLL_BACK, f"more turns: {summary}"
    if errors is None:
        return (
            WatchAction.CONTINUE,
            "no task to compare: the two share no scenario, and no instruction without one",
        )
    return WatchAction.CONTINUE, f"no loss beyond {rules.margin:g} is certain: {summary}"


def _summarize(metrics: Mapping[str, PairedDifference]) -> str:
    """
    >>> from app.release.confidence_sequence import Interval
    >>> _summarize({"reward": PairedDifference(pairs=9, difference=Interval(-0.25, -0.5, 0.125))})
    'reward -0.25 [-0.5, +0.125] on 9 pairs'
    """
    return ", ".join(_summarize_metric(name, metric) for name, metric in metrics.items())


def _summarize_metric(name: str, metric: PairedDifference) -> str:
    by = metric.difference
    interval = "unknown" if by is None else f"{by.mean:+.3g} [{by.low:+.3g}, {by.high:+.3g}]"
    return f"{name} {interval} on {metric.pairs} pairs"


def _checks_of(tasks: Iterable[WatchedTask]) -> ConstantChecks:
    checks = ConstantChecks()
    for scenario, value, unscored in _rewards(tasks):
        if not unscored:
            checks.add(scenario, value)
    return checks


def _not_counted(
    before: Sequence[WatchedTask],
    now: Sequence[WatchedTask],
    scored: Sequence[WatchedTask],
    matched: int,
) -> NotCounted:
    earlier, later = _by_name(before), _by_name(now)
    checks = _checks_of([*before, *scored])
    constant = {name: each for name, each in _by_name(scored).items() if name in earlier and name in checks}
    others = _alone(later, earlier)
    return NotCounted(
        vanished=_most(_alone(earlier, later)),
        other_traffic=_most(others),
        constant_checks=_most(_counts(constant)),
        unmatched=len(now) - others.total() - matched,
    )


def _by_scenario(before: Sequence[WatchedTask], now: Sequence[WatchedTask]) -> list[ScenarioComparison]:
    earlier, later = _by_name(before), _by_name(now)
    shared = _most({name: len(each) for name, each in later.items() if name in earlier})
    arms = {name: {"before": earlier[name], "now": later[name]} for name in shared}
    return [
        ScenarioComparison(
            scenario=name,
            tasks={arm: len(tasks) for arm, tasks in both.items()},
            reward={arm: mean([each.value for each in _rewards(tasks)]) for arm, tasks in both.items()},
            errors={arm: mean([each.value for each in _errors(tasks)]) for arm, tasks in both.items()},
        )
        for name, both in arms.items()
    ]


def _by_name(tasks: Iterable[WatchedTask]) -> dict[str, list[WatchedTask]]:
    found: dict[str, list[WatchedTask]] = defaultdict(list)
    for task in tasks:
        found[task.kind].append(task)
    return found


def _counts(tasks: Mapping[str, Sequence[WatchedTask]]) -> dict[str, int]:
    return {name: len(each) for name, each in tasks.items()}


def _alone(
    tasks: Mapping[str, Sequence[WatchedTask]], others: Mapping[str, Sequence[WatchedTask]]
) -> Counter[str]:
    """Of kinds that the other did not have, with one sum for all instructions: their hashes say nothing."""
    found = Counter[str]()
    for name, each in tasks.items():
        if name not in others:
            found[_UNLABELLED if name.startswith(UNLABELLED) else name] += len(each)
    return found


def _most(counts: Mapping[str, int]) -> dict[str, int]:
    return dict(sorted(counts.items(), key=lambda each: (-each[1], each[0]))[:_MOST_NAMED])


def _rewards(tasks: Iterable[WatchedTask]) -> list[LabelledValue]:
    return [LabelledValue(task.kind, task.reward, task.unscored) for task in tasks if task.reward is not None]


def _errors(tasks: Iterable[WatchedTask]) -> list[LabelledValue]:
    return [LabelledValue(task.kind, task.error) for task in tasks]


def _turns(tasks: Iterable[WatchedTask], ceiling: float) -> list[LabelledValue]:
    return [LabelledValue(task.kind, min(task.turns, ceiling)) for task in tasks if task.turns is not None]


def _scored_at(task: WatchedTask) -> datetime:
    return task.scored_at or datetime.max.replace(tzinfo=UTC)

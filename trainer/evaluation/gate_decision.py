"""The gate's decision: whether a candidate may replace the incumbent, from the results of both.

A candidate is promoted if it solves more scenarios (SGC), or if it is not worse and generates fewer tokens. Both
are judged in pairs on the same scenarios, by the bounds of the 95 % interval and not by its mean.

Small losses that the gate lets pass, one after the other, would add up. So a candidate that shows no gain must not
be worse than the reference either, the best release that has served.

"Not worse" means that a loss of 5 points is ruled out. Bootstrap intervals are too narrow for that, so a score
interval decides. A candidate that is 5 points worse passes in at most 2.7 % of evaluations. An equal one passes on
200 scenarios in 79 % of them if the two differ in every 20th scenario, in 56 % if in every 10th. On fewer than 73
scenarios it can pass only if it gained some.
"""

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec

from app.run_settings import MIN_SCENARIOS
from trainer.evaluation.policy_metrics import Comparison, PolicyMetrics, TaskResult, compare, measure
from trainer.evaluation.score_interval import difference_lower_bound

Points = Annotated[float, msgspec.Meta(ge=0, le=100)]


class GateRules(msgspec.Struct, frozen=True, kw_only=True):
    """Thresholds of the gate."""

    min_scenarios: int = MIN_SCENARIOS
    margin: Points = 5.0  # of SGC: a loss beyond it must be ruled out for promotion by tokens
    collapse: float = 0.5  # warn of a use or write rate below this fraction of the incumbent's


class GateDecision(msgspec.Struct, frozen=True, kw_only=True):
    """Promote or reject, with the figures behind it."""

    promote: bool
    without_gain: bool = False  # it passes as not worse than the incumbent, with fewer tokens
    reason: str
    figures: dict[str, Any]


def decide(
    candidate: Sequence[TaskResult], incumbent: Sequence[TaskResult], rules: GateRules | None = None
) -> GateDecision:
    """By these two alone: `check_reference` goes on where `without_gain` is set.

    Raises InvalidError where the results are not of the same tasks, ValueError where there are none.
    """
    rules = rules or GateRules()
    difference = compare(candidate, incumbent)
    sides = measure(candidate), measure(incumbent)
    lower_bound = 100 * difference_lower_bound(difference.gained, difference.lost, difference.scenarios)
    promote, reason = _judge(difference, lower_bound, rules)
    gains = difference.sgc.low > 0
    figures = {
        "candidate": msgspec.to_builtins(sides[0]),
        "incumbent": msgspec.to_builtins(sides[1]),
        "difference": msgspec.to_builtins(difference),
        "sgc_lower_bound": lower_bound,
        "rules": msgspec.to_builtins(rules),
        "warnings": _warnings(*sides, rules),
    }
    return GateDecision(promote=promote, without_gain=promote and not gains, reason=reason, figures=figures)


def check_reference(
    decision: GateDecision,
    candidate: Sequence[TaskResult],
    reference: Sequence[TaskResult],
    rules: GateRules | None = None,
) -> GateDecision:
    """The decision, reversed unless the candidate loses at most the margin to the reference.

    Raises as `decide`.
    """
    rules = rules or GateRules()
    difference = compare(candidate, reference)
    lower_bound = 100 * difference_lower_bound(difference.gained, difference.lost, difference.scenarios)
    figures = decision.figures | {
        "reference": msgspec.to_builtins(measure(reference)),
        "reference_difference": msgspec.to_builtins(difference),
        "reference_lower_bound": lower_bound,
    }
    if lower_bound >= -rules.margin:
        return msgspec.structs.replace(decision, figures=figures)
    reason = (
        f"a loss of over {rules.margin:g} points of SGC to the best release that has served is not ruled out: "
        f"SGC {difference.sgc.mean:+.1f} points, at worst {lower_bound:+.1f}; to the active one: {decision.reason}"
    )
    return GateDecision(promote=False, reason=reason, figures=figures)


def _judge(difference: Comparison, lower_bound: float, rules: GateRules) -> tuple[bool, str]:
    """Promote or not, and why. `lower_bound` is that of the score interval of SGC, in points."""
    sgc, tokens, scenarios = difference.sgc, difference.tokens, difference.scenarios
    summary = (
        f"SGC {sgc.mean:+.1f} [{sgc.low:+.1f}, {sgc.high:+.1f}] points, at worst {lower_bound:+.1f}, "
        f"tokens {tokens.mean:+.1f} [{tokens.low:+.1f}, {tokens.high:+.1f}] per task, on {scenarios} scenarios"
    )
    if scenarios < rules.min_scenarios:
        return False, f"{scenarios} scenarios are too few, at least {rules.min_scenarios} are needed: {summary}"
    if sgc.low > 0:
        return True, f"it solves more scenarios: {summary}"
    if lower_bound >= -rules.margin and tokens.high < 0:
        return (
            True,
            f"it loses at most {rules.margin:g} points of SGC and generates fewer tokens: {summary}",
        )
    if sgc.high < 0:
        return False, f"it solves fewer scenarios: {summary}"
    if lower_bound < -rules.margin:
        return False, f"it shows no gain, and a loss of over {rules.margin:g} points is not ruled out: {summary}"
    return False, f"it shows neither more solved scenarios nor fewer tokens: {summary}"


def _warnings(candidate: PolicyMetrics, incumbent: PolicyMetrics, rules: GateRules) -> list[str]:
    """A policy that stops writing or using skills may still pass now, but will not improve further."""
    warnings = []
    for name, words in (("write_rate", "writes functions"), ("skill_usage", "uses the skills it is offered")):
        new, old = getattr(candidate, name), getattr(incumbent, name)
        if old is not None and old.mean > 0 and new is not None and new.mean < rules.collapse * old.mean:
            warnings.append(f"it rarely {words}: in {new.mean:.1f} % of tasks, the incumbent in {old.mean:.1f} %")
    if incumbent.skill_usage is not None and candidate.skill_usage is None:
        warnings.append("none of its skills was offered to a later task, some of the incumbent's were")
    return warnings

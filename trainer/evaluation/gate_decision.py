"""The gate's decision: whether a candidate may replace the incumbent, from the results of both.

A candidate is promoted if it solves more scenarios (SGC) and not fewer tasks (TGC), or the other way round, or if
neither is worse and it generates fewer tokens, unless it solves no task. All are judged in pairs on the same
scenarios, by the bounds of the 95 % interval and not by its mean.

Small losses that the gate lets pass, one after the other, would add up. So a candidate must not be worse than the
reference either, the last release that has proven a gain, even if it is better than the incumbent.

"Not worse" means that a loss of 5 points is ruled out. Bootstrap intervals are too narrow for that where hardly
any scenario differs, so a score interval decides on scenarios. A candidate that is 5 points worse in them passes
in at most 2.7 % of evaluations. An equal one passes on 200 scenarios in 79 % of them if the two differ in every
20th scenario, in 56 % if in every 10th. On fewer than 73 scenarios it can pass only if it gained some.
"""

from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple

import msgspec

from app.run_settings import MIN_SCENARIOS
from trainer.evaluation.bootstrap_intervals import Estimate
from trainer.evaluation.policy_metrics import Comparison, PolicyMetrics, TaskResult, compare, measure
from trainer.evaluation.score_interval import difference_lower_bound

Points = Annotated[float, msgspec.Meta(ge=0, le=100)]


class GateRules(msgspec.Struct, frozen=True, kw_only=True):
    """Thresholds of the gate."""

    min_scenarios: int = MIN_SCENARIOS
    margin: Points = 5.0  # of SGC and TGC: a loss beyond it must be ruled out, unless that one shows a gain
    collapse: float = 0.5  # warn of a use or write rate below this fraction of the incumbent's


class GateDecision(msgspec.Struct, frozen=True, kw_only=True):
    """Promote or reject, with the figures behind it."""

    promote: bool
    reason: str
    figures: dict[str, Any]
    worse: bool = False  # certainly, than the incumbent or the reference; else it may only be too little
    open: bool = False  # neither a gain nor a loss over the margin was shown, so that another look may decide


def decide(
    candidate: Sequence[TaskResult], incumbent: Sequence[TaskResult], rules: GateRules | None = None
) -> GateDecision:
    """By these two alone: `check_reference` goes on where the incumbent is not the reference.

    Raises InvalidError where the results are not of the same tasks, ValueError where there are none.
    """
    rules = rules or GateRules()
    difference = compare(candidate, incumbent)
    sides = measure(candidate), measure(incumbent)
    lower_bound = 100 * difference_lower_bound(difference.gained, difference.lost, difference.scenarios)
    promote, reason = _judge(difference, lower_bound, rules, solves=sides[0].tgc.mean > 0)
    figures = {
        "candidate": msgspec.to_builtins(sides[0]),
        "incumbent": msgspec.to_builtins(sides[1]),
        "difference": msgspec.to_builtins(difference),
        "sgc_lower_bound": lower_bound,
        "rules": msgspec.to_builtins(rules),
        "warnings": _warnings(*sides, rules),
    }
    undecided = not promote and difference.scenarios >= rules.min_scenarios and sides[0].tgc.mean > 0
    return GateDecision(
        promote=promote,
        reason=reason,
        figures=figures,
        worse=_is_worse(difference),
        open=undecided and not any(each.is_risked(rules.margin) for each in _found(difference, lower_bound)),
    )


def look_greedily(
    decision: GateDecision,
    candidate: Sequence[TaskResult],
    incumbent: Sequence[TaskResult],
    rules: GateRules | None = None,
) -> GateDecision:
    """The decision about an `open` case, by results of the same scenarios without the chance of sampling.

    As it will serve, the candidate loses at most the margin. That it solves more may show greedily alone, where it
    is not hidden by luck: it then passes, which one that is equal does as seldom as before. Raises as `decide`.
    """
    greedy = decide(candidate, incumbent, rules)
    figures = decision.figures | {
        f"greedy_{name}": greedy.figures[name] for name in ("candidate", "incumbent", "difference")
    }
    compared = msgspec.convert(greedy.figures["difference"], Comparison)
    reason = f"{decision.reason}; greedily, {greedy.reason}"
    promote = greedy.promote and max(compared.sgc.low, compared.tgc.low) > 0
    if promote:
        reason = f"greedily, {greedy.reason}; as it serves, {decision.reason}"
    worse = decision.worse or greedy.worse
    return msgspec.structs.replace(decision, promote=promote, reason=reason, figures=figures, worse=worse)


def check_reference(
    decision: GateDecision,
    candidate: Sequence[TaskResult],
    reference: Sequence[TaskResult],
    rules: GateRules | None = None,
) -> GateDecision:
    """The decision, reversed unless the candidate loses at most the margin to the reference, in both metrics.

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
    if not any(each.is_risked(rules.margin) for each in _found(difference, lower_bound)):
        return msgspec.structs.replace(decision, figures=figures)
    reason = (
        f"a loss of over {rules.margin:g} points to the reference is not ruled out: "
        f"SGC {difference.sgc.mean:+.1f} points, at worst {lower_bound:+.1f}, {_interval('TGC', difference.tgc)} "
        f"points; to the active one: {decision.reason}"
    )
    return GateDecision(promote=False, reason=reason, figures=figures, worse=_is_worse(difference))


def _judge(difference: Comparison, lower_bound: float, rules: GateRules, *, solves: bool) -> tuple[bool, str]:
    """Promote or not, and why. `lower_bound` is that of the score interval of SGC, in points; `solves`: the
    candidate solves any task.
    """
    sgc, tgc, tokens = difference.sgc, difference.tgc, difference.tokens
    summary = (
        f"{_interval('SGC', sgc)} points, at worst {lower_bound:+.1f}, {_interval('TGC', tgc)} points, "
        f"{_interval('tokens', tokens)} per task, on {difference.scenarios} scenarios"
    )
    if difference.scenarios < rules.min_scenarios:
        few = f"{difference.scenarios} scenarios are too few, at least {rules.min_scenarios} are needed"
        return False, f"{few}: {summary}"
    promote, verdict = _verdict(difference, lower_bound, rules.margin)
    if promote and not solves:
        promote, verdict = False, "it solves no task, so that it generates fewer tokens is no gain"
    return promote, f"{verdict}: {summary}"


def _verdict(difference: Comparison, lower_bound: float, margin: float) -> tuple[bool, str]:
    found = _found(difference, lower_bound)
    gained = [each.name for each in found if each.by.low > 0]
    risked = [each for each in found if each.is_risked(margin)]
    lost = [each.name for each in risked if each.by.high < 0]
    if lost:
        return False, f"it solves fewer {lost[0]}"
    if risked:
        shown = f"it solves more {gained[0]}, but" if gained else "it shows no gain, and"
        return False, f"{shown} a loss of over {margin:g} points of {risked[0].name} is not ruled out"
    if gained:
        return True, f"it solves more {gained[0]}"
    if difference.tokens.high < 0:
        return True, f"it loses at most {margin:g} points of scenarios and tasks and generates fewer tokens"
    return False, "it shows neither more solved scenarios or tasks nor fewer tokens"


class _Found(NamedTuple):
    """The difference in one metric, in points, and how bad it may be."""

    name: str
    by: Estimate
    worst: float

    def is_risked(self, margin: float) -> bool:
        return self.by.low <= 0 and self.worst < -margin


def _is_worse(difference: Comparison) -> bool:
    return difference.sgc.high < 0 or difference.tgc.high < 0


def _found(difference: Comparison, lower_bound: float) -> tuple[_Found, _Found]:
    sgc, tgc = difference.sgc, difference.tgc
    return _Found("scenarios", sgc, lower_bound), _Found("tasks", tgc, tgc.low)


def _interval(name: str, estimate: Estimate) -> str:
    return f"{name} {estimate.mean:+.1f} [{estimate.low:+.1f}, {estimate.high:+.1f}]"


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

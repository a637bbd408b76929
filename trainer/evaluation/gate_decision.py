"""The gate's decision: whether a candidate may replace the incumbent, from the results of both. Pure.

A candidate is promoted if it solves more scenarios (SGC) and not fewer tasks (TGC), or the other way round, or
if neither is worse and it generates fewer tokens, unless it solves no task. All are judged in pairs on the same
scenarios, by the bounds of the 95 % interval and not by its mean.

Small losses that the gate lets pass, one after the other, would add up. So a candidate must not be worse than
the reference either, the last release that has proven a gain, even if it is better than the incumbent.

"Not worse" means that a loss of 5 points is ruled out. Bootstrap intervals are too narrow for that where hardly
any scenario differs, so a score interval decides on scenarios. A candidate that is 5 points worse in them
passes in at most 2.7 % of evaluations. An equal one passes on 200 scenarios in 79 % of them if the two differ
in every 20th scenario, in 56 % if in every 10th. On fewer than 73 scenarios it can pass only if it gained some.
How often an exam of so many sees a gain that is there is known before it runs.
"""

from collections.abc import Sequence
from math import comb, sqrt
from typing import Annotated, Any, NamedTuple

import msgspec

from app.base.run_settings import MIN_SCENARIOS
from trainer.evaluation.metrics import Comparison, Estimate, PolicyMetrics, TaskResult, compare, measure

_Z = 1.959963984540054  # 97.5 % quantile of the normal distribution
_HALVINGS = 50
_GAIN = 5.0  # points, as many as the gate lets a candidate lose
_TAIL = 0.025  # of a bootstrap below its 95 % interval


def difference_lower_bound(gained: int, lost: int, scenarios: int) -> float:
    """The lower bound of the 95 % score interval for the difference of two paired shares (Tango 1998), in -1..1.

    `gained` and `lost` count the scenarios that only the first and only the second solved. A bootstrap is useless
    for few losses: without any in 60 scenarios its interval is a point. The true difference is below this bound in
    hardly more than 2.5 % of evaluations.
    """
    low, high = -1.0, (gained - lost) / scenarios
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if _is_ruled_out(middle, gained, lost, scenarios):
            low = middle
        else:
            high = middle
    return low


def _is_ruled_out(difference: float, gained: int, lost: int, scenarios: int) -> bool:
    """Whether the score test rejects `difference`, with the maximum likelihood share of losses under it."""
    linear = (2 * scenarios - gained + lost) * difference - gained - lost
    constant = -lost * difference * (1 - difference)
    loss_share = (sqrt(linear**2 - 8 * scenarios * constant) - linear) / (4 * scenarios)
    variance = scenarios * (2 * loss_share + difference * (1 - difference))
    return gained - lost - scenarios * difference >= _Z * sqrt(max(variance, 0.0))


def fewest_gained(scenarios: int) -> int:
    """The scenarios that a candidate which lost none has to gain for the gate to see that it solves more.

    The bootstrap's interval is above 0 once hardly any resample is without a gained scenario.

    >>> fewest_gained(67)
    4
    """
    return next(gained for gained in range(scenarios + 1) if (1 - gained / scenarios) ** scenarios < _TAIL)


def power(scenarios: int, gain: float = _GAIN) -> float:
    """The probability that a gain of so many points of scenarios is seen, if none is lost, which lowers it.

    >>> [round(power(scenarios), 2) for scenarios in (30, 67, 100, 200)]
    [0.06, 0.43, 0.74, 0.99]
    """
    share, enough = gain / 100, fewest_gained(scenarios)
    missed = (comb(scenarios, k) * share**k * (1 - share) ** (scenarios - k) for k in range(enough))
    return max(0.0, 1 - sum(missed))


def power_in_words(scenarios: int) -> str:
    """
    >>> power_in_words(67)
    '67 scenarios: a gain of 5 points is seen 43 times in 100 if no scenario is lost, else more seldom'
    """
    if not scenarios:
        return "no scenario can be tried"
    seen = f"a gain of {_GAIN:g} points is seen {100 * power(scenarios):.0f} times in 100"
    return f"{scenarios} scenarios: {seen} if no scenario is lost, else more seldom"


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
        f"SGC {difference.sgc.mean:+.1f} points, at worst {lower_bound:+.1f}, TGC {difference.tgc.signed} "
        f"points; to the active one: {decision.reason}"
    )
    return GateDecision(promote=False, reason=reason, figures=figures, worse=_is_worse(difference))


def _judge(difference: Comparison, lower_bound: float, rules: GateRules, *, solves: bool) -> tuple[bool, str]:
    """Promote or not, and why. `lower_bound` is that of the score interval of SGC, in points; `solves`: the
    candidate solves any task.
    """
    sgc, tgc, tokens = difference.sgc, difference.tgc, difference.tokens
    summary = (
        f"SGC {sgc.signed} points, at worst {lower_bound:+.1f}, TGC {tgc.signed} points, "
        f"tokens {tokens.signed} per task, on {difference.scenarios} scenarios"
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

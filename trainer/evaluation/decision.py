"""May a candidate take the incumbent's place? Pure: results in, decision out; the exam itself is elsewhere.

Two ways lead to promotion: more scenarios solved whole, or as many with fewer generated tokens. Both are judged on
the same scenarios, in pairs, and by the whole 95 % interval: a lucky draw is no reason to change what serves.

"As many" means that a loss of 5 points is ruled out, for which the intervals of the bootstrap are too narrow: a
score interval decides. A candidate that is 5 points worse passes it in 2.7 % of exams at most. One that is equal
passes, on 200 scenarios, in 79 % if the two differ in every 20th scenario, in 56 % if in every 10th. On fewer than
73 it can pass only if it gained some.
"""

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec

from app.run_settings import LEAST_SCENARIOS
from trainer.evaluation.metrics import Comparison, Metrics, TaskResult, compare, measure
from trainer.evaluation.score_interval import least_difference

Points = Annotated[float, msgspec.Meta(ge=0, le=100)]


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """What the gate asks for."""

    least: int = LEAST_SCENARIOS
    margin: Points = 5.0  # of SGC: a loss beyond it must be ruled out where tokens decide
    collapse: float = 0.5  # a use or write rate under this part of the incumbent's is warned of


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """What became of it, and all that it rests on."""

    promote: bool
    reason: str
    figures: dict[str, Any]


def decide(
    candidate: Sequence[TaskResult], incumbent: Sequence[TaskResult], rules: Rules | None = None
) -> Decision:
    """Raises InvalidError where the two did not sit the same tasks, ValueError where they sat none."""
    rules = rules or Rules()
    difference = compare(candidate, incumbent)
    sides = measure(candidate), measure(incumbent)
    worst = 100 * least_difference(difference.gained, difference.lost, difference.scenarios)
    promote, reason = _judge(difference, worst, rules)
    figures = {
        "candidate": msgspec.to_builtins(sides[0]),
        "incumbent": msgspec.to_builtins(sides[1]),
        "difference": msgspec.to_builtins(difference),
        "sgc_worst": worst,
        "rules": msgspec.to_builtins(rules),
        "warnings": _warnings(*sides, rules),
    }
    return Decision(promote=promote, reason=reason, figures=figures)


def _judge(difference: Comparison, worst: float, rules: Rules) -> tuple[bool, str]:
    """`worst` is the least difference of SGC that is not ruled out, in points."""
    sgc, tokens, scenarios = difference.sgc, difference.tokens, difference.scenarios
    found = (
        f"SGC {sgc.mean:+.1f} [{sgc.low:+.1f}, {sgc.high:+.1f}] points, at worst {worst:+.1f}, "
        f"tokens {tokens.mean:+.1f} [{tokens.low:+.1f}, {tokens.high:+.1f}] per task, on {scenarios} scenarios"
    )
    if scenarios < rules.least:
        return False, f"{scenarios} scenarios are too few to tell, at least {rules.least} are needed: {found}"
    if sgc.low > 0:
        return True, f"it solves more scenarios: {found}"
    if worst >= -rules.margin and tokens.high < 0:
        return True, f"it is not worse by more than {rules.margin:g} points of SGC and writes less: {found}"
    if sgc.high < 0:
        return False, f"it solves fewer scenarios: {found}"
    if worst < -rules.margin:
        return False, f"no gain is shown, and a loss of over {rules.margin:g} points is not ruled out: {found}"
    return False, f"neither more scenarios nor fewer tokens are shown: {found}"


def _warnings(candidate: Metrics, incumbent: Metrics, rules: Rules) -> list[str]:
    """A policy that stops writing or using functions may still pass today, but has nothing to build on."""
    said = []
    for name, words in (("write_rate", "writes functions"), ("skill_usage", "uses skills it is offered")):
        new, old = getattr(candidate, name), getattr(incumbent, name)
        if old is not None and old.mean > 0 and new is not None and new.mean < rules.collapse * old.mean:
            said.append(f"it hardly {words} any more: {new.mean:.1f} % of tasks, the incumbent {old.mean:.1f} %")
    if incumbent.skill_usage is not None and candidate.skill_usage is None:
        said.append("it left no skill that a later task was offered, the incumbent did")
    return said

"""May a canary go on, must it go back, or does it take over? Pure: what both arms came to in, a verdict out.

It may be asked after every task: the intervals hold at all moments at once, all four figures together.
"""

from collections.abc import Sequence
from enum import StrEnum

import msgspec

from app.release.confidence_sequence import Interval, difference, mean_interval

_FIGURES = 4  # reward, errors, turns, tokens: each gets its part of the error that is allowed


class Action(StrEnum):
    PROMOTE = "promote"
    REJECT = "reject"
    WAIT = "wait"


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """What a canary is judged by."""

    alpha: float = 0.05  # the chance that any interval of a comparison is ever wrong
    margin: float = 0.05  # of reward: a loss beyond it must be ruled out where tokens decide
    tasks: int = 2_000  # scored ones of the canary, after which it is given up
    ended: int = 40_000  # of both together, after which it is given up: no later ones are compared


class Sample(msgspec.Struct, frozen=True):
    """One figure of both arms, each in the order it became known. What is above the ceiling counts as much."""

    canary: Sequence[float]
    active: Sequence[float]
    ceiling: float = 1.0


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """Means with intervals, and how many tasks they rest on. None where an arm has no task to tell."""

    tasks: dict[str, int]
    canary: Interval | None
    active: Interval | None
    difference: Interval | None  # canary minus active


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What is to become of a canary, and all that this rests on."""

    action: Action
    reason: str
    figures: dict[str, Figure]


def decide(reward: Sample, errors: Sample, turns: Sample, tokens: Sample, rules: Rules | None = None) -> Verdict:
    """Worse in reward or errors goes back, better in reward takes over, and so does as good with fewer tokens.

    Without scores nothing can speak for a canary, only against it.
    """
    rules = rules or Rules()
    samples = {"reward": reward, "errors": errors, "turns": turns, "tokens": tokens}
    figures = {name: _figure(sample, rules.alpha / _FIGURES) for name, sample in samples.items()}
    action, reason = _judge(figures, rules)
    return Verdict(action=action, reason=reason, figures=figures)


def _judge(figures: dict[str, Figure], rules: Rules) -> tuple[Action, str]:
    reward, errors, tokens = (figures[name].difference for name in ("reward", "errors", "tokens"))
    found = _told(figures)
    if errors is not None and errors.low > 0:
        return Action.REJECT, f"more of its tasks go wrong: {found}"
    if reward is not None:
        if reward.high < 0:
            return Action.REJECT, f"it earns less: {found}"
        if reward.low > 0:
            return Action.PROMOTE, f"it earns more: {found}"
        if reward.low >= -rules.margin and tokens is not None and tokens.high < 0:
            return Action.PROMOTE, f"it earns no less, but for {rules.margin:g} at most, and writes less: {found}"
    return _unknown(figures, rules, found)


def _unknown(figures: dict[str, Figure], rules: Rules, found: str) -> tuple[Action, str]:
    """Where no figure tells: may it go on? While there is nothing to compare it with, it is not given up."""
    compared = figures["errors"]
    if compared.difference is not None and sum(compared.tasks.values()) >= rules.ended:
        return Action.REJECT, f"no difference is shown by the first {rules.ended} tasks of both: {found}"
    if figures["reward"].difference is None:
        return Action.WAIT, f"no scores to compare, and only they can speak for it, such as by feedback: {found}"
    left = rules.tasks - figures["reward"].tasks["canary"]
    if left <= 0:
        return Action.REJECT, f"no difference is shown by {rules.tasks} scored tasks: {found}"
    return Action.WAIT, f"not enough is known yet, at most {left} more scored tasks will tell: {found}"


def _told(figures: dict[str, Figure]) -> str:
    """
    >>> some = Interval(0.25, 0.125, 0.5)
    >>> _told({"reward": Figure(tasks={"canary": 9, "active": 80}, canary=some, active=some, difference=some)})
    'reward +0.25 [+0.125, +0.5] on 9 and 80 tasks'
    """
    return ", ".join(_line(name, figure) for name, figure in figures.items())


def _line(name: str, figure: Figure) -> str:
    canary, active = figure.tasks["canary"], figure.tasks["active"]
    by = figure.difference
    told = "unknown" if by is None else f"{by.mean:+.3g} [{by.low:+.3g}, {by.high:+.3g}]"
    return f"{name} {told} on {canary} and {active} tasks"


def _figure(sample: Sample, alpha: float) -> Figure:
    canary, active = (
        [min(value / sample.ceiling, 1.0) for value in arm] for arm in (sample.canary, sample.active)
    )
    intervals = (
        mean_interval(canary, alpha / 2),
        mean_interval(active, alpha / 2),
        difference(canary, active, alpha),
    )
    own, other, between = (None if each is None else each.scaled(sample.ceiling) for each in intervals)
    tasks = {"canary": len(canary), "active": len(active)}
    return Figure(tasks=tasks, canary=own, active=other, difference=between)

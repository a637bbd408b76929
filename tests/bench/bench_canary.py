"""How soon canaries are decided, and how often wrongly: by two means with a share of 10 %, and by the rule that
serves, for canaries that passed a gate and for those that no exam has examined (`gate=canary`).

python tests/bench/bench_canary.py [--runs 200] [--rule gate=canary]

By simulation: 200 tasks a day of 30 kinds, 10 % of them with a score that comes within a day, a canary that
begins with 10 %. Each rule looks twice a day. "Two means" compares the mean of all scores
of one release with that of the other, each with an interval of its own that holds at all times, four metrics
with a quarter of the error; after three days it promotes what does not look worse on average. Without that end,
it goes on for 200 days.
"""

import json
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TypeAlias

import click
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from app.releases.canary import CanaryAction, CanaryDecision, CanaryRules, decide, raised_percent
from app.releases.statistics import difference
from app.releases.trials_store import CanaryShare, CanaryTask, TypicalCost
from tests.bench.canary_traffic_model import START, Case, Traffic, known_by
from tests.bench.results_file import RESULTS, write_results

CASES = {
    "equal": Case(),
    "0.7 to 0.5": Case(gain=-0.2),
    "0.7 to 0.5, a quarter of failures seen": Case(gain=-0.2, told=0.25),
    "0.7 to 0.5, no failure seen": Case(gain=-0.2, told=0.03),
    "0.7 to 0.6": Case(gain=-0.1),
    "0.7 to 0.75": Case(gain=0.05),
    "0.7 to 0.75, all tasks scored": Case(gain=0.05, feedback=1.0),
    "0.7 to 0.85": Case(gain=0.15),
    "equal, 30 % fewer tokens": Case(tokens=0.7),
    "equal, its tasks get four times the feedback": Case(feedback=0.05, favour=4.0),
}
Outcomes: TypeAlias = list[tuple[CanaryAction, float]]
"""What was decided, and after how many days."""

_DAYS, _LOOK = 14.0, 0.5
_COST = TypicalCost(10, 1_200)


def by_this_rule(rng: np.random.Generator, case: Case, *, passed_gate: bool) -> tuple[CanaryAction, float]:
    traffic = Traffic(rng, case)
    usual, shares, tasks = traffic.usual(), [CanaryShare(10.0, START)], list[CanaryTask]()
    for day in np.arange(_LOOK, _DAYS + _LOOK, _LOOK).tolist():
        tasks += traffic.tasks(shares[-1].percent / 100, day - _LOOK, day)
        now = START + timedelta(days=day)
        rules = CanaryRules(passed_gate=passed_gate, expired="its time is over" if day >= _DAYS else "")
        decision = decide(known_by(tasks, now), shares, usual, _COST, rules)
        if decision.action is not CanaryAction.WAIT:
            return decision.action, day
        shares = _raised(shares, decision, now)
    raise AssertionError("the trial has no end")


def _raised(shares: list[CanaryShare], decision: CanaryDecision, now: datetime) -> list[CanaryShare]:
    before = shares[-1].percent
    percent = raised_percent(decision.metrics["errors"], shares[0].percent, before)
    return shares if percent == before else [*shares, CanaryShare(percent, now)]


def by_two_means(rng: np.random.Generator, case: Case, days: float, look: float) -> tuple[CanaryAction, float]:
    traffic, tasks = Traffic(rng, case), list[CanaryTask]()
    for day in np.arange(look, days + look, look).tolist():
        tasks += traffic.tasks(0.1, day - look, day)
        action = _two_means(known_by(tasks, START + timedelta(days=day)))
        if action is not CanaryAction.WAIT:
            return action, day
    return _last_word(known_by(tasks, START + timedelta(days=days))), days


def _two_means(tasks: list[CanaryTask]) -> CanaryAction:
    reward = difference(*_arms(tasks, "reward", 1.0), 0.05 / 4)
    errors = difference(*_arms(tasks, "error", 1.0), 0.05 / 4)
    tokens = difference(*_arms(tasks, "tokens", 2 * _COST.tokens), 0.05 / 4)
    if (errors and errors.low > 0) or (reward and reward.high < 0):
        return CanaryAction.REJECT
    if reward and (reward.low > 0 or (reward.low >= -0.05 and tokens and tokens.high < 0)):
        return CanaryAction.PROMOTE
    return CanaryAction.WAIT


def _last_word(tasks: list[CanaryTask]) -> CanaryAction:
    """Promoted unless its means look worse by more than 0.05."""
    rewards, errors = (
        [np.mean(arm) if arm else 0.0 for arm in _arms(tasks, name, 1.0)] for name in ("reward", "error")
    )
    worse = rewards[0] < rewards[1] - 0.05 or errors[0] > errors[1] + 0.05
    return CanaryAction.REJECT if worse else CanaryAction.PROMOTE


def _arms(tasks: list[CanaryTask], name: str, ceiling: float) -> tuple[list[float], list[float]]:
    own, other = (
        [min(getattr(t, name) / ceiling, 1.0) for t in tasks if t.on_canary is on and getattr(t, name) is not None]
        for on in (True, False)
    )
    return own, other


def _share(count: int, runs: int) -> str:
    """With its 95 % interval (Wilson)."""
    z, rate = 1.96, count / runs
    middle, half = rate + z * z / 2 / runs, z * np.sqrt(rate * (1 - rate) / runs + z * z / 4 / runs**2)
    low, high = (max(0.0, middle + sign * half) / (1 + z * z / runs) for sign in (-1, 1))
    return f"{100 * rate:.0f} [{100 * low:.0f}, {100 * high:.0f}]"


RULES: dict[str, Callable[[np.random.Generator, Case], tuple[CanaryAction, float]]] = {
    "two means, 3 days": partial(by_two_means, days=3, look=0.5),
    "this rule": partial(by_this_rule, passed_gate=True),
    "gate=canary": partial(by_this_rule, passed_gate=False),
    "two means, 200 days": partial(by_two_means, days=200, look=5),
}
_LONG = "two means, 200 days"


def _simulated(case: Case, rules: Sequence[str], runs: int, long: int) -> dict[str, Outcomes]:
    found = {}
    for rule in rules:
        if rule == _LONG and case.gain != -0.2:
            continue
        rng = np.random.default_rng(1)
        found[rule] = [RULES[rule](rng, case) for _ in range(long if rule == _LONG else runs)]
    return found


def _row(name: str, found: Outcomes) -> dict[str, object]:
    counts = Counter(action.value for action, _ in found)
    shares = {each.value: _share(counts[each.value], len(found)) for each in list(CanaryAction)[:3]}
    days = np.quantile([day for _, day in found], [0.1, 0.5, 0.9]).round(1).tolist()
    print(
        f"  {name:20} {'  '.join(f'{what} {share:>13} %' for what, share in shares.items())}  days {days}",
        flush=True,
    )
    return {"runs": len(found), "percent": shares, "days_10_50_90": days}


def _earlier() -> dict[str, dict[str, object]]:
    found: dict[str, dict[str, object]] = json.loads((RESULTS / "canary.json").read_text())["cases"]
    return found


@click.command()
@click.option("--runs", default=300, show_default=True, help="of each case and rule")
@click.option("--long", default=20, show_default=True, help="runs of two means without an end, for the drops")
@click.option("--rule", "rules", multiple=True, type=click.Choice(list(RULES)), help="only this one, repeatable")
def main(runs: int, long: int, rules: tuple[str, ...]) -> None:
    """Simulate trials. Figures of rules that are not simulated stay as they are."""
    figures: dict[str, dict[str, object]] = _earlier() if rules else {}
    with ProcessPoolExecutor() as processes:
        every = processes.map(
            partial(_simulated, rules=rules or list(RULES), runs=runs, long=long), CASES.values()
        )
        for name, found in zip(CASES, every, strict=True):
            print(name)
            figures.setdefault(name, {}).update({rule: _row(rule, each) for rule, each in found.items()})
    write_results("canary", {"cases": figures})


if __name__ == "__main__":
    main()

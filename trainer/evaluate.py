"""What a policy can do, in the figures of the field: TGC, SGC, turns, tokens and use of skills, with intervals.

TGC is the share of tasks solved, SGC the share of scenarios with all tasks solved (AppWorld's measures). Pure.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence

import msgspec
import numpy as np


class TaskResult(msgspec.Struct, frozen=True, kw_only=True):
    """How one task went."""

    scenario: str
    template: str
    success: bool
    turns: int
    tokens: int  # generated
    stop: str
    offered: int  # skills put before the agent
    used: int  # of them, executed and returned
    wrote: int  # functions the agent defined that ran and returned


class Estimate(msgspec.Struct, frozen=True):
    """A mean with its 95 % interval, by bootstrap over scenarios."""

    mean: float
    low: float
    high: float


class Metrics(msgspec.Struct, frozen=True, kw_only=True):
    """Shares in percent; turns and tokens per task. None where no task qualified."""

    tasks: int
    scenarios: int
    tgc: Estimate
    sgc: Estimate
    turns: Estimate
    tokens: Estimate
    skill_usage: Estimate | None  # tasks that used a skill, of those offered any
    success_skill_usage: Estimate | None  # successes, of tasks that used a skill
    write_rate: Estimate | None  # tasks that wrote a function that ran, of those that used no skill


Measure = Callable[[Sequence[TaskResult]], tuple[float, float]]  # numerator and denominator of one scenario


def measure(results: Sequence[TaskResult], *, seed: int = 0, resamples: int = 2000) -> Metrics:
    """Summarise results. Raises ValueError on none: an evaluation of nothing has no figures."""
    if not results:
        raise ValueError("no results to measure")
    groups: dict[str, list[TaskResult]] = defaultdict(list)
    for result in results:
        groups[result.scenario].append(result)
    scenarios = list(groups.values())

    def estimate(of: Measure, scale: float = 100.0) -> Estimate | None:
        return _ratio(np.array([of(each) for each in scenarios]) * (scale, 1.0), seed, resamples)

    def surely(of: Measure, scale: float = 100.0) -> Estimate:
        found = estimate(of, scale)
        assert found is not None  # every scenario has tasks
        return found

    return Metrics(
        tasks=len(results),
        scenarios=len(scenarios),
        tgc=surely(lambda tasks: (sum(task.success for task in tasks), len(tasks))),
        sgc=surely(lambda tasks: (all(task.success for task in tasks), 1)),
        turns=surely(lambda tasks: (sum(task.turns for task in tasks), len(tasks)), 1.0),
        tokens=surely(lambda tasks: (sum(task.tokens for task in tasks), len(tasks)), 1.0),
        skill_usage=estimate(
            lambda tasks: (sum(task.used > 0 for task in tasks), sum(task.offered > 0 for task in tasks))
        ),
        success_skill_usage=estimate(
            lambda tasks: (
                sum(task.success for task in tasks if task.used),
                sum(task.used > 0 for task in tasks),
            )
        ),
        write_rate=estimate(
            lambda tasks: (
                sum(task.wrote > 0 for task in tasks if not task.used),
                sum(task.used == 0 for task in tasks),
            )
        ),
    )


def _ratio(
    pairs: "np.ndarray[tuple[int, int], np.dtype[np.float64]]", seed: int, resamples: int
) -> Estimate | None:
    """Ratio of sums over S scenarios, pairs (S, 2); resampled with whole scenarios."""
    total = pairs.sum(0)
    if total[1] == 0:
        return None
    draws = np.random.default_rng(seed).integers(0, len(pairs), (resamples, len(pairs)))
    sums = pairs[draws].sum(1)  # (resamples, 2)
    ratios = sums[sums[:, 1] > 0]
    low, high = np.quantile(ratios[:, 0] / ratios[:, 1], [0.025, 0.975])
    return Estimate(float(total[0] / total[1]), float(low), float(high))

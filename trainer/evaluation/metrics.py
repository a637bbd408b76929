"""Metrics of a policy with 95 % intervals: TGC, SGC, turns, tokens and use of skills; also as a Markdown table.

TGC is the share of tasks solved, SGC the share of scenarios with all tasks solved (both as in AppWorld).

Intervals are by bootstrap over whole scenarios, and over seeds where there are several. Results of one
scenario's tasks are correlated, so scenarios are resampled, not tasks. Where several seeds were evaluated on
the same scenarios, one resample of scenarios is used for all seeds: easy scenarios are easy for each. Of K
seeds K - 1 are drawn, which makes the variance of the mean unbiased (Rao and Wu 1988); drawing K of a handful
understates it. Resampling both ways counts the variance of single answers more than once (Owen 2007): intervals
are too wide, by about a tenth where all seeds share 200 scenarios, by up to a half where each has its own.
"""

from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from app.base.errors import InvalidError

Floats = NDArray[np.float64]
_TAIL = 0.025  # on each side of an interval
_RESAMPLES = 2000
LABELS = {
    "tgc": "TGC, %",
    "sgc": "SGC, %",
    "turns": "turns per task",
    "tokens": "generated tokens per task",
    "skill_usage": "tasks that used a skill, of those that were offered any, %",
    "success_skill_usage": "successes, of tasks that used a skill, %",
    "write_rate": "wrote a function that ran, of tasks that used no skill, %",
    "library_size": "skills at the end of a chain",
    "distinct_used": "different skills used in a chain that was offered any",
}


class Estimate(msgspec.Struct, frozen=True):
    """A mean with its 95 % interval, by bootstrap over scenarios."""

    mean: float
    low: float
    high: float

    @property
    def signed(self) -> str:
        """Of a difference."""
        return f"{self.mean:+.1f} [{self.low:+.1f}, {self.high:+.1f}]"


class Resamples:
    """The R resamples of S scenarios and K seeds, shared by all metrics of an evaluation."""

    def __init__(self, scenarios: int, seeds: int, *, seed: int, resamples: int) -> None:
        rng = np.random.default_rng(seed)
        drawn = rng.integers(0, scenarios, (resamples, scenarios))
        self._counts = np.stack([np.bincount(each, minlength=scenarios) for each in drawn])  # (R, S)
        self._seeds = rng.integers(0, seeds, (resamples, max(1, seeds - 1)))  # (R, K - 1)

    def estimate(self, table: Floats) -> Estimate | None:
        """The ratio of sums, averaged over seeds; None where no task counts.

        `table` (K, S, 2) holds numerators and denominators, 0 / 0 where a seed has no result for a scenario.
        """
        mean = _mean(_ratios(table.sum(1)))
        if np.isnan(mean):
            return None
        return _estimate(mean, self._resampled(table))

    def difference(self, first: Floats, second: Floats) -> Estimate:
        """`first` minus `second`: tables of the same seeds and scenarios, each with a ratio."""
        mean = _mean(_ratios(first.sum(1))) - _mean(_ratios(second.sum(1)))
        return _estimate(mean, self._resampled(first) - self._resampled(second))

    def _resampled(self, table: Floats) -> Floats:
        """(R,), nan where no task of a resample counts."""
        sums = np.einsum("rs,ksc->rkc", self._counts, table, optimize=True)
        return _means(np.take_along_axis(_ratios(sums), self._seeds, axis=1))


def exact_where_flat(estimate: Estimate, scenarios: int) -> Estimate:
    """A share in percent of so many scenarios. At 0 or 100, where the bootstrap has no width, it gets the exact
    interval over scenarios (Clopper and Pearson 1934).

    >>> exact_where_flat(Estimate(0, 0, 0), 8)
    Estimate(mean=0, low=0, high=36.9)
    """
    bound = round(100 * (1 - _TAIL ** (1 / scenarios)), 1)
    match estimate.mean:
        case 0:
            return msgspec.structs.replace(estimate, high=bound)
        case 100:
            return msgspec.structs.replace(estimate, low=100 - bound)
    return estimate


def tabulate(runs: Sequence[dict[str, tuple[float, float]]], scenarios: Sequence[str], scale: float) -> Floats:
    """One numerator and denominator per seed and scenario, (K, S, 2); 0 / 0 where a seed has no result for it."""
    cells = [[run.get(name, (0.0, 0.0)) for name in scenarios] for run in runs]
    return np.array(cells, dtype=np.float64) * (scale, 1.0)


def _ratios(sums: Floats) -> Floats:
    """(..., 2) to (...), nan for a denominator of 0."""
    below = np.where(sums[..., 1] > 0, sums[..., 1], np.nan)
    return np.asarray(sums[..., 0] / below)


def _means(values: Floats) -> Floats:
    """(R, K) to (R,), ignoring nan; nan where all values are."""
    known = ~np.isnan(values)
    count = known.sum(1)
    return np.where(count > 0, np.where(known, values, 0).sum(1) / np.maximum(count, 1), np.nan)


def _mean(values: Floats) -> float:
    return float(_means(values[None])[0])


def _estimate(mean: float, resampled: Floats) -> Estimate:
    low, high = np.quantile(resampled[~np.isnan(resampled)], [_TAIL, 1 - _TAIL])
    return Estimate(mean, float(low), float(high))


class TaskResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one evaluated task."""

    scenario: str
    template: str
    success: bool
    turns: int
    tokens: int  # generated
    stop: str
    offered: int  # skills in the prompt
    used: int  # of them, that ran and returned
    wrote: int  # functions of its own that ran and returned, as their process claims: shown, but decides nothing
    names: tuple[str, ...] = ()  # of the used skills
    library: int | None = None  # skills at the end of its chain; None without a library
    known: bool = True  # False: it can be told neither to have succeeded nor to have failed


Report: TypeAlias = Callable[[int], object]
Evaluate: TypeAlias = Callable[[int, bool, Report], Awaitable[list[TaskResult]]]
"""One evaluation, by its seed, with the library on or off.

The report is called with 0 at the start, then with the number of tasks done since its last call.
"""


class PolicyMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """Shares in percent; turns and tokens per task. None where no task counts."""

    tasks: int
    scenarios: int
    seeds: int = 1
    tgc: Estimate
    sgc: Estimate
    turns: Estimate
    tokens: Estimate
    skill_usage: Estimate | None  # tasks that used a skill, of those that were offered any
    success_skill_usage: Estimate | None  # successes, of tasks that used a skill
    write_rate: Estimate | None  # tasks that wrote a function that ran, of those that used no skill
    library_size: Estimate | None = None  # skills at the end of a chain, of chains with a library
    distinct_used: Estimate | None = None  # different skills used in a chain that was offered any


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Candidate minus incumbent on the same scenarios: percentage points; turns and tokens per task."""

    scenarios: int
    tgc: Estimate
    sgc: Estimate
    turns: Estimate
    tokens: Estimate
    gained: int  # scenarios that only the candidate solved, over all seeds
    lost: int  # scenarios that only the incumbent solved


Measure = Callable[[Sequence[TaskResult]], tuple[float, float]]  # numerator and denominator of one scenario
_Chains = dict[str, list[TaskResult]]  # the tasks of one seed by scenario

_ALWAYS: dict[str, tuple[Measure, float]] = {
    "tgc": (lambda tasks: (sum(task.success for task in tasks), len(tasks)), 100.0),
    "sgc": (lambda tasks: (all(task.success for task in tasks), 1), 100.0),
    "turns": (lambda tasks: (sum(task.turns for task in tasks), len(tasks)), 1.0),
    "tokens": (lambda tasks: (sum(task.tokens for task in tasks), len(tasks)), 1.0),
}
"""Metrics to which every scenario contributes."""

_IF_ANY: dict[str, tuple[Measure, float]] = {
    "skill_usage": (
        lambda tasks: (sum(task.used > 0 for task in tasks), sum(task.offered > 0 for task in tasks)),
        100.0,
    ),
    "success_skill_usage": (
        lambda tasks: (sum(task.success for task in tasks if task.used), sum(task.used > 0 for task in tasks)),
        100.0,
    ),
    "write_rate": (
        lambda tasks: (
            sum(task.wrote > 0 for task in tasks if not task.used),
            sum(task.used == 0 for task in tasks),
        ),
        100.0,
    ),
    "library_size": (
        lambda tasks: (max(task.library or 0 for task in tasks), any(task.library is not None for task in tasks)),
        1.0,
    ),
    "distinct_used": (
        lambda tasks: (len({name for task in tasks for name in task.names}), any(task.offered for task in tasks)),
        1.0,
    ),
}


def measure(results: Sequence[TaskResult]) -> PolicyMetrics:
    """Metrics of one evaluation. Raises ValueError where there are no results."""
    return measure_runs([results])


def measure_runs(runs: Sequence[Sequence[TaskResult]]) -> PolicyMetrics:
    """Means over several seeds, equally weighted. Raises ValueError where one of them has no results."""
    chains = _by_scenario(runs)
    names = _names(chains)
    draws = Resamples(len(names), len(chains), seed=0, resamples=_RESAMPLES)
    always = {name: draws.estimate(_table(chains, names, *how)) for name, how in _ALWAYS.items()}
    if_any = {name: draws.estimate(_table(chains, names, *how)) for name, how in _IF_ANY.items()}
    counts = {"tasks": sum(map(len, runs)), "scenarios": len(names), "seeds": len(runs)}
    return msgspec.convert(counts | always | if_any, PolicyMetrics)


def with_exact_shares(metrics: PolicyMetrics) -> PolicyMetrics:
    """For tables: a TGC or SGC of 0 or 100 % has its exact interval, instead of one without width."""
    exact = {name: exact_where_flat(getattr(metrics, name), metrics.scenarios) for name in ("tgc", "sgc")}
    return msgspec.structs.replace(metrics, **exact)


def compare(candidate: Sequence[TaskResult], incumbent: Sequence[TaskResult]) -> Comparison:
    """Paired by scenario. Raises InvalidError where the results are not of the same tasks."""
    return compare_runs([candidate], [incumbent])


def compare_runs(
    candidates: Sequence[Sequence[TaskResult]], incumbents: Sequence[Sequence[TaskResult]]
) -> Comparison:
    """The mean difference over seeds, paired by seed (in order) and by scenario.

    Raises InvalidError where paired results are not of the same tasks.
    """
    if len(candidates) != len(incumbents):
        raise InvalidError(
            f"{len(candidates)} seeds cannot be paired with {len(incumbents)}: evaluate both on as many"
        )
    first, second = _by_scenario(candidates), _by_scenario(incumbents)
    for one, other in zip(first, second, strict=True):
        _check_same_tasks(one, other)
    names = _names(first)
    draws = Resamples(len(names), len(first), seed=0, resamples=_RESAMPLES)
    differences = {
        name: draws.difference(_table(first, names, *how), _table(second, names, *how))
        for name, how in _ALWAYS.items()
    }
    return Comparison(
        scenarios=len(names), **differences, gained=_solved_alone(first, second), lost=_solved_alone(second, first)
    )


def _by_scenario(runs: Sequence[Sequence[TaskResult]]) -> list[_Chains]:
    if not runs or not all(runs):
        raise ValueError("no results to measure")
    grouped: list[_Chains] = []
    for results in runs:
        chains: _Chains = defaultdict(list)
        for result in results:
            chains[result.scenario].append(result)
        grouped.append(chains)
    return grouped


def _names(runs: Sequence[_Chains]) -> list[str]:
    """Each scenario once, in order of first appearance."""
    return list(dict.fromkeys(name for chains in runs for name in chains))


def _table(runs: Sequence[_Chains], names: Sequence[str], of: Measure, scale: float) -> Floats:
    return tabulate([{name: of(tasks) for name, tasks in chains.items()} for chains in runs], names, scale)


def _check_same_tasks(one: _Chains, other: _Chains) -> None:
    tasks = [Counter({name: len(results) for name, results in chains.items()}) for chains in (one, other)]
    if odd := sorted((tasks[0] - tasks[1]) + (tasks[1] - tasks[0])):
        raise InvalidError(
            f"the results are not of the same tasks: they differ in {len(odd)} scenarios, such as {odd[0]}; "
            "evaluate both with the same seed"
        )


def _solved_alone(runs: Sequence[_Chains], others: Sequence[_Chains]) -> int:
    """Scenarios with all tasks solved in `runs` and not in `others`."""
    return sum(
        all(task.success for task in tasks) and not all(task.success for task in other[name])
        for chains, other in zip(runs, others, strict=True)
        for name, tasks in chains.items()
    )


def metrics_table(columns: dict[str, PolicyMetrics], labels: dict[str, str] | None = None, head: str = "") -> str:
    """A row per metric, a column per policy, each cell a mean with its 95 % interval, which is exact for a TGC or
    SGC of 0 or 100 %.

    `labels` names the metrics to show, by default all; `head` is the heading of their column.
    """
    first = next(iter(columns.values()))
    seeds = f"{first.seeds} seeds, " if first.seeds > 1 else ""
    head = head or f"{seeds}{first.scenarios} scenarios, {first.tasks} tasks"
    exact = [with_exact_shares(each) for each in columns.values()]
    rows = [
        f"| {label} | " + " | ".join(in_words(getattr(metrics, name)) for metrics in exact) + " |"
        for name, label in (labels or LABELS).items()
    ]
    top = f"| {head} | " + " | ".join(columns) + " |"
    return "\n".join([top, "|---" * (len(columns) + 1) + "|", *rows])


def in_words(estimate: Estimate | None) -> str:
    return f"{estimate.mean:.1f} [{estimate.low:.1f}, {estimate.high:.1f}]" if estimate else "-"

"""What a simulation showed: success by day, releases and their fates, and the difference that learning made."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import groupby
from statistics import fmean

import msgspec

from trainer.evaluation.metrics import Estimate, Resamples, tabulate
from trainer.worlds.simulate_live.simulation import Day, SimulationState

_AT_THE_END = 10  # days that are compared
_AT_THE_START = 5
_SMOOTHED = 5  # days of a point of the chart
_TOLERATED = 2.0  # points that success may be lower before the days count
_RESAMPLES = 2_000


class ArmFindings(msgspec.Struct, frozen=True, kw_only=True):
    """One arm of several seeds. Success is in percent of the tasks."""

    seeds: int
    days: int
    start: float  # over the first days
    end: float  # over the last days
    lowest: float  # mean of any `_SMOOTHED` consecutive days, relative to the start
    days_below_start: int  # longest time in which such means were over `_TOLERATED` points below the start
    days_below_off: int  # the same, below the arm without training on the same days
    promoted: int
    rejected: int
    rolled_back: int
    trial_days: list[int]  # from a canary's first day to its decision
    over_off: Estimate | None  # minus the arm without training at the end, on the same tasks


def findings(runs: Sequence[SimulationState]) -> dict[str, ArmFindings]:
    """By arm, over the simulations of all seeds."""
    return {arm: _of_arm(arm, [(run, _days(run, arm)) for run in runs]) for arm in _arms(runs)}


def curves(runs: Sequence[SimulationState]) -> dict[str, list[list[tuple[int, float]]]]:
    """For each arm and seed: day and success, over the days up to it."""
    return {arm: [_curve(_days(run, arm)) for run in runs if _days(run, arm)] for arm in _arms(runs)}


def success_by_day(runs: Sequence[SimulationState]) -> dict[str, dict[int, list[float]]]:
    """For each arm and seed: the percentage of tasks that were solved on each day, from the first one on."""
    return {
        arm: {
            run.plan.seed: [round(_success([day]), 2) for day in days] for run in runs if (days := _days(run, arm))
        }
        for arm in _arms(runs)
    }


def as_markdown(found: dict[str, ArmFindings]) -> str:
    head = (
        "| | seeds | days | solved at first, % | at the end, % | lowest, points from the start "
        f"| days in a row over {_TOLERATED:.0f} points below the start | below no training "
        "| promoted | rejected | rolled back | days to a decision | over no training, points |"
    )
    lines = [head, "|---" * 13 + "|"]
    for arm, each in found.items():
        cells = [
            str(each.seeds),
            str(each.days),
            f"{each.start:.1f}",
            f"{each.end:.1f}",
            f"{each.lowest:+.1f}",
            *map(str, (each.days_below_start, each.days_below_off)),
            *map(str, (each.promoted, each.rejected, each.rolled_back)),
            ", ".join(map(str, each.trial_days)) or "-",
            each.over_off.signed if each.over_off else "-",
        ]
        lines.append(f"| {arm} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _arms(runs: Sequence[SimulationState]) -> list[str]:
    """In the order in which they first had a day."""
    return list(dict.fromkeys(day.arm for run in runs for day in run.days))


def _of_arm(arm: str, runs: Sequence[tuple[SimulationState, list[Day]]]) -> ArmFindings:
    have = [days for _, days in runs if days]
    fates, trials = zip(*map(_fates, have), strict=True)
    became = sum(fates, Counter[str]())
    starts = [_success(days[:_AT_THE_START]) for days in have]
    smooth = [_smooth(days) for days in have]
    off = [_smooth(_days(run, "off")) for run, days in runs if days]
    return ArmFindings(
        seeds=len(have),
        days=min(len(days) for days in have),
        start=fmean(starts),
        end=fmean(_success(days[-_AT_THE_END:]) for days in have),
        lowest=min(min(values, default=start) - start for values, start in zip(smooth, starts, strict=True)),
        days_below_start=max(
            _longest(value < start - _TOLERATED for value in values)
            for values, start in zip(smooth, starts, strict=True)
        ),
        days_below_off=max(
            _longest(value < other - _TOLERATED for value, other in zip(values, others, strict=False))
            for values, others in zip(smooth, off, strict=True)
        ),
        promoted=became["promoted"],
        rejected=became["rejected"],
        rolled_back=became["rolled_back"],
        trial_days=[days for each in trials for days in each],
        over_off=_over_off(arm, runs),
    )


def _over_off(arm: str, runs: Sequence[tuple[SimulationState, list[Day]]]) -> Estimate | None:
    """By bootstrap over kinds, of the same days of both, in simulations that have the arm."""
    if arm == "off":
        return None
    pairs = [(_by_kind(days), _by_kind(_days(run, "off")[: len(days)])) for run, days in runs if days]
    kinds = sorted({kind for own, other in pairs for kind in own.keys() & other.keys()})
    if not kinds:
        return None
    resamples = Resamples(len(kinds), len(pairs), seed=0, resamples=_RESAMPLES)
    own, other = (tabulate([pair[side] for pair in pairs], kinds, 100) for side in (0, 1))
    return resamples.difference(own, other)


def _by_kind(days: Sequence[Day]) -> dict[str, tuple[float, float]]:
    """Solved and all tasks of the last days."""
    found: dict[str, tuple[float, float]] = defaultdict(lambda: (0.0, 0.0))
    for day in days[-_AT_THE_END:]:
        for kind, solved in zip(day.kinds, day.solved, strict=True):
            found[kind] = found[kind][0] + solved, found[kind][1] + 1
    return dict(found)


def _fates(days: Sequence[Day]) -> tuple[Counter[str], list[int]]:
    """What became of releases, by their states in the evenings: how often which, and how long trials took."""
    states: dict[str, list[str]] = defaultdict(list)
    began: dict[str, int] = {}
    trials = []
    for day in days:
        for number, state in day.releases.items():
            if states[number] and states[number][-1] == "canary" and state != "canary":
                trials.append(day.day - began[number])
            if state == "canary":
                began.setdefault(number, day.day)
            states[number].append(state)
    new = [each for each in states.values() if each[0] != "active"]
    served = [each for each in new if "active" in each]
    rejected = sum("rejected" in each and "active" not in each for each in new)
    rolled_back = sum("rejected" in each for each in served)
    return Counter(promoted=len(served), rejected=rejected, rolled_back=rolled_back), trials


def _days(run: SimulationState, arm: str) -> list[Day]:
    return sorted((day for day in run.days if day.arm == arm), key=lambda day: day.day)


def _success(days: Sequence[Day]) -> float:
    return 100 * fmean(float(solved) for day in days for solved in day.solved)


def _curve(days: Sequence[Day]) -> list[tuple[int, float]]:
    return [(day.day, _success(days[max(0, end - _SMOOTHED) : end])) for end, day in enumerate(days, 1)]


def _smooth(days: Sequence[Day]) -> list[float]:
    """The means of `_SMOOTHED` consecutive days."""
    return [value for _, value in _curve(days)[_SMOOTHED - 1 :]]


def _longest(holds: Iterable[bool]) -> int:
    """How often in a row it held at most."""
    return max((len(list(run)) for held, run in groupby(holds) if held), default=0)

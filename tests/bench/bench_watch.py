"""How often a watch rolls back a release that is as good as the one before, and after how many tasks a worse one.

python tests/bench/bench_watch.py [--runs 100]

By simulation. Twelve scenarios, each with a rate of success of its own; the mix of them is drawn anew for each
release, so the traffic changes. The watch looks after every 50 tasks.
"""

import statistics
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import click
import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parents[2]))

from app.releases.trials_store import WatchedTask
from app.releases.watch import WatchAction, WatchRules, decide
from tests.bench.results_file import write_results

_START = datetime(2026, 1, 1, tzinfo=UTC)
_SCENARIOS, _BEFORE, _NOW, _LOOK = 12, 2_000, 1_000, 50
_CASES = {"no change": (0.0, 0.05), "no change, margin 0": (0.0, 0.0), "-0.2": (0.2, 0.05), "-0.4": (0.4, 0.05)}


def _tasks(rng: np.random.Generator, count: int, rates: NDArray[np.float64]) -> Sequence[WatchedTask]:
    mix = rng.dirichlet(np.ones(rates.size))
    kinds = rng.choice(rates.size, count, p=mix)
    scores = (rng.random(count) < rates[kinds]).astype(float)
    return [
        WatchedTask(str(kind), score, _START + timedelta(seconds=at), 0.0, 3)
        for at, (kind, score) in enumerate(zip(kinds.tolist(), scores.tolist(), strict=True))
    ]


def _rolled_back_after(rng: np.random.Generator, drop: float, rules: WatchRules) -> int | None:
    """The number of tasks; None if it never was."""
    rates = rng.uniform(0.5, 0.9, _SCENARIOS)
    before, now = _tasks(rng, _BEFORE, rates), _tasks(rng, _NOW, rates - drop)
    for count in range(_LOOK, _NOW + 1, _LOOK):
        if decide(before, now[:count], rules).action is WatchAction.ROLL_BACK:
            return count
    return None


@click.command()
@click.option("--runs", default=100, show_default=True, help="of each case")
def main(runs: int) -> None:
    """Simulate watches."""
    figures: dict[str, object] = {}
    for name, (drop, margin) in _CASES.items():
        rng, rules = np.random.default_rng(1), WatchRules(margin=margin)
        found = [_rolled_back_after(rng, drop, rules) for _ in range(runs)]
        after = [each for each in found if each is not None]
        median = statistics.median(after) if after else None
        figures[name] = {"runs": runs, "rolled_back": len(after), "median_tasks": median}
        print(f"{name}: rolled back {len(after)} of {runs}, median after {median} tasks")
    write_results("watch", {"cases": figures})


if __name__ == "__main__":
    main()

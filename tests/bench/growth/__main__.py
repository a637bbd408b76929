"""How the costs of a deployment grow with what it holds and does: figures, and pictures of them.

    pip install matplotlib
    python -m tests.bench.growth [--only SERIES] [--again]

Each series takes minutes to an hour. Figures that results/growth.json has already are kept, so an interrupted
measurement goes on where it was; `--again` measures them once more.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import click

from tests.bench import bench_lists, bench_retrieval
from tests.bench.growth import crowd, trajectories
from tests.bench.growth.pictures import draw
from tests.bench.results_file import RESULTS, write_results

_PICTURE = Path(__file__).parents[3] / "app" / "manual" / "images" / "growth.svg"


class Series(NamedTuple):
    measure: Callable[[Sequence[int]], Iterator[tuple[int, float]]]
    sizes: Sequence[int]
    of: str
    unit: str


def _lists(sizes: Sequence[int]) -> Iterator[tuple[int, float]]:
    """The p99 of the slowest list, by the number of tasks."""
    for size in sizes:
        yield size, max(each["cpu_p99_ms"] for each in bench_lists.measure(size)["lists"].values())


def _searches(sizes: Sequence[int]) -> Iterator[tuple[int, float]]:
    """The p99 of an exact search by n-grams, by the number of skills."""
    for size in sizes:
        yield size, bench_retrieval.measure(size)["ngrams_ms_99"]


SERIES = {
    "at_once": Series(crowd.at_once, (1, 4, 16, 64, 250, 1000), "tasks at once", "ms of CPU a task"),
    "replicas": Series(crowd.replicas, (1, 2, 3, 4), "model servers", "ms of CPU a task"),
    "tasks": Series(
        _lists, (1_000, 10_000, 100_000, 1_000_000, 10_000_000), "tasks stored", "ms of CPU, slowest list, p99"
    ),
    "skills": Series(
        _searches, (1_000, 10_000, 100_000, 1_000_000), "skills", "ms of CPU to search their n-grams, p99"
    ),
    "trajectories": Series(
        trajectories.read,
        (300, 1_000, 3_000, 5_000),
        "trajectories trained on",
        "µs of CPU to read one",
    ),
}


@click.command()
@click.option("--only", type=click.Choice(list(SERIES)), help="one series; otherwise all")
@click.option("--again", is_flag=True, help="measure what has been measured, too")
@click.option("--up-to", type=int, help="the largest size; otherwise as in the manual")
def main(only: str | None, up_to: int | None, *, again: bool) -> None:
    """Measure how costs grow, and draw it."""
    path = RESULTS / "growth.json"
    figures: dict[str, dict[str, float]] = json.loads(path.read_text())["series"] if path.exists() else {}
    for name in [only] if only else SERIES:
        series = SERIES[name]
        known = figures.setdefault(name, {})
        sizes = [size for size in series.sizes if (up_to or size) >= size and (again or str(size) not in known)]
        print(f"{name}: {sizes or 'all known'}", flush=True)
        for size, cost in series.measure(sizes) if sizes else ():
            known[str(size)] = round(cost, 3)
            print(f"{size:12,} {series.of}: {cost:10.2f} {series.unit}", flush=True)
            write_results("growth", {"series": figures})
    panels = {
        each.of: (each.unit, sorted((int(size), cost) for size, cost in figures[name].items()))
        for name, each in SERIES.items()
        if figures.get(name)
    }
    draw(_PICTURE, panels)


if __name__ == "__main__":
    main()

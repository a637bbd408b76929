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

from tests.bench.growth import crowd, trajectories
from tests.bench.growth.pictures import draw
from tests.bench.results_file import RESULTS, write_results

_PICTURE = Path(__file__).parents[3] / "app" / "manual" / "images" / "growth.svg"


class Series(NamedTuple):
    measure: Callable[[Sequence[int]], Iterator[tuple[int, float]]]
    sizes: Sequence[int]
    of: str
    unit: str


SERIES = {
    "at_once": Series(crowd.at_once, (1, 4, 16, 64, 250, 1000), "tasks at once", "ms of CPU a task"),
    "replicas": Series(crowd.replicas, (1, 2, 3, 4), "model servers", "ms of CPU a task"),
    "trajectories": Series(
        trajectories.read,
        (1_000, 3_000, 10_000, 30_000, 100_000),
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

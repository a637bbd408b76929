"""Costs by size, a panel for each series, on logarithmic axes."""

from collections.abc import Mapping, Sequence
from pathlib import Path


def draw(path: Path, panels: Mapping[str, tuple[str, Sequence[tuple[int, float]]]]) -> None:
    """Write an SVG. `panels`: by what grows, the unit of the cost and the cost by size, smallest first.

    A dashed line shows what a cost in proportion to the size would be.
    """
    import matplotlib as mpl  # type: ignore[import-not-found]  # noqa: PLC0415  only for this
    from matplotlib import pyplot  # noqa: PLC0415

    mpl.use("svg")
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "sage", "font.size": 9})
    figure, axes = pyplot.subplots(
        -(-len(panels) // 3), 3, figsize=(10, 3.2 * -(-len(panels) // 3)), squeeze=False
    )
    for axis in axes.flat[len(panels) :]:
        axis.set_visible(False)
    for axis, (of, (unit, points)) in zip(axes.flat, panels.items(), strict=False):
        sizes, costs = zip(*points, strict=True)
        axis.loglog(sizes, [costs[0] * size / sizes[0] for size in sizes], "--", color="#bbbbbb", linewidth=1)
        axis.loglog(sizes, costs, "o-", color="#0b6e4f", markersize=4)
        axis.set(xlabel=of, ylabel=unit, ylim=(min(costs) / 3, max(costs) * 3))
        axis.grid(visible=True, which="major", color="#eeeeee")
    figure.tight_layout()
    figure.savefig(path, format="svg", metadata={"Date": None})

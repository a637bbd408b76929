"""Columns over days, stacked where there are several series, drawn as other charts are. Pure.

The macro `column_chart` of `charts.html` draws them.
"""

from collections.abc import Callable, Sequence
from itertools import accumulate

import msgspec

from app.console.charts import HEIGHT, number_axis

_MOST_TICKS = 6
_SHARE = 0.72  # of its place that a column is wide


class Column(msgspec.Struct, frozen=True):
    """What is above one label: a value for each series."""

    label: str
    values: Sequence[float]


class DrawnColumn(msgspec.Struct, frozen=True):
    """A part of a column: `x` and `width` in percent, `y` and `height` in pixels."""

    series: int  # from 1
    x: float
    width: float
    y: float
    height: float
    title: str


class ColumnChart(msgspec.Struct, frozen=True):
    label: str
    names: Sequence[str]  # of the series
    parts: list[DrawnColumn]
    x_ticks: list[tuple[float, str, str]]  # percent, text, anchor
    y_ticks: list[tuple[float, str]]  # pixels, text


def column_chart(
    label: str, names: Sequence[str], columns: Sequence[Column], text: Callable[[float], str]
) -> ColumnChart:
    """`text` shows a value."""
    axis = number_axis([sum(each.values) for each in columns] or [0.0], text)
    place = 100 / max(1, len(columns))
    parts: list[DrawnColumn] = []
    for number, column in enumerate(columns):
        x, width = place * (number + (1 - _SHARE) / 2), place * _SHARE
        tops = accumulate(column.values)
        for series, (value, top) in enumerate(zip(column.values, tops, strict=True), start=1):
            if value:
                title = f"{column.label}: {text(value)} {names[series - 1]}"
                y, height = (1 - axis.share(top)) * HEIGHT, (axis.share(top) - axis.share(top - value)) * HEIGHT
                parts.append(
                    DrawnColumn(series, round(x, 2), round(width, 2), round(y, 1), round(height, 1), title)
                )
    return ColumnChart(
        label=label,
        names=names,
        parts=parts,
        x_ticks=_ticks(columns, place),
        y_ticks=[(round((1 - axis.share(value)) * HEIGHT, 1), shown) for value, shown in axis.ticks],
    )


def _ticks(columns: Sequence[Column], place: float) -> list[tuple[float, str, str]]:
    """The last label, and as many before it as there is room for."""
    every = -(-len(columns) // _MOST_TICKS) or 1
    shown = range(len(columns) - 1, -1, -every)
    return [(round(place * (number + 0.5), 2), columns[number].label, "middle") for number in reversed(shown)]

"""Charts as pictures that carry their numbers: where everything is drawn, in percent across and pixels down.

Pure. The macros of `charts.html` draw them; a table of the same numbers is behind each, and a file of them.
"""

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from itertools import accumulate
from math import ceil, floor, log10
from typing import Protocol

import msgspec

HEIGHT = 160.0  # pixels of the area between the axes
_LABEL_ROOM = 7.0  # percent of the width that the label of a mark takes
_MOST_TICKS = 6
_SHARE = 0.72  # of its place that a column is wide
_HOUR, _DAY = 3_600.0, 86_400.0


class Axis(msgspec.Struct, frozen=True):
    low: float
    high: float
    ticks: tuple[tuple[float, str], ...]

    def share(self, value: float) -> float:
        """Where the value lies, from 0 to 1."""
        return min(1.0, max(0.0, (value - self.low) / (self.high - self.low)))


class Point(msgspec.Struct, frozen=True):
    """`title` is shown for it. A point without `y` interrupts its line; `low` and `high` are its interval."""

    x: float
    y: float | None
    title: str
    low: float | None = None
    high: float | None = None


class Series(msgspec.Struct, frozen=True):
    name: str
    points: Sequence[Point]


class Mark(msgspec.Struct, frozen=True):
    """Something that happened, such as a release: a line across the chart."""

    x: float
    label: str
    title: str


class DrawnSeries(msgspec.Struct, frozen=True):
    """`lines` and `bands` are the coordinates of polylines and polygons, x in thousandths of the width."""

    name: str
    lines: list[str]
    bands: list[str]
    dots: list[tuple[float, float, str]]  # percent, pixels, title


class LineChart(msgspec.Struct, frozen=True):
    label: str
    series: list[DrawnSeries]
    marks: list[tuple[float, str, str]]  # percent, label or "" where it has no room, title
    x_ticks: list[tuple[float, str, str]]  # percent, text, anchor
    y_ticks: list[tuple[float, str]]  # pixels, text


class Bounds(Protocol):
    """A mean with its confidence bounds."""

    @property
    def low(self) -> float: ...
    @property
    def mean(self) -> float: ...
    @property
    def high(self) -> float: ...


class DrawnInterval(msgspec.Struct, frozen=True):
    """In percent of the width."""

    zero: float
    low: float
    mean: float
    high: float


def line_chart(label: str, series: Iterable[Series], x: Axis, y: Axis, marks: Iterable[Mark] = ()) -> LineChart:
    """Points outside the axes are drawn at their ends, marks outside of `x` are left out."""
    shown = sorted((mark for mark in marks if x.low <= mark.x <= x.high), key=lambda mark: mark.x)
    return LineChart(
        label=label,
        series=[_draw(each, x, y) for each in series],
        marks=_labelled([(x.share(mark.x) * 100, mark) for mark in shown]),
        x_ticks=[(round(x.share(value) * 100, 2), text, _anchor(x.share(value))) for value, text in x.ticks],
        y_ticks=[(_down(y, value), text) for value, text in y.ticks],
    )


def draw_intervals(intervals: Sequence[Bounds | None]) -> list[DrawnInterval | None]:
    """Each on one axis around zero, so that they can be compared.

    >>> draw_intervals([DrawnInterval(0, -1, 0, 1), None, DrawnInterval(0, 1, 2, 3)])[2]
    DrawnInterval(zero=25.0, low=50.0, mean=75.0, high=100.0)
    """
    ends = [end for each in intervals if each is not None for end in (each.low, each.high)]
    low, high = min([0.0, *ends]), max([0.0, *ends])
    axis = Axis(low, high if high > low else low + 1, ())

    def at(value: float) -> float:
        return round(axis.share(value) * 100, 2)

    return [
        None if each is None else DrawnInterval(at(0), at(each.low), at(each.mean), at(each.high))
        for each in intervals
    ]


def percent_axis() -> Axis:
    return Axis(0.0, 1.0, ((0.0, "0"), (0.5, "50"), (1.0, "100 %")))


def number_axis(values: Iterable[float], text: Callable[[float], str], *, zero: bool = True) -> Axis:
    """An axis with round ticks around the values.

    >>> number_axis([3, 97], str).ticks
    ((0.0, '0.0'), (50.0, '50.0'), (100.0, '100.0'))
    >>> number_axis([0.21, 0.27], str, zero=False).ticks[0]
    (0.2, '0.2')
    """
    known = list(values) or [0.0]
    low, high = min([0.0, *known] if zero else known), max([0.0, *known] if zero else known)
    step = _round_step((high - low) / 2 or abs(high) or 1.0)
    first, last = floor(low / step), ceil(high / step)
    last = max(last, first + 1)
    ticks = tuple((round(number * step, 10), text(round(number * step, 10))) for number in range(first, last + 1))
    return Axis(ticks[0][0], ticks[-1][0], ticks)


def time_axis(since: datetime, until: datetime) -> Axis:
    """An axis of times in UTC, as seconds, with ticks at the beginning of some days, or hours of a short time.

    >>> axis = time_axis(datetime(2026, 1, 30, 12, tzinfo=UTC), datetime(2026, 2, 2, tzinfo=UTC))
    >>> [text for _, text in axis.ticks]
    ['31 Jan', '1 Feb', '2 Feb']
    >>> axis = time_axis(datetime(2026, 1, 30, 12, tzinfo=UTC), datetime(2026, 1, 31, 12, tzinfo=UTC))
    >>> [text for _, text in axis.ticks]
    ['12:00', '16:00', '20:00', '0:00', '4:00', '8:00', '12:00']
    """
    low, high = since.timestamp(), until.timestamp()
    unit = _DAY if high - low > 2 * _DAY else _HOUR
    step = max(1, ceil((high - low) / unit / _MOST_TICKS)) * unit
    first = ceil(low / step if unit == _HOUR else low / unit) * (step if unit == _HOUR else unit)
    times = [first + number * step for number in range(int((high - first) // step) + 1)]
    ticks = tuple((time, _tick(datetime.fromtimestamp(time, UTC), unit)) for time in times)
    return Axis(low, high if high > low else low + 1, ticks)


def _tick(time: datetime, unit: float) -> str:
    return f"{time.day} {time:%b}" if unit == _DAY else f"{time.hour}:00"


def _draw(series: Series, x: Axis, y: Axis) -> DrawnSeries:
    lines: list[str] = []
    bands: list[str] = []
    for run in _runs(series.points):
        lines.append(
            _coordinates((x.share(point.x), _down(y, each)) for point in run for each in _heights(run, point))
        )
        edges = [(x.share(point.x), point.low, point.high) for point in run]
        upper = [(at, _down(y, high)) for at, _, high in edges if high is not None]
        lower = [(at, _down(y, low)) for at, low, _ in edges if low is not None]
        if len(upper) > 1 and len(lower) > 1:
            bands.append(_coordinates([*upper, *reversed(lower)]))
    dots = [
        (round(x.share(point.x) * 100, 2), _down(y, point.y), point.title)
        for point in series.points
        if point.y is not None
    ]
    return DrawnSeries(series.name, lines, bands, dots)


def _heights(run: Sequence[Point], point: Point) -> Iterable[float]:
    """Those at which a line of these points passes one: a point alone stands on its interval."""
    if len(run) == 1 and point.low is not None and point.high is not None:
        return point.low, point.high
    return () if point.y is None else (point.y,)


def _runs(points: Iterable[Point]) -> list[list[Point]]:
    """The points between those without a value."""
    runs: list[list[Point]] = [[]]
    for point in points:
        if point.y is None:
            runs.append([])
        else:
            runs[-1].append(point)
    return [run for run in runs if run]


def _coordinates(places: Iterable[tuple[float, float]]) -> str:
    return " ".join(f"{across * 1000:.1f},{down:g}" for across, down in places)


def _down(y: Axis, value: float) -> float:
    return round((1 - y.share(value)) * HEIGHT, 1)


def _anchor(share: float) -> str:
    return "start" if share < 0.06 else "end" if share > 0.94 else "middle"


def _labelled(marks: Sequence[tuple[float, Mark]]) -> list[tuple[float, str, str]]:
    """Marks that are close to the last one with a label have none."""
    drawn = []
    last = -_LABEL_ROOM
    for at, mark in marks:
        room = at - last >= _LABEL_ROOM
        last = at if room else last
        drawn.append((round(at, 2), mark.label if room else "", mark.title))
    return drawn


def _round_step(rough: float) -> float:
    """The next 1, 2 or 5 times a power of ten."""
    size = 10.0 ** floor(log10(rough))
    return next(size * factor for factor in (1, 2, 5, 10) if size * factor >= rough * 0.9999)


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
                height = round((axis.share(top) - axis.share(top - value)) * HEIGHT, 1)
                parts.append(DrawnColumn(series, round(x, 2), round(width, 2), _down(axis, top), height, title))
    return ColumnChart(
        label=label,
        names=names,
        parts=parts,
        x_ticks=_ticks(columns, place),
        y_ticks=[(_down(axis, value), shown) for value, shown in axis.ticks],
    )


def _ticks(columns: Sequence[Column], place: float) -> list[tuple[float, str, str]]:
    """The last label, and as many before it as there is room for."""
    every = -(-len(columns) // _MOST_TICKS) or 1
    shown = range(len(columns) - 1, -1, -every)
    return [(round(place * (number + 0.5), 2), columns[number].label, "middle") for number in reversed(shown)]

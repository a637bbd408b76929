"""Where charts draw their numbers, worked out by hand."""

from app.web.charts import Axis, Mark, Point, Series, line_chart, number_axis, percent_axis

_X = Axis(0.0, 10.0, ((0.0, "0"), (5.0, "5"), (10.0, "10")))


def test_points_lie_where_their_numbers_are() -> None:
    points = [Point(0, 0.0, "first"), Point(5, 0.5, "middle"), Point(10, 1.0, "last")]
    chart = line_chart("success", [Series("success", points)], _X, percent_axis())
    [series] = chart.series
    assert series.lines == ["0.0,160 500.0,80 1000.0,0"]
    assert series.dots == [(0.0, 160.0, "first"), (50.0, 80.0, "middle"), (100.0, 0.0, "last")]
    assert chart.x_ticks == [(0.0, "0", "start"), (50.0, "5", "middle"), (100.0, "10", "end")]
    assert chart.y_ticks == [(160.0, "0"), (80.0, "50"), (0.0, "100 %")]


def test_a_point_without_a_value_interrupts_the_line() -> None:
    points = [Point(0, 0.0, ""), Point(2, 0.0, ""), Point(4, None, ""), Point(6, 1.0, ""), Point(10, 1.0, "")]
    [series] = line_chart("", [Series("", points)], _X, percent_axis()).series
    assert series.lines == ["0.0,160 200.0,160", "600.0,0 1000.0,0"]
    assert len(series.dots) == 4


def test_an_interval_is_a_band_around_the_line() -> None:
    points = [Point(0, 0.5, "", low=0.25, high=0.75), Point(10, 0.5, "", low=0.0, high=1.0)]
    [series] = line_chart("", [Series("", points)], _X, percent_axis()).series
    assert series.bands == ["0.0,40 1000.0,0 1000.0,160 0.0,120"]


def test_marks_without_room_lose_their_label_but_not_their_title() -> None:
    marks = [
        Mark(5.0, "r1", "first"),
        Mark(5.2, "r2", "second"),
        Mark(9.0, "r3", "third"),
        Mark(11.0, "r4", "out"),
    ]
    chart = line_chart("", [], _X, percent_axis(), [*marks, Mark(11.0, "r4", "out of it")])
    assert chart.marks == [(50.0, "r1", "first"), (52.0, "", "second"), (90.0, "r3", "third")]


def test_an_axis_of_one_number_has_a_length() -> None:
    assert [value for value, _ in number_axis([0.0], str).ticks] == [0.0, 1.0]
    assert number_axis([], str).high == 1.0

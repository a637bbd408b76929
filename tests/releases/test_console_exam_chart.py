"""The curve of an exam over releases: what was measured on other tasks, or in another way, is not joined."""

from datetime import UTC, datetime
from uuid import UUID

from app.releases.exams.pages import ReleaseResult, results_chart
from app.releases.exams.routes import ExamResult
from app.releases.figure_pages import exam_figures

_NOW = datetime(2026, 1, 30, tzinfo=UTC)


def result(
    release: int, solved: float, *, version: int = 1, on: str = "recorded", run: int = 0, scenarios: int = 30
) -> ReleaseResult:
    """`scenarios` is how many the exam has: 30 were tried."""
    found = {"mean": solved, "low": solved - 10, "high": solved + 10}
    figures = {"tasks": 60, "scenarios": 30} | dict.fromkeys(("sgc", "tgc", "turns", "tokens"), found)
    about = ExamResult(
        release=release,
        model=f"model {release}",
        run=UUID(int=run),
        at=_NOW,
        version=version,
        digest=f"digest of {version}",
        on=on,
        coverage=1.0,
        scenarios=scenarios,
        scenarios_left_out=0,
        tasks_left_out=0,
        figures=figures,
    )
    return ReleaseResult(result=about, figures=exam_figures(figures))


def lines(*results: ReleaseResult) -> list[str]:
    chart = results_chart(results)
    assert chart is not None
    [series] = chart.series
    assert len(series.dots) == len({each.result.release for each in results})
    return series.lines


def test_results_of_one_version_on_one_ground_are_one_line() -> None:
    assert lines(result(1, 50), result(2, 60), result(3, 40)) == ["0.0,80 500.0,64 1000.0,96"]


def test_another_version_or_another_ground_begins_a_line() -> None:
    assert lines(result(1, 50), result(2, 60), result(3, 40, version=2), result(5, 50, version=2)) == [
        "0.0,80 250.0,64",
        "500.0,96 1000.0,80",
    ]
    assert len(lines(result(1, 50), result(2, 50), result(3, 50, on="staging"), result(4, 50, on="staging"))) == 2


def test_other_runs_join_only_if_they_tried_every_scenario() -> None:
    assert len(lines(result(1, 50), result(2, 50, run=1), result(3, 50, run=2))) == 1
    drawn = [result(number, 50, run=number // 2, scenarios=31) for number in range(2, 6)]
    assert len(lines(*drawn)) == 2


def test_a_result_that_can_be_compared_with_none_stands_on_its_interval() -> None:
    assert lines(result(1, 50), result(2, 60), result(3, 40, version=2)) == [
        "0.0,80 500.0,64",
        "1000.0,112 1000.0,80",
    ]


def test_the_latest_result_of_a_release_counts() -> None:
    assert lines(result(1, 10), result(1, 50, version=2), result(2, 60, version=2)) == ["0.0,80 1000.0,64"]

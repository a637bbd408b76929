"""Figures that pages draw as intervals, as files. Pure."""

from collections.abc import Sequence

from litestar import Response

from app.console.release_figures import FigureRow, Measured
from app.release.confidence_sequence import Interval
from app.skills.routes import ScenarioValue, SkillValue
from app.web.formats import csv_file

_ENDS = ("", "_low", "_high")


def figures_file(name: str, before: int, now: int, rows: Sequence[FigureRow]) -> Response[str]:
    """Two releases, by their numbers, measure by measure."""
    columns = [*_columns(f"release_{before}"), *_columns(f"release_{now}"), *_columns("difference")]
    numbers = [
        [row.name, *_ends(row.measured[0]), *_ends(row.measured[1]), *_ends(row.difference)] for row in rows
    ]
    content = [[*each, row.on] for each, row in zip(numbers, rows, strict=True)]
    return csv_file(name, ["measure", *columns, "from"], content)


def value_file(name: str, value: SkillValue) -> Response[str]:
    """What a skill is worth in all, then by scenario. The bounds `any_time` hold however often somebody looks."""
    tasks = ["tasks_with", "score_with", "tasks_without", "score_without"]
    header = ["scenario", *tasks, *_columns("difference"), *_columns("any_time")]
    return csv_file(
        name, header, [_value("all", value), *(_value(each.scenario, each) for each in value.scenarios)]
    )


def _value(scenario: str | None, value: SkillValue | ScenarioValue) -> list[object]:
    one, other = value.offered, value.withheld
    tasks = (one.tasks, one.score, other.tasks, other.score)
    return [scenario, *tasks, *_ends(value.one_look.score), *_ends(value.difference)]


def _columns(name: str) -> list[str]:
    return [f"{name}{end}" for end in _ENDS]


def _ends(found: Measured) -> tuple[float | None, float | None, float | None]:
    return (found.mean, found.low, found.high) if isinstance(found, Interval) else (found, None, None)

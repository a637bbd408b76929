"""The metrics of a run's steps as small charts. Pure."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from app.base.values import Json
from app.db import tables
from app.web import formats
from app.web.charts import Axis, LineChart, Point, Series, line_chart, number_axis

_CHARTS: tuple[tuple[str, Mapping[str, str], Callable[[float], str]], ...] = (
    ("Score", {"outcome": "score"}, formats.score),
    ("Reward by position in the chain", {f"reward_{at}": f"task {at}" for at in range(1, 5)}, formats.score),
    ("Success", {"success": "success"}, formats.percent),
    ("Accuracy", {"accuracy": "accuracy"}, formats.percent),
    ("Turns of a task", {"turns": "turns"}, formats.count),
    ("Generated tokens of a task", {"generated_tokens": "tokens"}, formats.count),
    ("Length of a trajectory, tokens", {"length": "tokens"}, formats.count),
    ("Entropy of a token, nats", {"entropy": "entropy"}, formats.score),
    ("Share of clipped tokens", {"clip_fraction": "clipped"}, formats.percent),
    (
        "Divergence, nats",
        {"kl_to_engine": "from the engine", "kl_to_start": "from the start", "kl_of_step": "by the step"},
        formats.score,
    ),
    ("Learned from", {"trained_fraction": "of the rollouts"}, formats.percent),
    ("Functions", {"write_rate": "written", "skill_usage": "used"}, formats.percent),
    ("Loss", {"loss": "loss"}, formats.score),
    ("Norm of the gradient", {"grad_norm": "norm"}, formats.score),
)


class RunChart(msgspec.Struct, frozen=True):
    """`rows` are its numbers, by step."""

    title: str
    drawn: LineChart
    columns: list[str]
    rows: list[list[str]]


def run_charts(steps: Sequence[tables.RunStep]) -> list[RunChart]:
    """Those of which there are numbers."""
    metrics = [(step.index, with_length(step.metrics)) for step in steps]
    found = [_chart(title, names, text, metrics) for title, names, text in _CHARTS]
    return [each for each in found if each is not None]


def with_length(metrics: dict[str, Json]) -> dict[str, Json]:
    """The mean length of the trajectories that were read, besides what the step reported."""
    if not metrics.get("samples") or "read_tokens" not in metrics:
        return metrics
    return {**metrics, "length": metrics["read_tokens"] / metrics["samples"]}


def _chart(
    title: str, names: Mapping[str, str], text: Callable[[float], str], steps: Sequence[tuple[int, dict[str, Any]]]
) -> RunChart | None:
    there = {
        name: word for name, word in names.items() if any(_number(step.get(name)) is not None for _, step in steps)
    }
    if not there:
        return None
    series = [
        Series(word, [_point(index, _number(step.get(name)), text) for index, step in steps])
        for name, word in there.items()
    ]
    values = [point.y for each in series for point in each.points if point.y is not None]
    last = steps[-1][0]
    middle = sorted({1, (1 + last) // 2, last})
    x = Axis(1.0, float(max(2, last)), tuple((float(at), f"{at}") for at in middle))
    drawn = line_chart(title, series, x, number_axis(values, text, zero=text is not formats.count))
    rows = [[f"{index}", *(_text(step.get(name), text) for name in there)] for index, step in steps]
    return RunChart(title, drawn, ["Step#", *(f"{word.capitalize()}#" for word in there.values())], rows)


def _point(index: int, value: float | None, text: Callable[[float], str]) -> Point:
    return Point(float(index), value, "" if value is None else f"step {index}: {text(value)}")


def _number(value: Json) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _text(value: Json, text: Callable[[float], str]) -> str:
    number = _number(value)
    return "-" if number is None else text(number)

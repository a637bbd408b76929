"""Training runs and releases as aligned lines of text."""

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import click


def columns(rows: Iterable[Sequence[object]]) -> str:
    """Align the cells of all rows in columns."""
    cells = [[str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in cells)
    return "\n".join(line.rstrip() for line in lines)


def run_row(run: dict[str, Any]) -> tuple[object, ...]:
    done = f"{run['step']}/{run['steps'] or '?'}" if run["step"] else "-"
    return run["id"], run["kind"], run["state"], done, _moment(run["created_at"]), run["failure"] or ""


def release_row(release: dict[str, Any]) -> tuple[object, ...]:
    verdict = (release["evidence"] or {}).get("reason", "")
    made, since = _moment(release["created_at"]), _moment(release["activated_at"])
    state = f"{release['state']}, watched" if release["watched"] else release["state"]
    return release["number"], state, release["model"], made, since, verdict


def show_run(run: dict[str, Any]) -> str:
    """All fields of a run, one per line."""
    shown = {
        name: value for name, value in run.items() if name not in ("links", "last_step") and value is not None
    }
    if run["last_step"]:
        shown["last step"] = run["last_step"]["metrics"]
    return _all(shown)


def show_release(release: dict[str, Any]) -> str:
    """All fields of a release, the gate's figures included, one per line."""
    return _all(release)


def show_result(run: dict[str, Any]) -> None:
    """Print the result of a run, one field per line."""
    click.echo(_all(run["result"] or {"result": "none"}))


def _all(values: dict[str, Any]) -> str:
    return columns(line for name, value in values.items() for line in _lines(name, value))


def _lines(name: str, value: Any) -> Iterator[tuple[str, str]]:
    """The lines of a field; of a nested one a line each, named such as `figures candidate sgc`.

    >>> list(_lines("figures", {"sgc": {"mean": 60.0, "low": 51.25, "high": 68.0}, "rules": None}))
    [('figures sgc', '60 [51.25, 68]')]
    """
    if value is None:
        return
    if isinstance(value, dict) and value.keys() == {"mean", "low", "high"}:
        yield name, f"{value['mean']:.4g} [{value['low']:.4g}, {value['high']:.4g}]"
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from _lines(f"{name} {key}", inner)
    elif isinstance(value, float):
        yield name, f"{value:.4g}"
    else:
        yield name, value if isinstance(value, str) else json.dumps(value)


def _moment(text: str | None) -> str:
    return text[:19].replace("T", " ") if text else "-"

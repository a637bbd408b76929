"""Training runs and releases as lines of text."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

import click


def columns(rows: Iterable[Sequence[object]]) -> str:
    """Each column as wide as its widest cell."""
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
    return release["number"], release["state"], release["model"], made, since, verdict


def show_run(run: dict[str, Any]) -> str:
    """All that is known of it, one thing a line."""
    shown = {
        name: value for name, value in run.items() if name not in ("links", "last_step") and value is not None
    }
    if run["last_step"]:
        shown |= {f"{name} of the last step": value for name, value in run["last_step"]["metrics"].items()}
    return columns((name, _short(value)) for name, value in shown.items())


def show_release(release: dict[str, Any]) -> str:
    """All that is known of it, the gate's figures included, one thing a line."""
    return columns((name, _short(value)) for name, value in release.items() if value is not None)


def show_result(run: dict[str, Any]) -> None:
    """What a run left, for people and for pipes."""
    click.echo(columns((name, _short(value)) for name, value in (run["result"] or {"result": "none"}).items()))


def _short(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _moment(text: str | None) -> str:
    return text[:19].replace("T", " ") if text else "-"

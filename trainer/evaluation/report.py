"""Figures as people read them and as programs do. Pure."""

from typing import Any

import msgspec

from trainer.evaluation.metrics import Estimate, Metrics

LABELS = {
    "tgc": "TGC, %",
    "sgc": "SGC, %",
    "turns": "turns per task",
    "tokens": "generated tokens per task",
    "skill_usage": "tasks that used a skill, of those offered any, %",
    "success_skill_usage": "successes, of tasks that used a skill, %",
    "write_rate": "wrote a function that ran, of tasks that used no skill, %",
    "library_size": "skills at the end of a chain",
    "distinct_used": "different skills used in a chain that was offered any",
}


def table(columns: dict[str, Metrics], labels: dict[str, str] | None = None, head: str = "") -> str:
    """Markdown: a row per figure, a column per set of metrics, each mean with its 95 % interval.

    `labels` says which figures, by default all; `head` stands over their names.
    """
    first = next(iter(columns.values()))
    seeds = f"{first.seeds} seeds, " if first.seeds > 1 else ""
    head = head or f"{seeds}{first.scenarios} scenarios, {first.tasks} tasks"
    rows = [
        f"| {label} | " + " | ".join(_show(getattr(metrics, name)) for metrics in columns.values()) + " |"
        for name, label in (labels or LABELS).items()
    ]
    top = f"| {head} | " + " | ".join(columns) + " |"
    return "\n".join([top, "|---" * (len(columns) + 1) + "|", *rows])


def plain(metrics: Metrics) -> dict[str, Any]:
    """For JSON."""
    found: dict[str, Any] = msgspec.to_builtins(metrics)
    return found


def _show(estimate: Estimate | None) -> str:
    return f"{estimate.mean:.1f} [{estimate.low:.1f}, {estimate.high:.1f}]" if estimate else "-"

"""Policy metrics as a Markdown table."""

from trainer.evaluation.bootstrap_intervals import Estimate
from trainer.evaluation.policy_metrics import PolicyMetrics, with_exact_shares

LABELS = {
    "tgc": "TGC, %",
    "sgc": "SGC, %",
    "turns": "turns per task",
    "tokens": "generated tokens per task",
    "skill_usage": "tasks that used a skill, of those that were offered any, %",
    "success_skill_usage": "successes, of tasks that used a skill, %",
    "write_rate": "wrote a function that ran, of tasks that used no skill, %",
    "library_size": "skills at the end of a chain",
    "distinct_used": "different skills used in a chain that was offered any",
}


def metrics_table(columns: dict[str, PolicyMetrics], labels: dict[str, str] | None = None, head: str = "") -> str:
    """A row per metric, a column per policy, each cell a mean with its 95 % interval, which is exact for a TGC or
    SGC of 0 or 100 %.

    `labels` names the metrics to show, by default all; `head` is the heading of their column.
    """
    first = next(iter(columns.values()))
    seeds = f"{first.seeds} seeds, " if first.seeds > 1 else ""
    head = head or f"{seeds}{first.scenarios} scenarios, {first.tasks} tasks"
    exact = [with_exact_shares(each) for each in columns.values()]
    rows = [
        f"| {label} | " + " | ".join(_show(getattr(metrics, name)) for metrics in exact) + " |"
        for name, label in (labels or LABELS).items()
    ]
    top = f"| {head} | " + " | ".join(columns) + " |"
    return "\n".join([top, "|---" * (len(columns) + 1) + "|", *rows])


def _show(estimate: Estimate | None) -> str:
    return f"{estimate.mean:.1f} [{estimate.low:.1f}, {estimate.high:.1f}]" if estimate else "-"

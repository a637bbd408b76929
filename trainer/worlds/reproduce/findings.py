"""Results of the experiment: rows with intervals, paired differences, and learning curves."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from trainer.evaluation.metrics import (
    Comparison,
    PolicyMetrics,
    TaskResult,
    compare_runs,
    in_words,
    measure_runs,
    with_exact_shares,
)
from trainer.worlds.reproduce.plan import ExperimentPlan, Trial, condition_of
from trainer.worlds.reproduce.trial import RowResults, TrialResult, results_file, trial_file

LABELS = {
    "prompt_only": "library, prompt only",
    "sft": "SFT, with library",
    "sft_skills_off": "SFT, skills off",
    "sft_grpo": "SFT + GRPO, no skills",
    "sage": "**SAGE**",
    "sage_outcome": "SAGE, outcome reward",
    "sage_chain": "SAGE, chain reward",
    "sage_skills_off": "SAGE, skills off at evaluation",
    "sage_crowded": "SAGE, crowded rollouts",
    "sage_value": "SAGE, crowded rollouts, reward `skill_value`",
    "sage_in_crowd": "SAGE, evaluated in a crowd",
    "sage_crowded_in_crowd": "SAGE, crowded rollouts, evaluated in a crowd",
    "sage_value_in_crowd": "SAGE, crowded rollouts, reward `skill_value`, evaluated in a crowd",
    "sft_in_crowd": "SFT, evaluated in a crowd",
    "sage_no_sft": "SAGE, no SFT",
    "retrieval_query_ngram": "SAGE, retrieval by query n-gram",
    "retrieval_query_embedding": "SAGE, retrieval by query embedding",
    "retrieval_skill_embedding": "SAGE, retrieval by skill embedding",
    "chain_3": "SAGE, chains of 3",
}
_FIGURES = ("tgc", "sgc", "turns", "tokens", "skill_usage", "success_skill_usage", "library_size", "distinct_used")
AGAINST_SAGE = (
    "sft_grpo",
    "sft",
    "sage_outcome",
    "sage_chain",
    "sage_crowded",
    "sage_value",
    "sage_in_crowd",
    "sage_skills_off",
    "sage_no_sft",
)


class TableRow(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the table."""

    name: str
    seeds: list[int]
    metrics: PolicyMetrics
    lr: float | None = None


def read_rows(work: Path, plan: ExperimentPlan, lrs: dict[str, float], exam: str = "") -> list[TableRow]:
    """The rows that have been evaluated, in the order of the table."""
    rows = []
    for name in LABELS:
        runs = _runs(work, plan, name, exam)
        if runs:
            metrics = with_exact_shares(measure_runs(list(runs.values())))
            rows.append(TableRow(name=name, seeds=list(runs), metrics=metrics, lr=lrs.get(condition_of(name))))
    return rows


def differences(work: Path, plan: ExperimentPlan, exam: str = "") -> dict[str, Comparison]:
    """SAGE minus each other condition, paired by seed and scenario."""
    sage = _runs(work, plan, "sage", exam)
    found = {}
    for name in AGAINST_SAGE:
        other = _runs(work, plan, name, exam)
        both = [seed for seed in sage if seed in other]
        if both:
            found[name] = compare_runs([sage[seed] for seed in both], [other[seed] for seed in both])
    return found


def as_json(rows: Sequence[TableRow], compared: dict[str, Comparison]) -> dict[str, Any]:
    return {
        "rows": [
            {
                "name": row.name,
                "seeds": row.seeds,
                "lr": row.lr,
                **{name: msgspec.to_builtins(getattr(row.metrics, name)) for name in _FIGURES},
            }
            for row in rows
        ],
        "sage_minus": {name: msgspec.to_builtins(each) for name, each in compared.items()},
    }


def as_markdown(rows: Sequence[TableRow], compared: dict[str, Comparison]) -> str:
    """The table of results, followed by the differences, in Markdown."""
    head = "| | seeds | TGC | SGC | turns | tokens | skill usage | success | library |"
    lines = [head, "|---" * 9 + "|"]
    for row in rows:
        found = row.metrics
        figures = (found.tgc, found.sgc, found.turns, found.tokens, found.skill_usage, found.success_skill_usage)
        cells = [*map(in_words, figures), in_words(found.library_size)]
        lines.append(f"| {LABELS[row.name]} | {len(row.seeds)} | {' | '.join(cells)} |")
    lines += ["", "| SAGE minus | SGC, points | TGC, points | turns | tokens |", "|---" * 5 + "|"]
    for name, each in compared.items():
        cells = [each.sgc.signed, each.tgc.signed, each.turns.signed, each.tokens.signed]
        lines.append(f"| {LABELS[name]} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def curves(work: Path, trials: Sequence[Trial]) -> dict[str, list[list[tuple[int, float]]]]:
    """For each condition and seed: steps and SGC on the validation templates."""
    found: dict[str, list[list[tuple[int, float]]]] = {}
    for trial in trials:
        path = trial_file(work, trial)
        if path.exists():
            trained = msgspec.json.decode(path.read_bytes(), type=TrialResult)
            points = [
                (point["step"], point["validation"]["sgc"]["mean"])
                for point in trained.curve
                if "validation" in point
            ]
            found.setdefault(trial.condition, []).append(points)
    return found


def _runs(work: Path, plan: ExperimentPlan, row: str, exam: str) -> dict[int, list[TaskResult]]:
    paths = {seed: results_file(work, row, seed, exam) for seed in range(plan.seeds)}
    return {
        seed: msgspec.json.decode(path.read_bytes(), type=RowResults).results
        for seed, path in paths.items()
        if path.exists()
    }

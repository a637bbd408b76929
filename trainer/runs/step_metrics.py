"""What to watch while a policy learns: one flat dictionary per step. Pure.

A run that goes wrong shows it here first: no spread in the rewards, functions that are no longer written, an
engine whose logprobs are not the trainer's.
"""

from collections import Counter
from collections.abc import Sequence
from statistics import fmean

import msgspec
import structlog

from app.records import Json
from trainer.evaluation.metrics import TaskResult
from trainer.learning.training_samples import flaw_of
from trainer.learning.update import StepFigures
from trainer.sage.advantages import Advised

log = structlog.get_logger(__name__)


def of_experience(advised: Sequence[Advised]) -> dict[str, Json]:
    """Rewards, what of them teaches something, what is left out for a flaw, and how old it is."""
    items = [each.rewarded for each in advised]
    flaws = [flaw_of(item.trajectory) for item in items]
    metrics: dict[str, Json] = {
        "outcome": fmean(item.score for item in items),
        "skill_bonus": fmean(item.bonus for item in items),
        "kept": fmean(each.teaches and not flaw for each, flaw in zip(advised, flaws, strict=True)),
        "rewritten": flaws.count("rewritten"),
        "empty": flaws.count("empty"),
        "generated_tokens": fmean(item.trajectory.generated_tokens for item in items),
        "turns": fmean(len(item.trajectory.turns) for item in items),
        "staleness": {str(age): count for age, count in sorted(Counter(i.staleness for i in items).items())},
    }
    for position in sorted({item.position for item in items}):
        metrics[f"reward_{position + 1}"] = fmean(item.reward for item in items if item.position == position)
    offered = [item for item in items if item.trajectory.offered]
    if offered:
        metrics["skill_usage"] = fmean(any(item.trajectory.used()) for item in offered)
    return metrics


def of_results(results: Sequence[TaskResult]) -> dict[str, Json]:
    """What only fresh rollouts tell: whole successes, and whether functions are still written."""
    alone = [result for result in results if not result.used]
    written = {"write_rate": fmean(result.wrote > 0 for result in alone)} if alone else {}
    return {"success": fmean(result.success for result in results), **written}


def of_update(figures: StepFigures | None, seconds: float) -> dict[str, Json]:
    """`figures` is None where the step taught nothing."""
    if figures is None:
        return {"no_signal": True}
    speed = {"update_seconds": seconds, "update_tokens_per_second": figures.read_tokens / seconds}
    return {**msgspec.to_builtins(figures), **speed}


def told(index: int, metrics: dict[str, Json]) -> dict[str, Json]:
    """The metrics with what they warn of, written to the log: loudly where something is wrong."""
    warnings = warnings_of(metrics)
    for warning in warnings:
        log.warning(warning, step=index)
    log.info("step", step=index, **metrics)
    return {**metrics, "warnings": warnings} if warnings else metrics


def warnings_of(metrics: dict[str, Json]) -> list[str]:
    said = []
    if metrics.get("no_signal"):
        said.append(
            "this step taught nothing: all rollouts of every group earned the same. If it goes on, the tasks are "
            "too easy or too hard for this policy, or the reward does not tell good from bad"
        )
    if metrics.get("rewritten"):
        said.append(
            f"{metrics['rewritten']} rollouts were left out: the model's chat template rewrote their earlier turns"
        )
    if metrics.get("empty"):
        said.append(
            f"{metrics['empty']} rollouts were left out: the policy answered nothing before the context was full "
            "or the time was over"
        )
    if metrics.get("write_rate", 1.0) < 0.2:
        said.append(f"functions are hardly written any more ({metrics['write_rate']:.0%} of tasks)")
    return said

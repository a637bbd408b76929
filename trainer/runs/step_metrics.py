"""The metrics of a training step, as one flat dictionary, and the warnings derived from them.

They are the first sign of a run going wrong: rewards without spread, functions that are no longer written,
logprobs of the engine that differ from the trainer's.
"""

from collections import Counter
from collections.abc import Sequence
from statistics import fmean

import msgspec

from app.records import Json
from trainer.evaluation.policy_metrics import TaskResult
from trainer.learning.update_stats import UpdateStats
from trainer.sage.advantages import AdvantagedRollout

_LOW_WRITE_RATE = 0.2


def experience_metrics(rollouts: Sequence[AdvantagedRollout]) -> dict[str, Json]:
    """Rewards, the fraction of rollouts that are trained on, those left out for a flaw, and staleness; nothing
    without rollouts.
    """
    if not rollouts:
        return {}
    scored = [each.rollout for each in rollouts]
    flaws = [each.trajectory.flaw for each in scored]
    metrics: dict[str, Json] = {
        "outcome": fmean(each.score for each in scored),
        "skill_bonus": fmean(each.bonus for each in scored),
        "trained_fraction": fmean(
            each.has_signal and not flaw for each, flaw in zip(rollouts, flaws, strict=True)
        ),
        "empty": flaws.count("empty"),
        "generated_tokens": fmean(each.trajectory.generated_tokens for each in scored),
        "turns": fmean(len(each.trajectory.turns) for each in scored),
        "staleness": {str(age): count for age, count in sorted(Counter(s.staleness for s in scored).items())},
    }
    for position in sorted({each.position for each in scored}):
        metrics[f"reward_{position + 1}"] = fmean(each.reward for each in scored if each.position == position)
    offered = [each for each in scored if each.trajectory.offered]
    if offered:
        metrics["skill_usage"] = fmean(any(each.trajectory.used()) for each in offered)
    return metrics


def task_metrics(results: Sequence[TaskResult]) -> dict[str, Json]:
    """Metrics of fresh rollouts only: the share of successes among those whose result is known, the number of the
    others, and the rate at which functions are written.
    """
    known = [result.success for result in results if result.known]
    unaided = [result for result in results if not result.used]
    return {
        **({"success": fmean(known)} if known else {}),
        **({"unknown": len(results) - len(known)} if len(known) < len(results) else {}),
        **({"write_rate": fmean(result.wrote > 0 for result in unaided)} if unaided else {}),
    }


def update_metrics(stats: UpdateStats | None, seconds: float) -> dict[str, Json]:
    """Metrics of an update; `stats` is None if no rollout of the step had a learning signal."""
    if stats is None:
        return {"no_signal": True}
    speed = {"update_seconds": seconds, "update_tokens_per_second": stats.read_tokens / seconds}
    return {**msgspec.to_builtins(stats), **speed}


def with_warnings(metrics: dict[str, Json]) -> dict[str, Json]:
    """The metrics of a step, with the list `warnings` if there are any."""
    warnings = warnings_of(metrics)
    return {**metrics, "warnings": warnings} if warnings else metrics


def warnings_of(metrics: dict[str, Json]) -> list[str]:
    """What is wrong with a step, in full sentences."""
    warnings = []
    if metrics.get("unknown"):
        warnings.append(
            f"{metrics['unknown']} rollouts were left out: it cannot be told whether they succeeded. They asked "
            "for what is not recorded, tried to write where trials only read, or met a server that is down"
        )
    if metrics.get("failed_rollouts"):
        warnings.append(
            f"{metrics['failed_rollouts']} rollouts were left out: the environment could not set up or verify "
            "their worlds. The log of the worker says why"
        )
    if metrics.get("no_signal"):
        warnings.append(
            "no learning signal in this step: all rollouts of each group have the same reward. If this goes on, "
            "the tasks are too easy or too hard for this policy, or the reward does not separate good from bad"
        )
    if metrics.get("empty"):
        warnings.append(
            f"{metrics['empty']} rollouts were dropped: the policy sampled nothing before the context was full "
            "or the time was up"
        )
    if metrics.get("write_rate", 1.0) < _LOW_WRITE_RATE:
        warnings.append(f"functions are rarely written ({metrics['write_rate']:.0%} of tasks)")
    return warnings

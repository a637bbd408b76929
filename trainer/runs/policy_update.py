"""One policy-gradient update on rollouts with rewards, as a step of a run, with its metrics."""

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

from app.records import Json
from trainer.learning.learner import Learner
from trainer.runs.step_metrics import experience_metrics, update_metrics
from trainer.sage.advantages import ScoredRollout, compute_advantages

UpdateContext = Callable[[], AbstractContextManager[None]]
"""Makes the context that an update runs in."""


def update_policy(
    learner: Learner, rollouts: Sequence[ScoredRollout], updating: UpdateContext = nullcontext
) -> dict[str, Json]:
    """Update the policy once. Returns the metrics of the rollouts and of the update."""
    started = time.perf_counter()
    advantaged = compute_advantages(rollouts, normalize=learner.settings.normalise)
    with updating():
        stats = learner.update(advantaged)
    return experience_metrics(advantaged) | update_metrics(stats, time.perf_counter() - started)

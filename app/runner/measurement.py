"""Measures the tasks of a runner: the phases and spans of each, and the metrics of all."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from uuid import UUID

from app.base import telemetry
from app.base.telemetry import Attributes, Phase, PhaseClock, SpanSource, note, phase_seconds, running, span
from app.base.values import Trajectory
from app.db import suspects, tables
from app.db.task_queue import TaskOutcome

SpansOf = Callable[[UUID], SpanSource]
"""The spans of a task by its id."""

_CLAIM_SECONDS = 1.0  # from the start by the database's clock to here, of a task that was not interrupted


@contextmanager
def measured(row: tables.Task, spans_of: SpansOf | None) -> Iterator[None]:
    """Everything within it is part of this attempt at the task."""
    clock = PhaseClock(spans_of(row.id) if spans_of else None)
    begun = row.started_at or row.created_at
    clock.add(Phase.QUEUE, (begun - row.created_at).total_seconds())
    since = (datetime.now(UTC) - begun).total_seconds()
    if since > _CLAIM_SECONDS:
        clock.add(Phase.INTERRUPTED, since)
    with running(clock), span("invoke_agent sage", _attributes(row)) as opened:
        try:
            yield
        finally:
            opened.set(clock.notes)


def count_attempt(row: tables.Task) -> None:
    """A runner has claimed the task."""
    if suspects.is_condemned(row):
        cause = "condemned"
    elif suspects.is_suspect(row):
        cause = "suspect"
    else:
        cause = "first" if row.attempt <= 1 else "resumed"
    telemetry.TASK_ATTEMPTS.labels(cause).inc()


def count_end(outcome: TaskOutcome, trajectory: Trajectory | None = None) -> None:
    """The task of this context has ended, and its end is stored."""
    stop = outcome.stop.value if outcome.stop else "none"
    telemetry.TASK_OUTCOMES.labels(outcome.state.value, stop).inc()
    note({"sage.task.state": outcome.state.value, "sage.task.stop_reason": stop})
    seconds = phase_seconds()
    telemetry.TASK_SECONDS.observe(sum(seconds.values()))
    for phase, spent in seconds.items():
        telemetry.PHASE_SECONDS.labels(phase).observe(spent)
    if trajectory is not None:
        _count_trajectory(trajectory)


def count_score(release: tables.ReleaseState, score: float) -> None:
    telemetry.TASK_SCORES.labels(release.value).observe(score)


def _attributes(row: tables.Task) -> Attributes:
    return {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": "sage",
        "gen_ai.conversation.id": str(row.id),
        "sage.task.attempt": row.attempt,
    }


def _count_trajectory(trajectory: Trajectory) -> None:
    read, generated = trajectory.prompt_tokens, trajectory.generated_tokens
    note({"gen_ai.usage.input_tokens": read, "gen_ai.usage.output_tokens": generated})
    note({"gen_ai.request.model": trajectory.policy.model})
    telemetry.TURNS.inc(len(trajectory.turns))
    telemetry.TOKENS.labels("prompt").inc(read)
    telemetry.TOKENS.labels("generated").inc(generated)
    for call in trajectory.calls:
        telemetry.API_CALLS.labels("returned" if call.error is None else "raised").inc()
    useful = {offer.name for offer in trajectory.used()}
    called = {use.function for turn in trajectory.turns for use in turn.uses if use.inherited}
    for offer in trajectory.offered:
        use = "returned" if offer.name in useful else "raised" if offer.name in called else "none"
        telemetry.SKILL_OFFERS.labels(use).inc()

"""Does a finished task again with another release on the calls that it made: nothing is sent anywhere."""

from typing import NamedTuple

from app.agent.rollout_loop import ResumeState, run_rollout
from app.apis.calls.gateway import Gateway
from app.apis.calls.recorded_calls import RecordedCalls
from app.base.errors import InvalidError
from app.base.log import mask_logs
from app.base.secrets import SecretValues
from app.base.values import Trajectory
from app.db import results, tables, tasks
from app.releases.tools import ProjectSecrets
from app.releases.trials_store import ShadowOutcome
from app.runner.check_report import run_check
from app.runner.execute import TaskExecutor
from app.runner.mask_trajectory import masked
from app.runner.task_context import TaskContext, task_of


class RecordedReplay(NamedTuple):
    """How it ended, and what it did."""

    outcome: ShadowOutcome
    trajectory: Trajectory


async def replay_recorded(executor: TaskExecutor, shadow: tables.Shadow) -> RecordedReplay:
    """With the seed, the clock and the skills of the task. A call that the record does not answer ends it.

    Raises NotFoundError if the task's trajectory was deleted.
    """
    async with executor.sessions() as session:
        row = await tasks.get(session, shadow.task_id)
        record = await results.of_task(session, row.id)
    context = await executor.context(row.project_id, shadow.release_id, serves=False)
    secrets = SecretValues()
    mask_logs(secrets)
    recording = RecordedCalls(record.calls, context.catalog.is_read)
    gateway = _gateway(executor, row, context, recording, secrets)
    offered = await executor.skill_selection.reuse(row)
    gateway.guard = await executor.skill_selection.guard(offered)
    task = task_of(row, context.project)
    resume = ResumeState(seed=row.seed, now=row.started_at)
    async with executor.policy_agent(row, context.policy, shadow.owner or "") as agent:
        trajectory = await run_rollout(agent, task, context.policy, gateway, offered, resume)
    same, failure, scored = recording.complete, trajectory.detail or None, None
    if row.check_code and gateway.in_doubt is None:
        checking = _gateway(executor, row, context, recording, secrets, read_only=True)
        scored, failure = await _score(executor, row, context, trajectory, checking)
    outcome = ShadowOutcome(
        stop=trajectory.stop,
        failure=failure and secrets.mask(failure),
        score=scored,
        turns=len(trajectory.turns),
        generated_tokens=trajectory.generated_tokens,
        same_changes=same,
    )
    return RecordedReplay(outcome, masked(trajectory, secrets))


def _gateway(
    executor: TaskExecutor,
    row: tables.Task,
    context: TaskContext,
    recording: RecordedCalls,
    secrets: SecretValues,
    *,
    read_only: bool = False,
) -> Gateway:
    """No call needs an approval: none goes out."""
    return Gateway(
        context.catalog,
        executor.client,
        instruction=row.instruction,
        variables=row.variables,
        read_only=read_only,
        max_calls=executor.agent.limits.calls,
        secrets=secrets,
        store=ProjectSecrets(executor.sessions, row.project_id),
        recording=recording,
    )


async def _score(
    executor: TaskExecutor, row: tables.Task, context: TaskContext, trajectory: Trajectory, gateway: Gateway
) -> tuple[float | None, str | None]:
    """The check's score, and why there is none, or why it is 0."""
    failure = None
    try:
        value = await run_check(row, trajectory.answer, context.project, executor.agent, gateway)
    except InvalidError as error:
        value, failure = 0.0, str(error)
    if gateway.in_doubt is not None:
        return None, f"the check asked what the task had not: {gateway.in_doubt}"
    return value, failure

"""The outcome of a rollout, and the last event of its task."""

from uuid import UUID

import msgspec
from sqlalchemy.ext.asyncio import AsyncSession

from app.apis import trials
from app.base.errors import SandboxError
from app.base.judge import NamedJudge, ask_judge
from app.base.secrets import SecretValues
from app.base.telemetry import Phase, phase
from app.base.values import LIMITS, Stop, Trajectory, what_to_do
from app.db import results, tables, task_queue, task_secrets
from app.db.tables import TaskState
from app.runner.mask_trajectory import masked

_NOTHING_DONE = "the agent ended the task without a single API call or answer"
_LIMIT_REACHED = "the task reached a limit ({}) without a single API call or answer"


async def tell_end(
    session: AsyncSession, task_id: UUID, outcome: task_queue.TaskOutcome, secrets: SecretValues
) -> None:
    """Append the last event, and mask those that came before a secret was known."""
    await task_secrets.mask(session, task_id, secrets)
    data: dict[str, object] = msgspec.to_builtins(outcome)
    if outcome.stop is not None:
        task = await session.get_one(tables.Task, task_id)
        unusable = await trials.unusable(session, task.project_id, task.release_id)
        data["what_to_do"] = what_to_do(outcome.stop, outcome.score, unusable)
    await results.append(session, task_id, "done", data)


def outcome_of(trajectory: Trajectory, scored: float | None, failure: str | None) -> task_queue.TaskOutcome:
    """A task that was completed, or reached a limit, without a call or an answer has failed, unless the score of
    its check says otherwise.
    """
    stop = trajectory.stop
    state = TaskState.CANCELLED if stop is Stop.CANCELLED else TaskState.DONE
    idle = not (trajectory.calls or trajectory.answer is not None or scored)
    if idle and stop is Stop.COMPLETED:
        state, stop, failure = TaskState.FAILED, Stop.NOTHING_DONE, failure or _NOTHING_DONE
    elif idle and stop in LIMITS:
        state, failure = TaskState.FAILED, failure or _LIMIT_REACHED.format(stop)
    return task_queue.TaskOutcome(
        state=state,
        stop=stop,
        answer=trajectory.answer,
        failure=failure,
        score=scored,
        turns=len(trajectory.turns),
        generated_tokens=trajectory.generated_tokens,
        calls=len(trajectory.calls),
        prompt_tokens=trajectory.prompt_tokens,
    )


async def judged(
    outcome: task_queue.TaskOutcome, judge: NamedJudge | None, trajectory: Trajectory, secrets: SecretValues
) -> task_queue.TaskOutcome:
    """The outcome with the score of the judge, or why it gave none. It decides neither about the task's state nor
    its skills. Nobody can judge whether a change in doubt was made.
    """
    if judge is None or trajectory.stop in (Stop.CANCELLED, Stop.IN_DOUBT):
        return outcome
    with phase(Phase.CHECK):
        judgement = await ask_judge(judge, masked(trajectory, secrets))
    if judgement.problem is not None:
        failure = outcome.failure or f"the judge gave no score: {judgement.problem}"
        return msgspec.structs.replace(outcome, failure=failure)
    if judgement.score is None:
        return outcome
    return msgspec.structs.replace(outcome, score=judgement.score, judged_by=judge.name())


def unchecked(trajectory: Trajectory, error: SandboxError) -> task_queue.TaskOutcome:
    """The failure of a task whose check the machine cannot run: the answer is neither right nor wrong."""
    outcome = outcome_of(trajectory, None, f"the check could not be run: {error}")
    return msgspec.structs.replace(outcome, state=TaskState.FAILED)

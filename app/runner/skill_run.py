"""Tasks that call one skill with given arguments: their only turn is the call, and no policy is asked.

The skill has the rights that it has when an agent calls it: its manifest holds, and the task has the limits,
approvals, credentials and journal of any other.
"""

import dataclasses
from collections.abc import Sequence

import msgspec

from app.agent.rollout_loop import Agent, ResumeState
from app.base.errors import ConflictError
from app.base.values import LIMITS, Offer, Stop, Trajectory, Turn
from app.db import tables
from app.db.tables import TaskState
from app.db.task_queue import TaskOutcome
from app.runner.task_journal import TaskJournal
from app.skills.keeping import call_of
from app.skills.selection import skill_run_of


async def begin_call(
    agent: Agent, row: tables.Task, offered: Sequence[Offer], resume: ResumeState, journal: TaskJournal
) -> tuple[Agent, ResumeState]:
    """If the task runs a skill: an agent that ends after one turn, and the state in which that is about to run.

    Raises ConflictError if the skill cannot be offered any more.
    """
    run = skill_run_of(row)
    if run is None:
        return agent, resume
    if not offered:
        raise ConflictError("the skill was withdrawn, no longer fits the APIs or does not load: see the events")
    agent = dataclasses.replace(agent, limits=msgspec.structs.replace(agent.limits, turns=1, errors=1))
    if resume.recorded or resume.begun:
        return agent, resume
    [skill] = offered
    call = call_of(skill.source, skill.name, run.arguments)
    code = f"import json\napis.supervisor.complete_task(answer={call})"
    turn = Turn(context_ids=(), sampled_ids=(), logprobs=(), text=f"```python\n{code}\n```")
    await journal.on_sampled(0, turn)
    return agent, msgspec.structs.replace(resume, begun=turn)


def run_outcome(row: tables.Task, outcome: TaskOutcome, trajectory: Trajectory) -> TaskOutcome:
    """If the task ran a skill, it is done once that has returned; otherwise it has failed, or was cancelled."""
    if row.skill_run is None or trajectory.stop is Stop.CANCELLED:
        return outcome
    if trajectory.stop is Stop.COMPLETED:
        return msgspec.structs.replace(outcome, state=TaskState.DONE, stop=Stop.COMPLETED, failure=None)
    raised = trajectory.turns[-1].observation if trajectory.turns else ""
    failure = None if trajectory.stop in LIMITS else outcome.failure  # the limits of a run are those of one turn
    failure = failure or raised or f"the skill did not return: {trajectory.stop}"
    return msgspec.structs.replace(outcome, state=TaskState.FAILED, failure=failure)

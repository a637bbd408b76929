"""The end of a task that killed its runners, or that failed: what it did is kept as recorded."""

import msgspec
import structlog

from app.agent.prompt_profiles import HOSTED
from app.base.values import Call, Policy, Stop, Trajectory, Turn, hosted_id
from app.db import calls, tables, turns
from app.db.database import Sessions
from app.projects import store as projects
from app.releases import store as releases
from app.runner.task_context import task_of
from app.skills import offers

log = structlog.get_logger(__name__)

_LOST = "RuntimeError: the result was not recorded: whether the call arrived is not known"


async def recorded_trajectory(
    sessions: Sessions, row: tables.Task, profile: str, temperature: float, failure: str | None = None
) -> Trajectory:
    """Turns and calls of the journal, with the `failure` as its `detail`. None: the deaths of its runners."""
    async with sessions() as session:
        project = await projects.by_id(session, row.project_id)
        policy = Policy(release=row.release_id)
        if row.release_id is not None:
            policy = Policy((await releases.get(session, row.release_id)).model, row.release_id)
        offered = await offers.offered(session, row.id)
        known = await turns.of_task(session, row.id)
        made = await calls.of_task(session, row.id)
    done = [each.turn if each.ended else _cut_short(each, made) for each in known]
    if failure is None:
        failure = failure_of(row, len(done))
        log.error("a task is given up", task=str(row.id), project=project.name, deaths=row.deaths, reason=failure)
    return Trajectory(
        task=task_of(row, project.name),
        policy=policy,
        profile=profile if hosted_id(policy.model) is None else HOSTED.name,
        turns=tuple(done),
        stop=Stop.CRASHED,
        detail=failure,
        offered=tuple(offered),
        temperature=temperature,
    )


def failure_of(row: tables.Task, turns_recorded: int) -> str:
    """
    >>> failure_of(tables.Task(lone_deaths=2, lone_kills=0), 3)
    '2 runners died while they executed this task and nothing else: given up after turn 3'
    >>> failure_of(tables.Task(lone_deaths=5, lone_kills=4), 3).partition(": ")[0]
    '5 runners died while they executed this task and nothing else, 4 of them killed from outside or unnoticed'
    """
    return f"{_deaths(row, 'executed this task')}: given up after turn {turns_recorded}"


def unrecorded_failure_of(row: tables.Task) -> str:
    """Of a task whose record kills runners, too."""
    return _deaths(row, "executed this task, or recorded its end,")


def _deaths(row: tables.Task, doing: str) -> str:
    killed = f", {row.lone_kills} of them killed from outside or unnoticed" if row.lone_kills else ""
    return f"{row.lone_deaths} runners died while they {doing} and nothing else{killed}"


def _cut_short(recorded: turns.RecordedTurn, made: list[calls.JournalCall]) -> Turn:
    """The turn during which the runner died, with the calls that it is known to have made."""
    known = [each.call for each in made if each.call is not None and each.call.turn == recorded.index]
    lost = [
        Call(seq=each.seq, turn=recorded.index, api=each.api, arguments=each.arguments, error=_LOST)
        for each in made
        if each.call is None
    ]
    return msgspec.structs.replace(recorded.turn, outcome=Stop.CRASHED.value, alive=False, calls=(*known, *lost))

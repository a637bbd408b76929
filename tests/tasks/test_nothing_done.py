"""A task that ends without a single call or answer has failed, unless its check is content."""

import pytest

from app.agent.rollout import RolloutLimits
from app.base.values import Stop
from app.db.tables import TaskState
from app.releases.exams import store as exams
from app.runs import experience
from tests.support.approving import ApprovingProject
from tests.support.scripted_engine import ScriptedEngine, block
from trainer.experience import why_dropped
from trainer.rewards import DropReason

LOOK = "print(apis.api_docs.show_app_descriptions())"
DONE = "apis.supervisor.complete_task()"
ANSWER = "apis.supervisor.complete_task(answer='')"
RAISE = "1 / 0"
LIMITS = RolloutLimits(turns=3, errors=2)
WRITE = "apis.ledger.add_entry(text='one')"


@pytest.mark.parametrize(
    ("turns", "check", "state", "stop", "score"),
    [
        ((LOOK, DONE), None, TaskState.FAILED, Stop.NOTHING_DONE, None),
        ((DONE, DONE), "score = 0", TaskState.FAILED, Stop.NOTHING_DONE, 0.0),
        ((DONE, DONE), "score = 1", TaskState.DONE, Stop.COMPLETED, 1.0),
        ((DONE, WRITE, DONE), None, TaskState.DONE, Stop.COMPLETED, None),
        ((DONE, ANSWER), None, TaskState.DONE, Stop.COMPLETED, None),
        ((f"{WRITE}\n{DONE}",), None, TaskState.DONE, Stop.COMPLETED, None),
        ((ANSWER,), None, TaskState.DONE, Stop.COMPLETED, None),
        ((WRITE, DONE), None, TaskState.DONE, Stop.COMPLETED, None),
        ((LOOK, LOOK, LOOK), None, TaskState.FAILED, Stop.TURN_LIMIT, None),
        ((LOOK, LOOK, LOOK), "score = 0", TaskState.FAILED, Stop.TURN_LIMIT, 0.0),
        ((LOOK, LOOK, LOOK), "score = 1", TaskState.DONE, Stop.TURN_LIMIT, 1.0),
        ((RAISE, RAISE), None, TaskState.FAILED, Stop.STUCK, None),
        ((LOOK, LOOK, WRITE), None, TaskState.DONE, Stop.TURN_LIMIT, None),
    ],
)
async def test_a_task_without_a_call_an_answer_or_a_score_has_failed(
    demo: ApprovingProject,
    turns: tuple[str, ...],
    check: str | None,
    state: TaskState,
    stop: Stop,
    score: float | None,
) -> None:
    answers = [*map(block, turns)]
    engine = ScriptedEngine(demo.project.tokenizer, script=lambda _, turn: answers[turn])
    task_id = await demo.project.submit(check_code=check)
    async with demo.project.runner(engine, limits=LIMITS):
        row = await demo.project.ended(task_id)
    assert (row.state, row.stop, row.score) == (state, stop, score)
    assert ("without a single API call or answer" in (row.failure or "")) is (state is TaskState.FAILED)
    assert (str(stop) in (row.failure or "")) is (state is TaskState.FAILED and stop is not Stop.NOTHING_DONE)
    kind, data = (await demo.project.events(task_id))[-1]
    assert (kind, data["state"], data["stop_reason"]) == ("done", state, stop)
    trajectory = (await demo.api.client.get(f"/v1/tasks/{task_id}/trajectory")).json()
    assert trajectory["stop_reason"] == stop
    async with demo.project.sessions() as session:
        [logged] = await experience.ended(session, [task_id])
        examined = await exams.from_log(session, demo.project.id)
    assert len(examined) == (score is not None), "exams have tasks with a score of 0"
    dropped = why_dropped(logged, set())
    assert dropped is (DropReason.UNSCORED if score is None else None), "runs learn from a score of 0"


async def test_a_policy_that_ends_the_task_before_it_did_anything_reads_once_what_is_missing(
    demo: ApprovingProject,
) -> None:
    task_id = await demo.project.submit()
    async with demo.project.runner(demo.engine(DONE)):
        row = await demo.project.ended(task_id)
    assert (row.stop, row.turns) == (Stop.NOTHING_DONE, 2)
    first, second = await demo.observations(task_id)
    assert "no API was called, and no answer given, so the task goes on" in first
    assert "no API was called" not in second


async def test_what_it_read_is_the_same_once_its_session_was_rebuilt(demo: ApprovingProject) -> None:
    """Rebuilt, a session runs the earlier turns again, now that calls were made."""
    crash = "import os\nos._exit(1)"
    task_id = await demo.project.submit()
    async with demo.project.runner(
        demo.engine(f"x = 1\n{DONE}", WRITE, crash, "print(apis.ledger.list_entries())")
    ):
        row = await demo.project.ended(task_id)
    assert (row.stop, row.turns, demo.written()) == (Stop.COMPLETED, 5, ["one"])
    assert "the Python session crashed" in (await demo.observations(task_id))[2]
